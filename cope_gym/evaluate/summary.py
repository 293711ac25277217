"""Words and tiles of a report: what came out, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cope_gym.evaluate import results, statistics
from cope_gym.evaluate.drift import turn_flags
from cope_gym.evaluate.runs import Evaluated
from cope_gym.trajectory import Trajectory

_COMPARED = ("success", "score")


def same_panel(a: Evaluated, b: Evaluated) -> bool:
    """Whether two evaluations played the same tasks under the same options."""
    return a.result["panel"]["digest"] == b.result["panel"]["digest"]


def compare(a: Evaluated, b: Evaluated) -> dict[str, statistics.Paired]:
    """Compares two evaluations by task, b − a; empty where they share no task."""
    one, other = results.group(a.episodes), results.group(b.episodes)
    if not one.keys() & other.keys():
        return {}
    return {name: statistics.paired(results.values(one, name), results.values(other, name)) for name in _COMPARED}


def comparisons(runs: Sequence[Evaluated], pairs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Returns the rows of the page's table.

    Args:
        runs: The evaluations, as numbered on the page.
        pairs: (a, b), compared as b − a; pairs of different panels are left out.
    """
    return [
        {"a": a, "b": b, "measure": measure, **asdict(found)}
        for a, b in pairs
        if same_panel(runs[a], runs[b])
        for measure, found in compare(runs[a], runs[b]).items()
    ]


def headline(runs: Sequence[Evaluated], trend: bool) -> str:
    """Returns one line.

    Args:
        runs: Evaluations in order.
        trend: Whether they are stages of one run, so that the first and the last tell what changed.
    """
    known = [run for run in runs if run.result["metrics"]]
    if not known:
        return "No evaluation yet"
    first, last = _ends(known, trend)
    if not trend and len(known) > 1:
        listed = ", ".join(f"{run.label} {_percent(run)}" for run in known)
        return f"Success: {listed}" + (f" {_where(last)}" if same_panel(first, last) else "")
    if first is last:
        return f"{_percent(last)} success {_where(last)}"
    return f"Success {_percent(first)} → {_percent(last)} {_where(last)}"


def _ends(runs: Sequence[Evaluated], trend: bool) -> tuple[Evaluated, Evaluated]:
    """Returns the first and the last, as stages of one run (`trend`) the first of the last one's panel."""
    last = runs[-1]
    return next(run for run in runs if not trend or same_panel(run, last)), last


def subtitle(runs: Sequence[Evaluated], trend: bool) -> str:
    """Returns what the headline is worth; see `headline`."""
    known = [run for run in runs if run.result["metrics"]]
    if not known:
        return ""
    first, last = _ends(known, trend)
    policies = ", ".join(dict.fromkeys(run.result["policy"]["name"] for run in known))
    parts = [f"{policies}, {_count(last.result['episodes'], 'episode')}" + (" each" if len(known) > 1 else "")]
    if trend and first is not last:
        parts.append(_verdict(compare(first, last)["success"]))
    if not all(run.result["complete"] for run in known):
        parts.append("partial results: short tasks finish first, so they are biased")
    return " · ".join(parts)


def _verdict(change: statistics.Paired) -> str:
    low, high = change.difference.low, change.difference.high
    if low is None or high is None:
        return "one task says nothing about chance"
    if low == high:
        verdict = "beyond chance" if change.p_value < 0.05 else "nothing that chance could not do"
        return f"equal on all {change.difference.tasks} tasks: {verdict} (p = {change.p_value:.2g})"
    interval = f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} points".replace("-", "−")
    if low > 0 or high < 0:
        return f"the change is beyond chance ({interval})"
    return f"the change may be chance ({interval}, {_count(change.difference.tasks, 'task')})"


def _percent(run: Evaluated) -> str:
    return f"{100 * run.result['metrics']['success']['value']:.1f} %"


def _where(run: Evaluated) -> str:
    return f"on {run.result['panel']['name']} ({_count(run.result['tasks_played'], 'task')})"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def tiles(
    runs: Sequence[Evaluated], training: Sequence[Trajectory], rows: Sequence[Mapping[str, Any]], trend: bool
) -> list[dict[str, str]]:
    """Returns the tiles of the page: the last evaluation (as a `trend` against the first), and the training."""
    known = [run for run in runs if run.result["metrics"]]
    shown: list[dict[str, str]] = []
    if known:
        first, last = _ends(known, trend)
        before = first if trend and first is not last else None
        shown = [_metric_tile(last, before, *row) for row in _METRIC_TILES]
        errors = sum(len(run.result["errors"]) for run in runs)
        if errors:
            shown.append({"label": "Lost episodes", "value": str(errors), "note": "not scored, listed below"})
    if rows:
        shown.append(_training_tile(training, rows))
    episodes = [e for run in runs for e in run.episodes] + list(training)
    if episodes:
        shown.append(_drift_tile(episodes))
    return shown


_METRIC_TILES = (
    ("Success", "success", "%", 1),
    ("Score", "score", "", 1),
    ("Turns", "turns", "", 0),
    ("Invalid actions", "invalid_share", "%", -1),
)


def _metric_tile(
    last: Evaluated, first: Evaluated | None, label: str, metric: str, unit: str, good: int
) -> dict[str, str]:
    estimate = last.result["metrics"][metric]
    low, high = estimate["low"], estimate["high"]
    note = "" if low is None or low == high else f"95 %: {_show(low, unit)} to {_show(high, unit)}"
    tile = {"label": label, "value": _show(estimate["value"], unit, True), "note": note}
    if first:
        change = estimate["value"] - first.result["metrics"][metric]["value"]
        tile["change"] = (f"{100 * change:+.1f}" if unit else f"{change:+.2f}").replace("-", "−")
        tile["since"] = f"since {first.label}"
        tile["direction"] = "up" if change * good > 0 else "down" if change * good < 0 else ""
    return tile


def _show(value: float, unit: str, with_unit: bool = False) -> str:
    if unit:
        return f"{100 * value:.1f}" + (f" {unit}" if with_unit else "")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _training_tile(training: Sequence[Trajectory], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    steps = max(row["step"] for row in rows)
    seconds = max((row.get("seconds") or 0.0 for row in rows), default=0.0)
    time = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
    return {
        "label": "Training",
        "value": _count(steps, "step"),
        "note": f"{time}, {_count(len(training), 'episode')} to read",
    }


def _drift_tile(episodes: Sequence[Trajectory]) -> dict[str, str]:
    flags = [names for episode in episodes for names in turn_flags(episode)]
    off = sum("no_action" in names or "several" in names for names in flags)
    share = off / len(flags) if flags else 0.0
    return {"label": "Format drift", "value": f"{100 * share:.1f} %", "note": f"of {_count(len(flags), 'turn')}"}


_NAMES = {
    "cope_gym": "CoPE Gym",
    "adapter_version": "Adapter",
    "versions": "Packages",
    "data_digest": "Data digest",
    "engine_flags": "Engine flags",
}


def facts(runs: Sequence[Evaluated]) -> dict[str, str]:
    """Returns what decides the numbers: panel, policy, rules, versions."""
    if not runs:
        return {}
    result = runs[-1].result
    panel, rules = result["panel"], result["rules"]
    shown = {
        "Panel": f"{panel['name']}: split {panel['split']}, {_count(len(panel['task_ids']), 'task')}",
        "Panel digest": panel["digest"],
        "Environment options": _flat(panel["options"]) or "none",
        "Policy": f"{result['policy']['name']} {_flat(result['policy']['settings'])}",
        "Rules": f"{rules['max_turns']} turns, action format {rules['action_format']}",
        "Episodes a task": str(result["samples"]),
        "Seed": str(result["seed"]),
    }
    return shown | {_NAMES.get(key, key): value for key, value in _versions(result["versions"]).items()}


def _flat(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items() if value not in ("", None))


def _versions(versions: Mapping[str, Any]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for key, value in versions.items():
        shown[key] = _flat(value) if isinstance(value, Mapping) else str(value)  # pyright: ignore[reportUnknownArgumentType]
    return shown
