"""Which games there are, and which one an id means. Imported in the benchmark's process only.

Ids: `valid_unseen/17` (position in the order of folder and trial), `valid_unseen/<folder>/<trial>`, or `agentgym/17`
for AgentGym's numbers. Imported splits have as many games as their data; generated games are made when asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from pathlib import Path

from env_servers.adapter import AdapterError, Task
from env_servers.alfworld import agentgym, generator
from env_servers.alfworld.game import Game, category_of
from env_servers.alfworld.store import SPLITS, Store

TEST_GAMES = 120
_HOW_TO_IMPORT = "run `cope data import alfworld PATH` with ALFWorld's data, or `… alfworld download`"


class Catalogue:
    """All games of a server.

    Args:
        path: Imported games; need not exist.
        generated: Number of games in the generated training split.
        seed: Seed of the generated games; those of another seed have a split name of their own.
    """

    def __init__(self, path: Path, generated: int, seed: int) -> None:
        self._store = Store(path) if path.is_file() else None
        self._counts = self._store.counts() if self._store is not None else {}
        suffix = f"-{seed}" if seed else ""
        self._generated = {f"generated{suffix}": generated, f"generated_test{suffix}": TEST_GAMES}
        self._seeds = {f"generated{suffix}": f"{seed} train", f"generated_test{suffix}": f"{seed} test"}

    def close(self) -> None:
        """Closes the file of imported games."""
        if self._store is not None:
            self._store.close()

    def splits(self) -> list[str]:
        """Returns the splits, the training split first: the official one where there is one, else the generated."""
        if "train" in self._counts:
            return [*self._counts, *self._generated]
        return [*self._generated, *self._counts]

    def digest(self) -> str:
        """Returns a sha256 over all that the games of all splits depend on."""
        stored = self._store.digest() if self._store is not None else ""
        return hashlib.sha256(f"{stored} {generator.VERSION} {self._generated}".encode()).hexdigest()

    def tasks(self, split: str) -> list[Task]:
        """Returns the tasks of a split.

        Raises:
            AdapterError: `unknown_split`.
        """
        if split in self._generated:
            return [Task(f"{split}/{n}", split, generator.category(n)) for n in range(self._generated[split])]
        if self._store is None or split not in self._counts:
            raise self._unknown_split(split)
        return [Task(f"{split}/{n}", split, category_of(f)) for n, f in enumerate(self._store.folders(split))]

    def game(self, task_id: object) -> Game:
        """Returns the game that an id means.

        Raises:
            AdapterError: `unknown_task` or `unknown_split`.
        """
        return self._game(*self._find(task_id))

    def canonical_id(self, task_id: object) -> str:
        """Returns the id as `tasks` has it.

        Raises:
            AdapterError: `unknown_task` or `unknown_split`.
        """
        split, number = self._find(task_id)
        return f"{split}/{number}"

    def _find(self, task_id: object) -> tuple[str, int]:
        if not isinstance(task_id, str):
            raise AdapterError("unknown_task", "A task id is a text such as 'valid_unseen/17'.")
        split, _, rest = task_id.partition("/")
        is_number = re.fullmatch(r"0|[1-9][0-9]{0,8}", rest)
        if split == "agentgym":
            return self._find(_of_agentgym(int(rest) if is_number else -1))
        if split not in self._generated and split not in self._counts:
            raise self._unknown_split(split)
        if not is_number:
            return split, self._by_name(split, rest)
        count = self._generated.get(split) or self._counts[split]
        if int(rest) >= count:
            raise AdapterError("unknown_task", f"{split} has {count} games: ids are {split}/0 to {split}/{count - 1}.")
        return split, int(rest)

    def _game(self, split: str, number: int) -> Game:
        if split in self._generated:
            return generator.generate(self._seeds[split], number)
        assert self._store is not None
        return self._store.game(split, number)

    def _by_name(self, split: str, rest: str) -> int:
        folder, _, trial = rest.partition("/")
        number: int | None = None
        if split not in self._generated:
            assert self._store is not None
            number = self._store.position(split, folder, trial)
        elif (ending := re.fullmatch(r"trial_G([0-9]{6,9})", trial)) and int(ending[1]) < self._generated[split]:
            number = int(ending[1])
            if self._game(split, number).folder != folder:
                number = None
        if number is None:
            raise AdapterError(
                "unknown_task",
                f"{split} has no game {rest[:200]!r}: an id is {split}/NUMBER or {split}/FOLDER/TRIAL."
                + self._near(split, folder),
            )
        return number

    def _near(self, split: str, folder: str) -> str:
        if self._store is None or split not in self._counts or len(folder) > 200:
            return ""
        names = {name: f"{split}/{name}/{trial}" for name, trial in self._store.names(split)}
        near = difflib.get_close_matches(folder, names, 1, 0.8)
        return f" Did you mean {names[near[0]]}?" if near else ""

    def _unknown_split(self, split: str) -> AdapterError:
        known = f"the splits are {', '.join(self.splits())}"
        if split in SPLITS:
            return AdapterError(
                "unknown_split", f"The games of {split} are not on this machine: {_HOW_TO_IMPORT}; {known}."
            )
        return AdapterError("unknown_split", f"ALFWorld has no split {split[:80]!r}; {known}.")


def _of_agentgym(number: int) -> str:
    if not 0 <= number < agentgym.COUNT:
        raise AdapterError(
            "unknown_task", f"AgentGym numbers its ALFWorld games 0 to {agentgym.COUNT - 1}: agentgym/17."
        )
    found = agentgym.game_ids()[number]
    if found is None:
        raise AdapterError(
            "unknown_task", f"AgentGym's game {number} is missing in ALFWorld's 0.4 data; 239 of 2620 are."
        )
    return found
