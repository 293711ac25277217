"""From `metrics.jsonl` to named, grouped learning curves."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Points = list[tuple[int, float]]

# Metric name → group; the first pattern that matches decides, and the order is that of the page.
GROUPS = (
    ("Outcome", r"^(eval_(\w+_)?)?(reward|success|score)$|^episodes/(success|score|reward)|^rewards?/|reward_std"),
    ("Forecasting", r"forecast|ensemble|observation_loss|^(af|te)[/_]"),
    ("Skills", r"skill|extract"),
    ("Learning", r"^(loss|grad_norm|entropy|kl|learning_rate)|clip_ratio|gradient"),
    ("Episodes", r"^(eval_(\w+_)?)?(episodes|turns|tokens|completions|truncated|invalid|no_action|failed)"),
    ("Sampling", r"^sampling|importance"),
    ("Seconds", r"seconds|_time|runtime|per_second"),
)
_OTHER = "Other"
_NO_CURVE = re.compile(r"^(step|epoch|seconds|num_tokens|total_flos|train_\w+|\w*runtime|\w*per_second)$")
_FIRST = ("reward", "episodes/success", "eval_success", "episodes/score", "eval_score", "loss", "grad_norm")


def group_of(name: str) -> str:
    """Returns the group of a metric."""
    return next((group for group, pattern in GROUPS if re.search(pattern, name)), _OTHER)


def series(rows: Sequence[Row]) -> dict[str, Points]:
    """Returns the points of every metric worth a curve, by name; of a step that was logged twice, the later."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        for name, value in row.items():
            if not _NO_CURVE.match(name) and isinstance(value, int | float) and math.isfinite(value):
                found[name][row["step"]] = float(value)
    points = {name: sorted(by_step.items()) for name, by_step in found.items()}
    return {name: line for name, line in points.items() if _worth_showing(name, line)}


def _worth_showing(name: str, line: Points) -> bool:
    return any(value != 0.0 for _, value in line) or group_of(name) == "Outcome"


def charts(runs: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Returns the charts of a page, one a metric with one line a run.

    Args:
        runs: Rows of `metrics.jsonl` by the run's name.
    """
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run, rows in runs.items():
        for name, points in series(rows).items():
            lines[name].append({"run": run, "points": points})
    return page(lines)


def page(lines: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the charts of metrics in their order; of those with equal points (a reward that is the score) the first.

    Args:
        lines: By metric, one line a run.
    """
    shown: list[dict[str, Any]] = []
    for name in ordered(lines):
        group = group_of(name)
        same = next((one for one in shown if one["group"] == group and _equal(one["lines"], lines[name])), None)
        if same is None:
            shown.append({"group": group, "name": name, "also": [], "lines": lines[name]})
        else:
            same["also"].append(name)
    return shown


def _equal(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two metrics have the same lines, which one that never moves does not tell."""
    a, b = _flat(some), _flat(others)
    moves = len({value for _, _, value in a}) > 1
    return (
        moves
        and len(a) == len(b)
        and all(p[:2] == q[:2] and math.isclose(p[2], q[2], rel_tol=1e-6) for p, q in zip(a, b, strict=True))
    )


def _flat(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    return [(line["run"], step, value) for line in lines for step, value in line["points"]]


def ordered(names: Iterable[str]) -> list[str]:
    """Returns metric names in the order of the page."""
    order = [group for group, _ in GROUPS[:-1]] + [_OTHER, GROUPS[-1][0]]
    return sorted(names, key=lambda name: (order.index(group_of(name)), *_rank(name)))


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name), "") if name in _FIRST else (len(_FIRST), name)
