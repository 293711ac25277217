"""Panels: fixed lists of tasks, shipped as files, that make two results comparable.

A panel's digest covers everything that decides what is played: environment, split, options, ids in order and, where
they were recorded, the first observations. It does not cover the name and the description.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

from cope_gym.errors import InputError

_OBSERVATION_DIGITS = 16  # hexadecimal digits kept of each first observation's sha256


@dataclass(frozen=True)
class Panel:
    """A fixed list of tasks.

    Attributes:
        env: Short environment name, e.g. `sciworld`.
        name: Unique within the environment.
        split: The benchmark's split that all tasks belong to.
        task_ids: Task ids in the order in which they are listed in results.
        options: Environment options that the panel prescribes.
        description: One sentence.
        observations: First 16 hexadecimal digits of the sha256 of each task's first observation, where recorded.
        digest: sha256 over what decides what is played.
    """

    env: str
    name: str
    split: str
    task_ids: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    description: str = ""
    observations: Mapping[str, str] = field(default_factory=dict[str, str])
    digest: str = ""

    def computed_digest(self) -> str:
        """Returns the digest of the contents, whatever `digest` says."""
        covered = {
            "env": self.env,
            "split": self.split,
            "options": dict(self.options),
            "task_ids": list(self.task_ids),
            "observations": dict(self.observations),
        }
        return sha256(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def sealed(self) -> Panel:
        """Returns the panel with its digest filled in."""
        return replace(self, digest=self.computed_digest())

    def recorded(self, first_observation: Callable[[str], str]) -> Panel:
        """Returns the panel with its first observations recorded."""
        seen = {task: observation_digest(first_observation(task)) for task in self.task_ids}
        return replace(self, observations=seen).sealed()

    def head(self, limit: int) -> Panel:
        """Returns a panel of the first tasks, with a digest and a name of its own."""
        if limit >= len(self.task_ids):
            return self
        kept = self.task_ids[:limit]
        seen = {task: digest for task, digest in self.observations.items() if task in kept}
        return replace(self, name=f"{self.name}[:{limit}]", task_ids=kept, observations=seen).sealed()

    def to_json(self) -> str:
        """Returns the file's text."""
        data = asdict(self) | {"task_ids": list(self.task_ids)}
        if not self.observations:
            del data["observations"]
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def observation_digest(text: str) -> str:
    """Returns what a panel records of a first observation."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_OBSERVATION_DIGITS]


def names() -> list[str]:
    """Names of the shipped panels, as `--panel` takes them, e.g. `sciworld_quickstart`."""
    shipped = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".json") for name in shipped if name.endswith(".json"))


def _folder() -> Traversable:
    return files("cope_gym") / "panels"


def load(name: str) -> Panel:
    """Reads a shipped panel by name, or any panel by the path of its file.

    Raises:
        InputError: There is no such panel, or the file does not hold what its digest says.
    """
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise InputError(
                f"There is no panel file '{name}'; give a file that `cope panel build` wrote.", type="unknown_panel"
            )
        return parse(path.read_text(encoding="utf-8"), name)
    known = names()
    if name not in known:
        near = get_close_matches(name, known, 3) or known
        raise InputError(
            f"There is no panel '{name}'; there are {', '.join(near)} (all: `cope panel list`).", type="unknown_panel"
        )
    return parse((_folder() / f"{name}.json").read_text(encoding="utf-8"), name)


def parse(text: str, source: str) -> Panel:
    """Reads a panel from its file's text and checks the digest.

    Raises:
        InputError: The text is no panel, names a task twice, or was edited.
    """
    try:
        data = cast("dict[str, Any]", json.loads(text))
        data["task_ids"] = tuple(data["task_ids"])
        panel = Panel(**data)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"'{source}' is not a panel file ({error}); write one with `cope panel build`.", type="bad_panel"
        ) from error
    if len(set(panel.task_ids)) != len(panel.task_ids) or not panel.task_ids:
        raise InputError(
            f"Panel '{source}' is empty or names a task twice; build it again with `cope panel build`.",
            type="bad_panel",
        )
    if panel.digest != panel.computed_digest():
        raise InputError(
            f"Panel '{source}' was changed after it was made (its digest does not match); use the shipped file, or "
            "build a panel under another name with `cope panel build`.",
            type="bad_panel",
        )
    return panel


def spread(tasks: Iterable[tuple[str, str]], per_category: int) -> tuple[str, ...]:
    """Picks tasks evenly over each category, without chance: equal task lists give equal panels.

    Args:
        tasks: (task id, category) in the benchmark's order.
        per_category: How many of each category at most.
    """
    by_category: dict[str, list[str]] = {}
    for task, category in tasks:
        by_category.setdefault(category, []).append(task)
    return tuple(task for ids in by_category.values() for task in _evenly(ids, per_category))


def _evenly(ids: Sequence[str], count: int) -> list[str]:
    if len(ids) <= count:
        return list(ids)
    return [ids[i * len(ids) // count] for i in range(count)]


def verify(panel: Panel, known: Iterable[str], first_observation: Callable[[str], str] | None = None) -> list[str]:
    """Compares a panel with what a server offers.

    Args:
        panel: The panel.
        known: Task ids of the panel's split on that server.
        first_observation: Gives a task's first observation; `None` checks the ids only.

    Returns:
        One sentence a difference; empty when all agrees.
    """
    there = set(known)
    problems = [
        f"Task {task} is not in split {panel.split} of this server." for task in panel.task_ids if task not in there
    ]
    if first_observation and not problems:
        problems += [
            f"The first observation of {task} differs from the recorded one: other data, version or options."
            for task, digest in panel.observations.items()
            if observation_digest(first_observation(task)) != digest
        ]
    return problems
