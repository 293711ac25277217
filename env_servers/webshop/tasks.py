"""Goals as tasks: stable ids and the published splits."""

from __future__ import annotations

from env_servers.adapter import AdapterError, Task
from env_servers.webshop.goals import Goal
from env_servers.webshop.store import KINDS, Catalogue

_TEST, _DEV = slice(0, 500), slice(500, 1500)
_SPLIT_FROM = 1500  # goals needed for the published split to leave anything to train on


class Tasks:
    """The goals of a catalogue by split and by id.

    Goals 0-499 of the published order are `test`, 500-1499 `dev`, the rest `train`. A catalogue with too few goals for
    that has one split `all`. Goals of the other kind, where there are any, form a split named after the kind.

    Args:
        catalogue: The shop.
        primary: `human` or `synthetic`: whose goals the published split divides. By default the crowd's where there
            are enough of them, as in the full catalogue, else the synthetic ones, as is usual with 1,000 products.
    """

    def __init__(self, catalogue: Catalogue, primary: str | None = None) -> None:
        self._catalogue = catalogue
        goals: dict[str, dict[str, int]] = catalogue.manifest["goals"]
        totals = {kind: goals[kind]["total"] for kind in KINDS}
        enough = totals["human"] > _SPLIT_FROM or not totals["synthetic"]
        self.primary = primary or ("human" if enough else "synthetic")
        if not totals[self.primary]:
            raise AdapterError("bad_option", f"catalogue {catalogue.manifest['name']} has no {self.primary} goals")
        self._parts: dict[str, tuple[str, slice]] = {}
        if totals[self.primary] > _SPLIT_FROM:
            named = {"train": slice(_DEV.stop, None), "dev": _DEV, "test": _TEST}
            self._parts.update({name: (self.primary, part) for name, part in named.items()})
        else:
            self._parts["all"] = (self.primary, slice(None))
        other = KINDS[1 - KINDS.index(self.primary)]
        if totals[other]:
            self._parts[other] = (other, slice(None))
        self._positions: dict[str, dict[str, int]] = {}

    def splits(self) -> list[str]:
        """Returns the names of the splits, the training split first."""
        return list(self._parts)

    def of(self, split: str) -> list[Task]:
        """Returns the tasks of a split in published order.

        Raises:
            AdapterError: `unknown_split`.
        """
        if split not in self._parts:
            raise AdapterError("unknown_split", f"no split {split!r}; there are: {', '.join(self._parts)}")
        kind, part = self._parts[split]
        return [Task(goal.id, split, goal.category) for goal in self._catalogue.goals(kind)[part]]

    def find(self, task_id: str) -> tuple[int, Goal]:
        """Returns a goal and its position in the published order, which the original calls its session number.

        Raises:
            AdapterError: `unknown_task`.
        """
        kind = task_id.partition("/")[0]
        if kind in KINDS:
            position = self._index(kind).get(task_id)
            if position is not None:
                return position, self._catalogue.goals(kind)[position]
        raise AdapterError(
            "unknown_task",
            f"no goal {task_id!r} in catalogue {self._catalogue.manifest['name']}; ids look like "
            "synthetic/B000000000/0, and the tasks route lists them",
        )

    def numbered(self, number: int) -> str:
        """Returns the id of a goal by its position in the published order of the primary goals.

        Raises:
            AdapterError: `unknown_task`.
        """
        goals = self._catalogue.goals(self.primary)
        if number >= len(goals):
            raise AdapterError("unknown_task", f"there are {len(goals)} {self.primary} goals, numbered from 0")
        return goals[number].id

    def _index(self, kind: str) -> dict[str, int]:
        if kind not in self._positions:
            self._positions[kind] = {goal.id: n for n, goal in enumerate(self._catalogue.goals(kind))}
        return self._positions[kind]
