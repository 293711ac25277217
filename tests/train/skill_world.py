"""A world where a correct skill decides success: each family of doors opens to one word, told to who failed there."""

from __future__ import annotations

from typing import Any

import gymnasium

WORDS = {"red": "open", "blue": "close", "green": "take"}
TASKS = [f"{family}/{number}" for number in range(4) for family in WORDS]


class DoorEnv(gymnasium.Env[str, str]):
    """One step: the right word opens the door; the reply to any word tells the right one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):  # type: ignore[override]
        self.task = (options or {})["task_id"]
        self.family, number = self.task.split("/")
        return f"A {self.family} door, number {number}.", self._info(0.0)

    def step(self, action: str):  # type: ignore[override]
        word = WORDS[self.family]
        won = float(action.strip() == word)
        return f"It wants {word}.", won, True, False, self._info(won)

    def _info(self, score: float) -> dict[str, Any]:
        return {
            "score": score,
            "raw_score": score,
            "success": score == 1.0,
            "action_valid": True,
            "category": self.family,
        }
