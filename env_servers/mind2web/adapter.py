"""Mind2Web as an adapter: recorded web tasks, one page a step, each action compared with the recorded one."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

from env_servers.adapter import Adapter, AdapterError, Facts, Task
from env_servers.install import cache_home
from env_servers.mind2web import sample, store
from env_servers.mind2web.actions import Action
from env_servers.mind2web.episode import Mind2WebEpisode, page_and_record
from env_servers.mind2web.tasks import Tasks

DEFAULT = "Mind2Web"
_FLAGS = ("gold_history", "gold_included", "show_total_steps")
_MODES = ("strict", "teacher_forced")
_MAX_CHARS = 12000


class Mind2WebAdapter(Adapter):
    """Mind2Web.

    Settings: `data` (name of an imported data set; `Mind2Web` by default, and without it the sample alone).

    Options of an episode: `mode` (`strict`: the first wrong action ends the task; `teacher_forced`: the recorded pages
    go on, as in published step metrics), `max_chars` (upper bound on a page's characters; 0 for none), and three that
    are off by default: `gold_history` (earlier actions are the recorded ones, not the agent's), `gold_included` (the
    recorded element is always listed, which gives it away) and `show_total_steps`.
    """

    facts: ClassVar[Facts] = Facts(
        name="mind2web",
        sessions_per_worker=512,
        concurrency="interleaved",
        python_requires=">=3.10",
        deterministic=True,
        max_steps=50,
        step_timeout=30.0,
        action_format="react",
        reward_scale="1 for each right action; the score is the share of the task's steps that were right",
    )

    def __init__(self, settings: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(settings)
        if unknown := sorted(set(self.settings) - {"data"}):
            raise AdapterError("bad_option", f"Mind2Web has no setting {unknown[0]!r}; there is: data.")
        named = self.settings.get("data")
        path = data_file(DEFAULT if named is None else named)
        if named is not None and not path.is_file():
            there = ", ".join(sorted(one.stem for one in path.parent.glob("*.sqlite"))) or "none"
            raise AdapterError(
                "bad_option",
                f"There is no imported data {named!r}; there are: {there}. Import it with "
                "`cope data import mind2web SOURCE`.",
            )
        self._official = _opened(path) if path.is_file() else None
        self._sample = store.in_memory(sample.recordings())
        self._stores = [self._sample] if self._official is None else [self._official, self._sample]
        self._tasks = Tasks(self._stores)
        self._data = path.stem if self._official is not None else "sample"

    def metadata(self) -> Dict[str, Any]:
        """See the base class."""
        imported = {} if self._official is None else self._official.facts()
        return {
            "adapter_version": "1",
            "versions": {"lxml": version("lxml"), "data_format": store.FORMAT, "sample": sample.VERSION},
            "data_digest": hashlib.sha256("".join(one.digest() for one in self._stores).encode()).hexdigest(),
            "engine_flags": {"data": self._data, "splits": imported},
        }

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return self._tasks.splits()

    def tasks(self, split: str) -> List[Task]:
        """See the base class."""
        return self._tasks.of(split)

    def canonical_id(self, task_id: str) -> Optional[str]:
        """See the base class."""
        return self._tasks.canonical_id(task_id)

    def start(self, task_id: str, seed: Optional[int], options: Mapping[str, Any]) -> Mind2WebEpisode:
        """See the base class; a recording leaves nothing to a seed."""
        chosen = _options(options)
        return Mind2WebEpisode(*self._tasks.find(task_id), chosen)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Optional[List[Any]]:
        """Returns the recorded actions, `None` where one of them is done to something that the pages do not show."""
        chosen = _options(options)
        home, row = self._tasks.find(task_id)
        path: List[Any] = []
        for number in home.numbers(row.id):
            page, recorded = page_and_record(home, row, number, chosen)
            gold = recorded.gold
            ref = next((ref for ref, one in page.shown.items() if one.node and one.node in gold.nodes), None)
            if ref is None:
                return None
            path.append(str(Action(gold.op, ref, gold.value)))
        return path

    def close(self) -> None:
        """See the base class."""
        for one in self._stores:
            one.close()


def data_file(name: object) -> Path:
    """Returns where imported data of that name is kept.

    Raises:
        AdapterError: `bad_option`, it is no name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise AdapterError("bad_option", f"{name!r} is no name of data; use letters, digits, dots, dashes.")
    return cache_home() / "data" / "mind2web" / f"{name}.sqlite"


def _opened(path: Path) -> store.Store:
    try:
        return store.open_file(path)
    except store.StoreError as error:
        raise AdapterError("bad_option", str(error)) from error


def _options(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Checks options and fills in the defaults."""
    chosen: Dict[str, Any] = {"mode": _MODES[0], "max_chars": _MAX_CHARS, **dict.fromkeys(_FLAGS, False)}
    for name, value in given.items():
        if name not in chosen:
            raise AdapterError("bad_option", f"Mind2Web has no option {name!r}; options are: {', '.join(chosen)}.")
        if name == "mode" and value not in _MODES:
            raise AdapterError("bad_option", f"mode is {' or '.join(_MODES)}, not {value!r}.")
        if name in _FLAGS and not isinstance(value, bool):
            raise AdapterError("bad_option", f"{name} is true or false, not {value!r}.")
        if name == "max_chars" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise AdapterError("bad_option", f"max_chars is a whole number, 0 for the whole page, not {value!r}.")
        chosen[name] = value
    return chosen


ADAPTER = Mind2WebAdapter
