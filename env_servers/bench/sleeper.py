"""A benchmark that does nothing but wait: what is measured with it is the service."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task


class SleepEpisode(Episode):
    """Each action is a number of seconds."""

    def __init__(self) -> None:
        self.first = self._result("awake")

    def step(self, action: Any) -> StepResult:
        """Sleeps."""
        try:
            seconds = float(action)
        except (TypeError, ValueError):
            raise AdapterError("bad_action", "The action must be a number of seconds, e.g. '1.0'.") from None
        time.sleep(seconds)
        return self._result(f"slept {seconds:g} s")

    def _result(self, text: str) -> StepResult:
        info = {"raw_score": 0.0, "score": 0.0, "success": False, "action_valid": True}
        return StepResult(text, 0.0, False, False, info)


class SleepAdapter(Adapter):
    """One thread a session, as for benchmarks that wait for a model or a network."""

    facts = Facts(
        "sleep",
        sessions_per_worker=1024,
        concurrency="threads",
        max_steps=1_000_000,
        step_timeout=60.0,
        affinity=False,
    )

    def metadata(self) -> dict[str, Any]:
        """See `Adapter`."""
        return {"adapter_version": "1", "versions": {}, "data_digest": "", "engine_flags": {}}

    def splits(self) -> Sequence[str]:
        """See `Adapter`."""
        return ["train"]

    def tasks(self, split: str) -> list[Task]:
        """See `Adapter`."""
        return [Task("sleep/0", split, "sleep")]

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        """See `Adapter`."""
        return SleepEpisode()
