"""The toy benchmark with gaps: a task without a solution, one whose solution fails, one that breaks its worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.gym.toy import LENGTH, ToyAdapter


class HalfToy(ToyAdapter):
    """See above."""

    def gold(self, task_id: str, options: Mapping[str, Any]) -> list[Any] | None:
        paths: dict[str, list[Any] | None] = {
            "hall/train-1": None,
            "hall/train-2": ["forward"],
            "hall/train-3": ["die"],
        }
        return paths.get(task_id, ["forward"] * LENGTH)
