"""The report of a training run: one HTML file and, with matplotlib at hand, PNGs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.evaluate import curves, plots, runs, summary, viewer
from cope_gym.evaluate.runs import Evaluated
from cope_gym.evaluate.skills import bank_rows
from cope_gym.evaluate.viewer import Page, Run
from cope_gym.skills.bank import SkillBank
from cope_gym.trajectory import Trajectory

_MEASURES = ("success", "score")


def report(run_dir: str | Path, title: str = "") -> Path:
    """Builds `report.html` (and `learning_curves.png`, `evaluation.png`) in a run's folder.

    Args:
        run_dir: Folder with `metrics.jsonl`, `trajectories/` and `evaluations/`, whichever of them there are.
        title: Of the page; the folder's name by default.

    Returns:
        The path of the HTML file.

    Raises:
        InputError: The folder holds nothing to report.
    """
    folder = Path(run_dir)
    rows = runs.metrics(folder)
    evaluated = runs.evaluations(folder)
    training = runs.training_episodes(folder)
    if not (rows or evaluated or training):
        raise InputError(
            f"{folder} holds no metrics.jsonl, trajectories or evaluations; give the folder of a run.", type="no_run"
        )
    name = title or folder.resolve().name
    charts = curves.charts({name: rows}) if rows else []
    page = Page(
        title=name,
        headline=summary.headline(evaluated, trend=True),
        subtitle=summary.subtitle(evaluated, trend=True),
        runs=[Run(one.label, one.episodes, one.result) for one in evaluated] + _training(training),
        tiles=summary.tiles(evaluated, training, rows, trend=True),
        curves=charts,
        comparisons=summary.comparisons(evaluated, against_first(evaluated)),
        skills=_skills(folder),
        facts=summary.facts(evaluated),
    )
    if plots.available():
        draw(folder, charts, evaluated)
    return viewer.write(page, folder / "report.html")


def _skills(folder: Path) -> list[dict[str, Any]]:
    bank = folder / "skills.sqlite"
    return bank_rows(SkillBank(bank)) if bank.is_file() else []


def view(paths: Sequence[str], out: Path, title: str = "", show_protected: bool = False) -> Path:
    """Writes a page of episodes.

    Args:
        paths: `PATH` or `LABEL=PATH`; a path is a run, an evaluation, or a trajectory file.
        out: HTML file.
        title: Of the page; the first path by default.
        show_protected: Also embed messages that their benchmark wants kept out of plain text.

    Raises:
        InputError: A path that holds no episodes.
    """
    evaluated: list[Evaluated] = []
    others: list[Run] = []
    rows: dict[str, list[dict[str, Any]]] = {}
    for given in paths:
        label, _, name = given.rpartition("=")
        path = Path(name)
        found, episodes = _episodes(path, label)
        evaluated += found
        others += [Run(label or path.name.removesuffix(".jsonl"), episodes)] if episodes else []
        if steps := runs.metrics(path):
            rows[label or path.resolve().name] = steps
    trend = len(paths) == 1  # stages of one run; several paths are rivals
    page = Page(
        title=title or Path(paths[0].rpartition("=")[2]).resolve().name,
        headline=summary.headline(evaluated, trend) if evaluated else "",
        subtitle=summary.subtitle(evaluated, trend),
        runs=[Run(one.label, one.episodes, one.result) for one in evaluated] + others,
        tiles=summary.tiles(evaluated, [], [], trend) if trend or len(evaluated) == 1 else [],
        curves=curves.charts(rows),
        comparisons=summary.comparisons(evaluated, against_first(evaluated)),
        facts=summary.facts(evaluated),
        show_protected=show_protected,
    )
    return viewer.write(page, out)


def _episodes(path: Path, label: str) -> tuple[list[Evaluated], list[Trajectory]]:
    if path.is_file():
        return [], runs.thin_tokens(list(trajectory.read(path)))
    if runs.is_evaluation(path):
        return [runs.evaluation(path, label)], []
    evaluated, training = runs.evaluations(path), runs.training_episodes(path)
    if not (evaluated or training):
        raise InputError(
            f"{path} holds no episodes; give a run, an evaluation folder or a trajectory file.", type="no_run"
        )
    if label:
        evaluated = [replace(one, label=f"{label}, {one.label}") for one in evaluated]
    return evaluated, training


def against_first(evaluated: Sequence[Evaluated]) -> list[tuple[int, int]]:
    """Pairs every evaluation with the first of its panel."""
    firsts: dict[str, int] = {}
    pairs = [(firsts.setdefault(one.result["panel"]["digest"], i), i) for i, one in enumerate(evaluated)]
    return [(first, i) for first, i in pairs if first != i]


def _training(episodes: Sequence[Trajectory]) -> list[Run]:
    return [Run("training", episodes)] if episodes else []


def draw(folder: Path, charts: Sequence[Mapping[str, Any]], evaluated: Sequence[Evaluated]) -> None:
    """Writes the PNGs that there is data for."""
    if charts:
        plots.learning_curves(charts, folder / "learning_curves.png")
    known = [one for one in evaluated if one.result["metrics"]]
    if known:
        plots.intervals(
            {measure: [_bar(one, measure) for one in known] for measure in _MEASURES}, folder / "evaluation.png"
        )


def _bar(one: Evaluated, measure: str) -> plots.Bar:
    estimate = one.result["metrics"][measure]
    return one.label, estimate["value"], estimate["low"], estimate["high"]
