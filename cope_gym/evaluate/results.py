"""From episodes to the numbers of a result: metrics with intervals, per category and per task, errors apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cope_gym.evaluate import statistics
from cope_gym.trajectory import Trajectory

RESULT_SCHEMA = 1
ByTask = Mapping[str, Sequence[Trajectory]]
Values = dict[str, list[float]]

# What is measured of an episode; the flag says whether it is a share, whose interval at 0 or 1 is Wilson's.
MEASURES: Mapping[str, tuple[Callable[[Trajectory], float], bool]] = {
    "success": (lambda e: float(e.success), True),
    "score": (lambda e: e.score, False),
    "reward": (lambda e: e.reward, False),
    "turns": (lambda e: float(len(e.turns)), False),
    "tokens": (lambda e: float(sum(turn.tokens for turn in e.turns)), False),
    "invalid_share": (lambda e: _share(e, lambda turn: not turn.valid), False),
    "no_action_share": (lambda e: _share(e, lambda turn: not turn.action), False),
    "truncated": (lambda e: float(e.truncated), True),
}
_PER_CATEGORY = ("success", "score", "turns", "invalid_share")


def _share(episode: Trajectory, test: Callable[[Any], bool]) -> float:
    return sum(map(test, episode.turns)) / len(episode.turns) if episode.turns else 0.0


def group(episodes: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Groups the episodes that count by task; those that an infrastructure fault ended do not count."""
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        if episode.error is None:
            groups[episode.task_id].append(episode)
    return dict(groups)


def values(by_task: ByTask, measure: str) -> Values:
    """Returns a measure's values by task."""
    of_episode, _ = MEASURES[measure]
    return {task: [of_episode(episode) for episode in episodes] for task, episodes in by_task.items()}


def metrics(by_task: ByTask, names: Iterable[str] = MEASURES, *, with_k: bool = True) -> dict[str, Any]:
    """Returns every measure as value, interval and number of tasks; empty without a usable episode."""
    if not by_task:
        return {}
    table: dict[str, Any] = {}
    for name in names:
        means = list(statistics.task_means(values(by_task, name)).values())
        table[name] = asdict(statistics.estimate(means, rate=MEASURES[name][1]))
    return table | _scenario_metrics(by_task) | _step_metrics(by_task) | (_k_metrics(by_task) if with_k else {})


def _scenario_metrics(by_task: ByTask) -> dict[str, Any]:
    """Scenario goal completion: all variants of a scenario are solved (AppWorld's SGC). `tasks` counts scenarios.

    A scenario counts only if each of its variants was played. With several episodes a task it is the chance that one
    episode of each variant, drawn at random, succeeds.
    """
    scenarios: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for episodes in by_task.values():
        known = episodes[0].extra
        if "scenario" in known:
            scenarios[known["scenario"]].append(sum(e.success for e in episodes) / len(episodes))
            sizes[known["scenario"]] = known["scenario_tasks"]
    whole = [math.prod(rates) for name, rates in scenarios.items() if len(rates) == sizes[name]]
    return {"scenario_goal_completion": asdict(statistics.estimate(whole, rate=True))} if whole else {}


def _step_metrics(by_task: ByTask) -> dict[str, Any]:
    """Step metrics that the benchmark counts within an episode (Mind2Web's), as means over tasks (macro average)."""
    table: dict[str, Any] = {}
    for name in next(iter(by_task.values()))[0].extra.get("step_metrics", {}):
        known = {task: [float(e.extra["step_metrics"][name]) for e in episodes] for task, episodes in by_task.items()}
        table[name] = asdict(statistics.estimate(list(statistics.task_means(known).values()), rate=False))
    return table


def _k_metrics(by_task: ByTask) -> dict[str, Any]:
    """pass@k and pass^k; a task enters where it has at least k usable episodes, and `tasks` says how many did."""
    counts = [(len(episodes), sum(e.success for e in episodes)) for episodes in by_task.values()]
    most = max(n for n, _ in counts)
    table: dict[str, Any] = {}
    for k in sorted({2**i for i in range(1, most.bit_length())} | {most}):
        enough = [(n, c) for n, c in counts if n >= k]
        if k > 1:
            for name, estimator in (("pass@", statistics.pass_at_k), ("pass^", statistics.pass_hat_k)):
                per_task = [estimator(n, c, k) for n, c in enough]
                table[f"{name}{k}"] = asdict(statistics.estimate(per_task, rate=True))
    return table


def summarise(episodes: Sequence[Trajectory], planned: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the content of `result.json`. Equal episodes give an equal result; nothing in it depends on the clock.

    Args:
        episodes: Every finished episode, failed ones included.
        planned: Number of episodes of the plan.
        settings: What was evaluated and how.
    """
    by_task = group(episodes)
    errors = [episode for episode in episodes if episode.error is not None]
    result: dict[str, Any] = {
        "schema": RESULT_SCHEMA,
        "complete": len(episodes) >= planned,
        "planned": planned,
        "episodes": len(episodes) - len(errors),
        "tasks_played": len(by_task),
        **settings,
        "metrics": metrics(by_task),
        "categories": _categories(by_task),
        "tasks": {task: _task_row(played) for task, played in by_task.items()},
        "errors": [{"task_id": e.task_id, "sample": e.sample, **(e.error or {})} for e in errors],
    }
    if errors:
        result["success_bounds"] = _bounds(by_task, errors)
    return result


def _categories(by_task: ByTask) -> dict[str, Any]:
    categories: dict[str, dict[str, Sequence[Trajectory]]] = defaultdict(dict)
    for task, episodes in by_task.items():
        categories[episodes[0].category][task] = episodes
    return {
        name: {"episodes": sum(map(len, tasks.values())), **metrics(tasks, _PER_CATEGORY, with_k=False)}
        for name, tasks in sorted(categories.items())
    }


def _task_row(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    return {
        "category": episodes[0].category,
        "episodes": len(episodes),
        "successes": sum(e.success for e in episodes),
        "score": sum(e.score for e in episodes) / len(episodes),
    }


def _bounds(by_task: ByTask, errors: Sequence[Trajectory]) -> list[float]:
    """Success if every episode that was lost had failed, and if every one had succeeded."""
    filled = {task: [float(e.success) for e in episodes] for task, episodes in by_task.items()}
    ends: list[float] = []
    for outcome in (0.0, 1.0):
        with_lost = {task: list(known) for task, known in filled.items()}
        for episode in errors:
            with_lost.setdefault(episode.task_id, []).append(outcome)
        means = list(statistics.task_means(with_lost).values())
        ends.append(sum(means) / len(means))
    return ends
