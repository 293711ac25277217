"""Finds what is in a folder: evaluations, training episodes, metrics. Reading only.

A training run is a folder with `metrics.jsonl`, `trajectories/` and `evaluations/NAME/`; an evaluation is a folder
with `result.json` and `trajectories.jsonl`. A single trajectory file will do as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.evaluate.results import RESULT_SCHEMA
from cope_gym.trajectory import Trajectory

T = TypeVar("T")
MOST_EPISODES = 2000  # of training; a report of more is slow to open and nobody reads it
MOST_TOKEN_RECORDS = 64


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation.

    Attributes:
        label: Name of its folder, readable.
        result: Content of `result.json`.
        episodes: All episodes, failed ones included.
        step: Training step, where it is one of a training run.
    """

    label: str
    result: Mapping[str, Any]
    episodes: Sequence[Trajectory]
    step: int | None


def is_evaluation(folder: Path) -> bool:
    """Whether the folder is an evaluation."""
    return (folder / "result.json").is_file()


def evaluation(folder: Path, label: str = "") -> Evaluated:
    """Reads an evaluation.

    Raises:
        InputError: The folder holds none, or one that another version wrote.
    """
    if not is_evaluation(folder):
        raise InputError(
            f"{folder} holds no finished evaluation (no result.json); run `cope eval` to its end.",
            type="no_evaluation",
        )
    result = cast("dict[str, Any]", json.loads((folder / "result.json").read_text(encoding="utf-8")))
    if result.get("schema") != RESULT_SCHEMA:
        raise InputError(f"{folder}/result.json has another schema; evaluate again with this version.", type="schema")
    step = result["policy"]["settings"].get("step")
    episodes = list(trajectory.read(folder / "trajectories.jsonl"))
    return Evaluated(label or _readable(folder.name), result, episodes, step if isinstance(step, int) else None)


def _readable(name: str) -> str:
    return re.sub(r"^step_0*(\d+)(?=_|$)", r"step \1", name).replace("_", " ")


def evaluations(run: Path) -> list[Evaluated]:
    """Reads the evaluations of a training run, in the order in which they were made."""
    folders = [path.parent for path in run.glob("evaluations/*/result.json")]
    folders.sort(key=lambda folder: ((folder / "result.json").stat().st_mtime, folder.name))
    found = [evaluation(folder) for folder in folders]
    steps = [one.step for one in found]
    return sorted(found, key=lambda one: one.step or 0) if None not in steps else found


def metrics(run: Path) -> list[dict[str, Any]]:
    """Reads `metrics.jsonl`; nothing where there is none. A torn last line of a killed run is passed over."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines[:-1] if line.strip()]
    return [row for row in rows if isinstance(row.get("step"), int)]


def recorded(path: Path) -> list[Trajectory]:
    """Reads the episodes of a trajectory file, an evaluation, or all evaluations of a run.

    Raises:
        InputError: There are none.
    """
    if path.is_file():
        return list(trajectory.read(path))
    if is_evaluation(path):
        return list(evaluation(path).episodes)
    found = [episode for one in evaluations(path) for episode in one.episodes]
    if not found:
        raise InputError(f"{path} holds no recorded episodes; name a file or an evaluation.", type="no_run")
    return found


def training_episodes(run: Path, most: int = MOST_EPISODES) -> list[Trajectory]:
    """Reads recorded training episodes: of many, those of evenly spread steps, the first and the last among them."""
    by_step: dict[str, list[Path]] = {}
    for path in sorted((run / "trajectories").glob("*.jsonl")):
        by_step.setdefault(path.stem.partition("_rank")[0], []).append(path)
    if not by_step:
        return []
    steps = list(by_step.values())
    a_step = max(1, len(_episodes(steps[0])))
    chosen = _spread(steps, max(2, most // a_step))
    records = max(1, MOST_TOKEN_RECORDS // len(chosen))  # thinned step by step, since all of them may not fit
    return [episode for paths in chosen for episode in thin_tokens(_episodes(paths), records)]


def _episodes(paths: Sequence[Path]) -> list[Trajectory]:
    return [episode for path in paths for episode in trajectory.read(path)]


def _spread(items: Sequence[T], most: int) -> list[T]:
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[0]]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def thin_tokens(episodes: list[Trajectory], most: int = MOST_TOKEN_RECORDS) -> list[Trajectory]:
    """Drops token records beyond a number, evenly: they are ten times as large as the texts."""
    with_tokens = [episode for episode in episodes if episode.tokens]
    kept = {id(episode) for episode in _spread(with_tokens, most)}
    for episode in with_tokens:
        if id(episode) not in kept:
            episode.tokens = None
    return episodes
