"""The report of a training run: one HTML file and, with matplotlib at hand, PNGs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_gym.evaluate import curves, plots, runs, summary, viewer
from cope_gym.evaluate.runs import Evaluated
from cope_gym.evaluate.viewer import Page, Run

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
        headline=summary.headline(evaluated),
        subtitle=summary.subtitle(evaluated),
        runs=[Run(one.label, one.episodes, one.result) for one in evaluated] + _training(training),
        tiles=summary.tiles(evaluated, training, rows),
        curves=charts,
        comparisons=summary.comparisons(evaluated, against_first(len(evaluated))),
        facts=summary.facts(evaluated),
    )
    if plots.available():
        draw(folder, charts, evaluated)
    return viewer.write(page, folder / "report.html")


def against_first(count: int) -> list[tuple[int, int]]:
    """Pairs every run with the first."""
    return [(0, i) for i in range(1, count)]


def _training(episodes: Sequence[Any]) -> list[Run]:
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
