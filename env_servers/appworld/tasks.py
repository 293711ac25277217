"""AppWorld's task ids and splits, as its data lists them. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path

from env_servers.adapter import AdapterError, Task

_SPLITS = ("train", "dev", "test_normal", "test_challenge")


class Catalogue:
    """The tasks in one data root.

    Args:
        root: The folder with AppWorld's `data`.
    """

    def __init__(self, root: Path) -> None:
        folder = root / "data" / "datasets"
        here = [split for split in _SPLITS if (folder / f"{split}.txt").is_file()]
        self._tasks = {split: _read(root, split) for split in here}
        self.ids = {task.id for tasks in self._tasks.values() for task in tasks}

    def splits(self) -> tuple[str, ...]:
        """Returns the splits that the data has."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> list[Task]:
        """Returns the tasks of a split in published order; categories are difficulties.

        Raises:
            AdapterError: `unknown_split`.
        """
        if split not in self._tasks:
            raise AdapterError(
                "unknown_split", f"AppWorld has no split {split!r}; here are: {', '.join(self._tasks)}."
            )
        return self._tasks[split]

    def check(self, task_id: object) -> None:
        """Looks an id up: the engine joins ids to paths unchecked.

        Raises:
            AdapterError: `unknown_task`.
        """
        if not isinstance(task_id, str) or task_id not in self.ids:
            raise AdapterError("unknown_task", f"AppWorld has no task {str(task_id)[:80]!r} in its data here.")


def _read(root: Path, split: str) -> list[Task]:
    lines = (root / "data" / "datasets" / f"{split}.txt").read_text().split()
    return [Task(task_id, split, _difficulty(root, task_id)) for task_id in lines]


def _difficulty(root: Path, task_id: str) -> str:
    metadata = json.loads((root / "data" / "tasks" / task_id / "ground_truth" / "metadata.json").read_text())
    return f"difficulty-{metadata['difficulty']}"
