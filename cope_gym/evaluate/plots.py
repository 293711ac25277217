"""PNG plots of learning curves and evaluations. matplotlib is in the `train` extra and imported when needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_gym.evaluate.curves import Points

COLOURS = ("#4453c8", "#d9480f", "#0b7285", "#9c36b5", "#2b8a3e", "#c2255c", "#846000", "#495057")
_STYLE = {
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c9c5bb",
    "axes.grid": True,
    "grid.color": "#eceae4",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 9,
    "legend.frameon": False,
    "savefig.dpi": 150,
}
Figure = Any  # matplotlib is an optional dependency, so its types are not at hand
Bar = tuple[str, float, float | None, float | None]  # label, value, low, high


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def _pyplot() -> Any:
    if not available():
        raise InputError("Plots need matplotlib: pip install 'cope-gym[train]'", type="no_extra")
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    pyplot.rcParams.update(_STYLE)
    return pyplot


def learning_curves(charts: Sequence[Mapping[str, Any]], path: Path, most: int = 9) -> Path:
    """Draws the first charts, one panel each.

    Args:
        charts: As `curves.charts` gives them; a line may have a `band` of (step, low, high).
        path: PNG file.
        most: Largest number of panels.
    """
    pyplot = _pyplot()
    shown = list(charts)[:most]
    columns = min(3, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.6 * columns, 2.5 * rows), squeeze=False, layout="constrained"
    )
    names = list(dict.fromkeys(line["run"] for chart in shown for line in chart["lines"]))
    for place, axis in enumerate(axes.flat):
        if place >= len(shown):
            axis.axis("off")
            continue
        _panel(axis, shown[place], names)
    if len(names) > 1:
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(names)))
    return _save(pyplot, figure, path)


def _panel(axis: Any, chart: Mapping[str, Any], names: Sequence[str]) -> None:
    axis.set_title(chart["name"])
    for line in chart["lines"]:
        colour = COLOURS[names.index(line["run"]) % len(COLOURS)]
        points: Points = line["points"]
        steps, values = [p[0] for p in points], [p[1] for p in points]
        long = len(points) > 24
        axis.plot(
            steps,
            values,
            color=colour,
            linewidth=1 if long else 1.8,
            alpha=0.3 if long else 1.0,
            label=None if long else line["run"],
            marker="o" if len(points) < 13 else None,
            markersize=3,
        )
        if long:
            axis.plot(steps, smooth(values), color=colour, linewidth=1.8, label=line["run"])
        if band := line.get("band"):
            axis.fill_between(
                [b[0] for b in band], [b[1] for b in band], [b[2] for b in band], color=colour, alpha=0.15, linewidth=0
            )


def smooth(values: Sequence[float]) -> list[float]:
    """Centred moving average, as in the HTML report: a trailing one would lag behind the points."""
    reach = max(2, round(len(values) / 20))
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def intervals(measures: Mapping[str, Sequence[Bar]], path: Path) -> Path:
    """Draws one panel a measure with one interval a run.

    Args:
        measures: Measure → (label, value, low, high) a run, the same runs in each.
        path: PNG file.
    """
    pyplot = _pyplot()
    count = max(len(bars) for bars in measures.values())
    size = (4.4 * len(measures), 0.9 + 0.45 * count)
    figure, axes = pyplot.subplots(1, len(measures), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, (measure, bars) in zip(axes.flat, measures.items(), strict=True):
        axis.set_title(measure)
        for row, (label, value, low, high) in enumerate(bars):
            colour = COLOURS[row % len(COLOURS)]
            if low is not None and high is not None:
                axis.plot([low, high], [row, row], color=colour, linewidth=6, alpha=0.3, solid_capstyle="round")
            axis.plot([value], [row], "o", color=colour, label=label)
            axis.annotate(
                f"{value:.3f}", (value, row), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8
            )
        axis.set_yticks(range(count), [bar[0] for bar in bars])
        axis.set_ylim(count - 0.4, -0.7)
        axis.grid(axis="y", visible=False)
    return _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return path
