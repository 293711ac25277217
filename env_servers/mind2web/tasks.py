"""Which tasks there are, and which one an id means.

An id is the data set's `annotation_id`; `train/12` (position in the published order) and `train/<annotation_id>` are
accepted too. The sample's ids name the website and a number, e.g. `skyhop-3`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from env_servers.adapter import AdapterError, Task
from env_servers.mind2web.official import SPLITS
from env_servers.mind2web.store import Store, TaskRow

_HOW_TO_IMPORT = "run `cope data import mind2web hub:osunlp/Mind2Web`, or name a folder with its files"


class Tasks:
    """The tasks of a server.

    Args:
        stores: What there is to play; where the first has the official training split, it comes first.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        self._home = {split: store for store in stores for split in store.splits()}

    def splits(self) -> list[str]:
        """Returns the splits, a training split first: the official one where there is one, else the sample's."""
        official = [split for split in SPLITS if split in self._home]
        sample = [split for split in self._home if split not in SPLITS]
        return [*official, *sample] if "train" in official else [*sample, *official]

    def of(self, split: str) -> list[Task]:
        """Returns the tasks of a split in published order.

        Raises:
            AdapterError: `unknown_split`.
        """
        return [Task(row.id, split, row.category) for row in self._store(split).tasks(split)]

    def find(self, task_id: object) -> tuple[Store, TaskRow]:
        """Returns a task and where its pages are.

        Raises:
            AdapterError: `unknown_task`.
        """
        if isinstance(task_id, str):
            for store in dict.fromkeys(self._home.values()):
                if (row := store.task(task_id)) is not None:
                    return store, row
        raise self._unknown(str(task_id)[:80])

    def canonical_id(self, task_id: str) -> str | None:
        """Returns the id behind `split/position` or `split/id`."""
        split, slash, rest = task_id.partition("/")
        if not slash or (split not in self._home and split not in SPLITS):
            return None
        rows = self._store(split).tasks(split)
        if rest.isascii() and rest.isdigit():
            if int(rest[:9]) >= len(rows):
                raise AdapterError("unknown_task", f"{split} has {len(rows)} tasks, numbered from 0.")
            return rows[int(rest[:9])].id
        return rest if any(row.id == rest for row in rows) else None

    def _store(self, split: str) -> Store:
        if split in self._home:
            return self._home[split]
        there = ", ".join(self.splits())
        if split in SPLITS:
            raise AdapterError(
                "unknown_split", f"{split} is not on this machine: {_HOW_TO_IMPORT}; here are: {there}."
            )
        raise AdapterError("unknown_split", f"Mind2Web has no split {split[:40]!r}; here are: {there}.")

    def _unknown(self, asked: str) -> AdapterError:
        known = [row.id for split, store in self._home.items() for row in store.tasks(split)]
        near = difflib.get_close_matches(asked, known, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"for the official tasks {_HOW_TO_IMPORT}."
        return AdapterError("unknown_task", f"Mind2Web has no task {asked!r} here; {hint}")
