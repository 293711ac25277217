"""Several runs, several seeds: one table, plots, and a page with all of it.

An arm is a method; its members are runs that differ in their seed. With several seeds, intervals of success and score
resample tasks and seeds; the p-value is over tasks alone, since a handful of seeds admits no test.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_gym.evaluate import curves, plots, results, runs, statistics, store, viewer
from cope_gym.evaluate.runs import Evaluated
from cope_gym.evaluate.viewer import Page, Run

MEASURES = ("success", "score")


@dataclass(frozen=True)
class Arm:
    """One method.

    Attributes:
        label: Its name.
        members: Its final evaluations, one a seed.
        rows: Rows of `metrics.jsonl` of each seed, where there are any.
    """

    label: str
    members: Sequence[Evaluated]
    rows: Sequence[Sequence[Mapping[str, Any]]]

    def by_task(self) -> dict[str, list[Any]]:
        """Returns the episodes of all seeds that count, by task."""
        pooled: dict[str, list[Any]] = defaultdict(list)
        for member in self.members:
            for task, episodes in results.group(member.episodes).items():
                pooled[task].extend(episodes)
        return dict(pooled)

    def means(self, measure: str) -> list[dict[str, float]]:
        """Returns the per-task means of each seed."""
        groups = [results.group(member.episodes) for member in self.members]
        return [statistics.task_means(results.values(group, measure)) for group in groups]

    def of_seeds(self, measure: str) -> list[float]:
        """Returns a measure of each seed."""
        return [member.result["metrics"][measure]["value"] for member in self.members]


def read_arm(spec: str, panel: str = "") -> Arm:
    """Reads `NAME=FOLDER[,FOLDER…]` or `FOLDER`: evaluations, or training runs, whose last evaluation counts.

    Args:
        spec: See above.
        panel: Of a training run, the last evaluation on the panel of that name.

    Raises:
        InputError: A folder without a finished evaluation, or of several panels where none is named.
    """
    name, equals, folders = spec.rpartition("=")
    paths = [Path(folder) for folder in folders.split(",") if folder]
    members = [_final(path, panel) for path in paths]
    for path, member in zip(paths, members, strict=True):
        if not member.result["metrics"]:
            raise InputError(f"The evaluation in {path} has no usable episode.", type="no_evaluation")
    return Arm(name if equals else Path(folders).resolve().name, members, [runs.metrics(path) for path in paths])


def _final(path: Path, panel: str) -> Evaluated:
    if runs.is_evaluation(path):
        return runs.evaluation(path)
    everything = runs.evaluations(path)
    found = [one for one in everything if panel in ("", one.result["panel"]["name"])]
    names = list(dict.fromkeys(one.result["panel"]["name"] for one in everything))
    if len(names) > 1 and not panel:
        raise InputError(f"{path} was evaluated on {', '.join(names)}: say --panel {names[0]}.", type="other_panel")
    if everything and not found:
        raise InputError(f"{path} was not evaluated on {panel}, but on {', '.join(names)}.", type="other_panel")
    if not found:
        raise InputError(
            f"{path} holds no finished evaluation; run `cope eval` to its end first.", type="no_evaluation"
        )
    return found[-1]


def compare(specs: Sequence[str], out: Path, allow_partial: bool = False, panel: str = "") -> dict[str, Any]:
    """Compares arms; the first is the reference.

    Args:
        specs: See `read_arm`.
        out: Folder for `comparison.json`, `comparison.html` and, with matplotlib, PNGs.
        allow_partial: Accept partial results.
        panel: Name of the panel, for runs that were evaluated on several.

    Returns:
        The content of `comparison.json`.

    Raises:
        InputError: Different panels, a partial result that was not asked for, or one name twice.
    """
    arms = [read_arm(spec, panel) for spec in specs]
    _check(arms, allow_partial)
    table = {
        "panel": arms[0].members[0].result["panel"]["name"],
        "arms": [_row(arm) for arm in arms],
        "comparisons": [
            {"a": 0, "b": b, "measure": measure, **asdict(_paired(arms[0], arms[b], measure))}
            for b in range(1, len(arms))
            for measure in MEASURES
        ],
    }
    store.replace(out / "comparison.json", json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    charts = _charts(arms)
    viewer.write(_page(arms, table, charts), out / "comparison.html")
    if plots.available():
        _draw(table, charts, out)
    return table


def _check(arms: Sequence[Arm], allow_partial: bool) -> None:
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        raise InputError("Two arms have the same name; write NAME=FOLDER.", type="bad_setting")
    panels = {
        member.result["panel"]["digest"]: member.result["panel"]["name"] for arm in arms for member in arm.members
    }
    if len(panels) > 1:
        raise InputError(
            f"These results are of different panels ({', '.join(panels.values())}) and cannot be compared; evaluate "
            "all on one panel with equal options.",
            type="other_panel",
        )
    _check_conditions([member for arm in arms for member in arm.members])
    partial = [arm.label for arm in arms if not all(member.result["complete"] for member in arm.members)]
    if partial and not allow_partial:
        raise InputError(
            f"Partial results are biased: finish the evaluation of {', '.join(partial)}, or say --allow-partial.",
            type="partial",
        )


def _check_conditions(members: Sequence[Evaluated]) -> None:
    """Refuses what would make a difference look like one of the methods."""
    conditions = [_conditions(member.result) for member in members]
    for name in dict.fromkeys(name for each in conditions for name in each):
        seen = {json.dumps(each[name]) for each in conditions if name in each}
        if len(seen) > 1:
            raise InputError(
                f"These results differ in {name} ({' and '.join(sorted(seen))}) and cannot be compared; evaluate all "
                "under the same conditions.",
                type="other_conditions",
            )


def _conditions(result: Mapping[str, Any]) -> dict[str, Any]:
    versions = result["versions"]
    flags = versions.get("engine_flags", {})
    found = {name: flags[name] for name in ("user", "user_model", "user_temperature", "catalogue") if name in flags}
    if "data_digest" in versions:
        found["data_digest"] = versions["data_digest"]
    return {"max_turns": result["rules"]["max_turns"], **found}


def _row(arm: Arm) -> dict[str, Any]:
    by_task = arm.by_task()
    row: dict[str, Any] = {"label": arm.label, "seeds": len(arm.members), "episodes": sum(map(len, by_task.values()))}
    row["errors"] = sum(len(member.result["errors"]) for member in arm.members)
    row["metrics"] = results.metrics(by_task)
    if len(arm.members) > 1:
        row["metrics"] |= {measure: asdict(statistics.crossed(arm.means(measure))) for measure in MEASURES}
    row["by_seed"] = {measure: arm.of_seeds(measure) for measure in MEASURES}
    row["seed_deviation"] = {measure: _deviation(arm.of_seeds(measure)) for measure in MEASURES}
    return row


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _paired(a: Arm, b: Arm, measure: str) -> statistics.Paired:
    pooled = statistics.paired(results.values(a.by_task(), measure), results.values(b.by_task(), measure))
    if max(len(a.members), len(b.members)) == 1:
        return pooled
    return replace(pooled, difference=statistics.crossed(b.means(measure), a.means(measure)))


def _charts(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """One line an arm: the mean over its seeds, with their range as a band."""
    by_metric: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for arm in arms:
        seeds = [curves.series(rows) for rows in arm.rows if rows]
        for name in dict.fromkeys(name for points in seeds for name in points):
            by_metric[name].append(_line(arm.label, [points[name] for points in seeds if name in points]))
    return curves.page(by_metric)


def _line(label: str, seeds: Sequence[curves.Points]) -> dict[str, Any]:
    by_step: dict[int, list[float]] = defaultdict(list)
    for points in seeds:
        for step, value in points:
            by_step[step].append(value)
    steps = sorted(by_step)
    line: dict[str, Any] = {"run": label, "points": [(s, sum(by_step[s]) / len(by_step[s])) for s in steps]}
    if len(seeds) > 1:
        line["band"] = [(s, min(by_step[s]), max(by_step[s])) for s in steps]
    return line


def _page(arms: Sequence[Arm], table: Mapping[str, Any], charts: Sequence[Mapping[str, Any]]) -> Page:
    shown = [_run(arm, row) for arm, row in zip(arms, table["arms"], strict=True)]
    seeds = ", ".join(f"{row['label']}: {row['seeds']}" for row in table["arms"])
    return Page(
        title=f"Comparison on {table['panel']}",
        headline=_headline(table),
        subtitle=f"Seeds: {seeds}. Intervals of the differences are in the table below.",
        runs=shown,
        curves=charts,
        comparisons=table["comparisons"],
    )


def _headline(table: Mapping[str, Any]) -> str:
    """Says what may be said: an arm is ahead only where the interval of a difference leaves chance out."""
    successes = [100 * row["metrics"]["success"]["value"] for row in table["arms"]]
    differences = [one["difference"] for one in table["comparisons"] if one["measure"] == "success"]
    if any(one["low"] is not None and not one["low"] <= 0 <= one["high"] for one in differences):
        best = max(table["arms"], key=lambda row: row["metrics"]["success"]["value"])
        return f"{best['label']} solves most: {max(successes):.1f} % of {table['panel']}"
    span = f"{min(successes):.1f} to {max(successes):.1f} % of {table['panel']}"
    return f"No arm differs from {table['arms'][0]['label']} beyond chance: all solve {span}"


def _run(arm: Arm, row: Mapping[str, Any]) -> Run:
    episodes = [episode for member in arm.members for episode in member.episodes]
    planned = sum(member.result["planned"] for member in arm.members)
    settings = {key: arm.members[0].result[key] for key in ("panel", "policy", "rules", "samples", "seed", "versions")}
    result = results.summarise(episodes, planned, settings)
    result["metrics"] |= {measure: row["metrics"][measure] for measure in MEASURES}
    label = arm.label if row["seeds"] == 1 else f"{arm.label} ({row['seeds']} seeds)"
    return Run(label, runs.thin_tokens(episodes), result)


def _draw(table: Mapping[str, Any], charts: Sequence[Mapping[str, Any]], out: Path) -> None:
    plots.intervals(
        {measure: [_bar(row, measure) for row in table["arms"]] for measure in MEASURES}, out / "comparison.png"
    )
    if charts:
        plots.learning_curves(charts, out / "learning_curves.png")


def _bar(row: Mapping[str, Any], measure: str) -> plots.Bar:
    estimate = row["metrics"][measure]
    return row["label"], estimate["value"], estimate["low"], estimate["high"]
