"""A benchmark of a few lines: walk along a corridor to its end. Any text is a legal action; most do nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task

LENGTH = 4


class ToyEpisode(Episode):
    """`forward` and `back` move; `wait S` sleeps; `note` leaves a line in a file; `die` kills the worker."""

    def __init__(self, adapter: ToyAdapter, task_id: str, seed: int | None) -> None:
        self.adapter = adapter
        self.place = 0
        self.first = self._result(f"You stand in corridor {task_id}, seed {seed}. Ünïcode: 🚪", 0.0, True)

    def step(self, action: Any) -> StepResult:
        if not isinstance(action, str):
            raise AdapterError("bad_action", "The action must be text, e.g. 'forward'.")
        verb, _, rest = action.partition(" ")
        if log := self.adapter.settings.get("log"):
            with open(log, "a", encoding="utf-8") as out:
                out.write(action + "\n")
        if verb == "wait":
            time.sleep(float(rest))
        elif verb == "die":
            os._exit(9)
        elif verb in ("forward", "back"):
            before = self.place
            self.place = max(0, self.place + (1 if verb == "forward" else -1))
            return self._result(f"You are at door {self.place}.", (self.place - before) / LENGTH, True)
        return self._result("Nothing happens.", 0.0, False)

    def _result(self, text: str, reward: float, valid: bool) -> StepResult:
        done = self.place >= LENGTH
        info = {"raw_score": self.place, "score": self.place / LENGTH, "success": done, "action_valid": valid}
        return StepResult(text, reward, done, False, {**info, "admissible_actions": ["forward", "back"]})


class ToyAdapter(Adapter):
    facts = Facts("toy", 64, "interleaved", max_steps=12, step_timeout=20.0, reward_scale="1 at the end")

    def metadata(self) -> dict[str, Any]:
        return {"adapter_version": "1", "versions": {}, "data_digest": "0" * 64, "engine_flags": {}}

    def splits(self) -> Sequence[str]:
        return ["train", "test"]

    def tasks(self, split: str) -> list[Task]:
        if split not in self.splits():
            raise AdapterError("unknown_split", f"There is no split {split!r}; there are: train, test.")
        return [Task(f"hall/{split}-{i}", split, f"hall{i % 3}") for i in range(12)]

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        for name in options:
            raise AdapterError("bad_option", f"There is no option {name!r}; the toy has none.")
        return ToyEpisode(self, task_id, seed)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> list[Any] | None:
        return ["forward"] * LENGTH
