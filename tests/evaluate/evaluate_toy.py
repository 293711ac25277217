"""A small environment with everything that an evaluation must cope with; a policy that depends on its seed only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import gymnasium as gym

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate import Evaluation, Panel, Prompt, Reply, Rules
from cope_gym.evaluate.episode import TextEnv

CATEGORIES = ("near", "far")


class Walk(gym.Env[str, str]):
    """Task `near/3`: say `go` three times (`far`: six). `jump` ends it badly, anything else is invalid."""

    observation_space = gym.spaces.Text(1000)
    action_space = gym.spaces.Text(1000)

    def __init__(self, faults: dict[str, int] | None = None) -> None:
        self.faults = faults if faults is not None else {}  # task id → how many of its episodes break
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.task: str = (options or {})["task_id"]
        self.category, _, number = self.task.partition("/")
        if self.category not in CATEGORIES:
            raise InputError(f"There is no task {self.task}.", type="unknown_task")
        self.left = self.length = int(number) * (2 if self.category == "far" else 1)
        return f"Walk to the {self.category} tree, {self.left} steps.", self._info(True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.faults.get(self.task, 0) > 0:
            self.faults[self.task] -= 1
            raise InfrastructureError("The worker died.", type="worker_failed", retryable=True)
        if action == "jump":
            return "You fell.", -1.0, True, False, self._info(True) | {"score": 0.0}
        if action != "go":
            return "Nothing happens.", 0.0, False, False, self._info(False)
        self.left -= 1
        return f"{self.left} to go.", 1 / self.length, self.left == 0, False, self._info(True)

    def _info(self, valid: bool) -> dict[str, Any]:
        done = 1 - self.left / self.length
        return {
            "split": "test",
            "category": self.category,
            "score": done,
            "raw_score": 100 * done,
            "success": self.left == 0,
            "action_valid": valid,
            **({"reward_parts": {"arrived": 1.0}} if self.left == 0 else {}),
            "admissible_actions": ["go", "jump"],
        }

    def close(self) -> None:
        self.closed = True


class Wanderer:
    """Usually goes; sometimes jumps, dawdles, or forgets the format. Depends on the prompt's seed only."""

    name = "wanderer"

    def __init__(self, batch_size: int = 1) -> None:
        self.batch_size = batch_size
        self.settings: dict[str, Any] = {"temperature": 1.0}
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        self.batches.append(len(prompts))
        self.threads.add(threading.current_thread().name)
        return [self.reply(prompt) for prompt in prompts]

    def reply(self, prompt: Prompt) -> Reply:
        words = ["Action: go"] * 14 + ["Action: jump", "Action: dance", "go", "Action: go\nAction: go"]
        return Reply(Random(prompt.seed).choice(words), tokens=3)

    def close(self) -> None:
        """Nothing to free."""


def panel(tasks: int = 6) -> Panel:
    """`near/1`, `far/1`, `near/2`, …"""
    ids = tuple(f"{CATEGORIES[i % 2]}/{i // 2 + 1}" for i in range(tasks))
    return Panel(env="walk", name="toy", split="test", task_ids=ids).sealed()


def evaluation(tasks: int = 6, **changes: Any) -> Evaluation:
    """An evaluation of the toy panel, four episodes a task."""
    rules = Rules(env="walk", action_format="react", max_turns=12, system="Walk. Say `Action: go`.")
    return Evaluation(**{"panel": panel(tasks), "rules": rules, "samples": 4, "concurrency": 4, **changes})


def walk() -> TextEnv:
    """Makes an environment without faults."""
    return Walk()
