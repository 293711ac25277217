"""The extractor's role as an environment of one turn: a finished episode is the observation, the skill the action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import gymnasium

from cope_gym.skills.audit import audit
from cope_gym.skills.skill import Skill, SkillError, parse_skill
from cope_gym.spaces import TextSpace
from cope_gym.trajectory import Trajectory


class ExtractionEnv(gymnasium.Env[str, str]):
    """Shows one episode and takes a skill.

    Score and success only say that the skill can be used; what it is worth shows in the episodes played with it.
    """

    observation_space = TextSpace()
    action_space = TextSpace()

    def __init__(self, observation: str) -> None:
        self.observation = observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Returns the episode to learn from."""
        super().reset(seed=seed)
        return self.observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Parses and audits the skill; the episode is over."""
        usable = read_skill(action).usable is not None
        return "", 0.0, True, False, {"score": float(usable), "success": usable, "action_valid": usable}


@dataclass(frozen=True)
class Reading:
    """What an extractor's reply holds.

    Attributes:
        skill: The parsed skill, or `None`: f_i = 0.
        audited: Whether its card passed the audit: a_i.
        reasons: What is wrong, one sentence each.
    """

    skill: Skill | None
    audited: bool
    reasons: tuple[str, ...] = ()

    @property
    def usable(self) -> Skill | None:
        """The skill that conditions a solver; a malformed or audited-out one conditions nothing."""
        return self.skill if self.audited else None


def read_skill(text: str) -> Reading:
    """Parses and audits an extractor's reply."""
    try:
        skill = parse_skill(text)
    except SkillError as error:
        return Reading(None, True, (str(error),))
    result = audit(skill.markdown())
    return Reading(skill, result.passed, result.reasons)


def episode_text(trajectory: Trajectory, max_chars: int) -> str:
    """Words an episode for the extractor: task, what was done and seen, and whether it was a success.

    Args:
        trajectory: A finished episode.
        max_chars: Upper bound; what goes is the middle of the history, never the task or the end.
    """
    head, *rest = [message for message in trajectory.messages if message["role"] != "system"]
    lines = [("> " if message["role"] == "assistant" else "") + message["content"].strip() for message in rest]
    outcome = "The task was solved." if trajectory.success else "The task was not solved."
    budget = max_chars - len(head["content"]) - len(outcome) - 80
    history = _without_middle(lines, max(budget, 0))
    return f"Task and first observation:\n{head['content']}\n\nWhat followed:\n{history}\n\nOutcome: {outcome}"


def _without_middle(lines: list[str], budget: int) -> str:
    text = "\n".join(lines)
    if len(text) <= budget:
        return text
    half = budget // 2
    first = text[:half].rpartition("\n")[0]
    last = text[len(text) - half :].partition("\n")[2]
    return f"{first}\n[… left out …]\n{last}"


@cache
def extractor_prompt() -> str:
    """Returns the system message of the extractor's role."""
    return (files("cope_gym.skills") / "extractor.md").read_text(encoding="utf-8").strip()


def with_skill(system_prompt: str, skill: Skill | None, limit: int, length: Callable[[str], int]) -> str:
    """Returns the solver's system message with the card of a skill at its end.

    Args:
        system_prompt: The message without a skill.
        skill: `None` conditions nothing.
        limit: Upper bound on the card's length.
        length: Measures a text, in tokens.
    """
    if skill is None:
        return system_prompt
    return (
        f"{system_prompt}\n\nA skill from an earlier episode of a similar task follows. Use it where it fits, and "
        f"ignore it where it does not.\n\n{skill.markdown(limit, length)}"
    )
