"""Gymnasium wrappers for language agents."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym

from cope_gym.actions import FORMATS, parse
from cope_gym.errors import InputError


class ParseAction(gym.Wrapper[str, str, str, Any]):
    """Steps with a model's whole turn: the action is found in it, and `info` says where.

    `info` gains `action`, `action_span` (character range, `None` where nothing was found), `action_error` and
    `action_count`. A turn without an action runs as an empty command, which every benchmark refuses in its own words.

    Args:
        env: What to wrap.
        format: One of `cope_gym.actions.FORMATS`.
    """

    def __init__(self, env: gym.Env[str, Any], format: str = "react") -> None:
        super().__init__(env)
        if format not in FORMATS:
            raise InputError(
                f"There is no action format '{format}'; there are: {', '.join(FORMATS)}.", type="bad_option"
            )
        self.format = format

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Executes the action that the turn holds."""
        found = parse(action, self.format)
        observation, reward, terminated, truncated, info = self.env.step(found.action)
        info["action"] = found.action
        info["action_span"] = None if found.error else (found.start, found.end)
        info["action_error"] = found.error
        info["action_count"] = found.count
        return observation, reward, terminated, truncated, info
