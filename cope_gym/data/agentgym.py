"""Reads AgentGym's data sets: conversations (AgentTraj-L) become episodes, id files (AgentGym-RL-Data-ID) task lists.

A conversation there begins with an instruction and the model's acknowledgement of it. Here the instruction is the
system prompt and the acknowledgement is left out, so that the layout is that of our own episodes. The files hold no
rewards: that their episodes were solved is taken on trust, and said in `extra`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from cope_gym.actions import parse
from cope_gym.errors import InputError
from cope_gym.evaluate import panels
from cope_gym.evaluate.panels import Panel
from cope_gym.trajectory import Trajectory, Turn

_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
_FILES = (".json", ".jsonl")
Row = Mapping[str, Any]


@dataclass
class Imported:
    """What was read.

    Attributes:
        episodes: The conversations.
        tasks: Environment → task ids, of files that hold ids only.
        skipped: Why → number of rows that were left out.
    """

    episodes: list[Trajectory] = field(default_factory=list[Trajectory])
    tasks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    skipped: Counter[str] = field(default_factory=Counter[str])

    def panels(self, name: str, split: str) -> list[Panel]:
        """Returns the task lists as panels, which `cope eval --panel` and the option `train_panel` take."""
        about = "Task ids of an AgentGym id file."
        return [
            Panel(env, f"{env}_{name}", split, tuple(ids), description=about).sealed()
            for env, ids in self.tasks.items()
        ]


def load(source: Path, split: str = "train", action_format: str = "react") -> Imported:
    """Reads a file, or all JSON files of a folder.

    Args:
        source: `.json` (a list of rows) or `.jsonl`.
        split: Split that the rows are said to belong to.
        action_format: How actions are written in the conversations.

    Raises:
        InputError: There is no such file, or a row is of neither layout.
    """
    if not source.exists():
        raise InputError(f"There is no {source}; give a JSON file of AgentGym or a folder of them.", type="bad_data")
    files = [source] if source.is_file() else _files(source)
    imported = Imported()
    for path in files:
        for number, row in enumerate(_rows(path)):
            try:
                _add(imported, row, split, action_format, path.name)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"{path}, row {number}: neither a conversation nor a task id of AgentGym ({error!r}).",
                    type="bad_data",
                ) from error
    if not (imported.episodes or imported.tasks):
        raise InputError(f"{source} holds no rows of AgentGym in {' or '.join(_FILES)} files.", type="bad_data")
    return imported


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix in _FILES)
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(folder).parts))


def _rows(path: Path) -> Iterator[Row]:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            rows = json.loads(text)
            if not isinstance(rows, list):
                raise ValueError("not a list of rows")
            yield from cast("list[Row]", rows)
        else:
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as error:
        raise InputError(f"{path} is not the JSON of an AgentGym data set: {error}.", type="bad_data") from error


def _add(imported: Imported, row: Row, split: str, action_format: str, source: str) -> None:
    item = str(row["item_id"])
    env, _, number = item.rpartition("_")
    if not env or not number.isdigit():
        raise ValueError(f"item_id {item!r}")
    task = task_id(env, int(number))
    if task is None:
        imported.skipped[f"{env}: no task of that number here"] += 1
    elif "conversations" in row:
        episode = _episode(row["conversations"], action_format)
        if not episode.turns:
            imported.skipped[f"{env}: no turn of the agent"] += 1
            return
        episode.env, episode.task_id, episode.split = env, task, split
        episode.extra = {"item_id": item, "source": f"AgentGym, {source}", "success": "on trust"}
        imported.episodes.append(episode)
    else:
        ids = imported.tasks.setdefault(env, [])
        if task in ids:
            imported.skipped[f"{env}: listed twice"] += 1
        else:
            ids.append(task)


def task_id(env: str, number: int) -> str | None:
    """Returns our id of a task that AgentGym numbers, `None` where its number leads nowhere.

    Its WebShop numbers depend on a shuffle of its own and its other environments are not ours, so these keep its ids.
    """
    if env == "sciworld":
        known = _sciworld()
        return known[number] if number < len(known) else None
    return f"agentgym/{number}" if env == "alfworld" else f"{env}_{number}"


@lru_cache(maxsize=1)
def _sciworld() -> Sequence[str]:
    return panels.load("sciworld_agentgym").task_ids


def _episode(conversation: Iterable[Row], action_format: str) -> Trajectory:
    episode = Trajectory("", "", policy="AgentGym", success=True, score=1.0, raw_score=1.0, terminated=True)
    rows = list(conversation)
    if len(rows) >= 2 and rows[0]["from"] == "human" and rows[1]["from"] == "gpt" and not rows[1].get("loss"):
        episode.messages.append({"role": "system", "content": rows[0]["value"]})
        rows = rows[2:]
    for row in rows:
        role, text = _ROLES[row["from"]], str(row["value"])
        episode.messages.append({"role": role, "content": text})
        if role == "assistant":
            parsed = parse(text, action_format)
            span = (parsed.start, parsed.end) if parsed.action else None
            place = len(episode.messages) - 1
            episode.turns.append(Turn(len(episode.turns), place, parsed.action, span, valid=parsed.error is None))
    return episode
