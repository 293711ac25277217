"""The package's own `AppWorld` class as an adapter, for `cope bench` and for tests that compare with it.

Never served: it runs whatever code it is given in this very process, with this user's rights and files, the ground
truth among them, and holds one world at a time. While a world is open the clock of the process stands still.
"""

# appworld is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from env_servers.adapter import Adapter, Episode, Facts, StepResult, Task
from env_servers.appworld import data, tasks


class StockEpisode(Episode):
    """One world."""

    def __init__(self, task_id: str) -> None:
        from appworld.environment import AppWorld

        self._world: Any = AppWorld(task_id=task_id)
        self.first = StepResult(self._world.task.instruction, 0.0, False, False, _info(False))

    def step(self, action: Any) -> StepResult:
        """Executes code; evaluates the world once its task has been completed."""
        text = self._world.execute(action)
        if not self._world.task_completed():
            return StepResult(text, 0.0, False, False, _info(False))
        tests = self._world.evaluate()
        counts = {"tests_passed": tests.pass_count, "tests": tests.num_tests}
        return StepResult(text, float(tests.success), True, False, {**_info(bool(tests.success)), **counts})

    def close(self) -> None:
        """See the base class."""
        self._world.close()


class StockAdapter(Adapter):
    """AppWorld as installed, over the data that the adapter would use. Its outputs go to a folder of its own."""

    facts: ClassVar[Facts] = Facts(name="appworld-stock", concurrency="single")

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        root, _ = data.find(str(self.settings.get("root", "")))
        self._catalogue = tasks.Catalogue(root)
        self._folder = Path(tempfile.mkdtemp(prefix="cope-appworld-stock-"))
        (self._folder / "data").symlink_to(root / "data")
        os.environ["APPWORLD_ROOT"] = str(self._folder)

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        return {"versions": {"appworld": version("appworld")}}

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return self._catalogue.splits()

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return self._catalogue.tasks(split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> StockEpisode:
        """See the base class; closes the world before it, as the package does."""
        self._catalogue.check(task_id)
        return StockEpisode(task_id)

    def close(self) -> None:
        """See the base class."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _info(success: bool) -> dict[str, Any]:
    return {"raw_score": float(success), "score": float(success), "success": success}


ADAPTER = StockAdapter
