"""Estimators of evaluation: pass@k, pass^k, intervals clustered by task, paired comparison of two runs.

The unit of resampling is always the task: several episodes of one task are not independent. Every rate is the mean
over tasks of a per-task estimate, so a task counts the same however many of its episodes were usable.
Nothing here reads files or knows what an episode is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
CONFIDENCE = 0.95
_EXACT_SIGNS = 12  # 2^12 sign patterns are enumerated; more differences are sampled
_CHUNK_CELLS = 4_000_000  # bounds memory when a panel has thousands of tasks

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval, `None` with fewer than two tasks.
        high: Upper end, likewise.
        tasks: Number of tasks behind it.
        method: `bootstrap` over tasks; `wilson` for a rate of exactly 0 or 1, where resampling would claim certainty;
            `no spread` where all tasks agree and resampling says nothing; `none` with fewer than two tasks.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    method: str


@dataclass(frozen=True)
class Paired:
    """Run B minus run A on the tasks that both played.

    Attributes:
        difference: Mean difference by task, with its interval.
        p_value: Two-sided sign-flip permutation test over tasks.
        better: Tasks on which B is better.
        worse: Tasks on which B is worse.
        equal: Tasks without a difference.
    """

    difference: Estimate
    p_value: float
    better: int
    worse: int
    equal: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k episodes succeeds, unbiased from c successes in n.

    Raises:
        ValueError: Unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    _check_counts(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k episodes succeed (pass^k), unbiased from c successes in n.

    Raises:
        ValueError: Unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_counts(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} successes in {n} episodes: the number of successes must lie between 0 and n")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} needs at least k episodes of the task and k ≥ 1, there are {n}")


def task_means(by_task: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean of each task's episodes; tasks without a usable episode are left out."""
    return {task: math.fsum(values) / len(values) for task, values in by_task.items() if values}


def estimate(
    values: Sequence[float],
    *,
    rate: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Mean over tasks with a percentile bootstrap interval; equal input gives equal output.

    Args:
        values: One value a task.
        rate: Whether the values are shares of successes; a mean of 0 or 1 then gets Wilson's interval.
        confidence: Coverage of the interval.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: No value.
    """
    if not values:
        raise ValueError("no task has a usable episode, so there is nothing to estimate")
    data = np.asarray(values, dtype=np.float64)
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values), "none")
    if rate and mean in (0.0, 1.0):
        low, high = wilson(round(mean * len(values)), len(values), confidence)
        return Estimate(mean, low, high, len(values), "wilson")
    if len(set(values)) == 1:
        return Estimate(mean, mean, mean, len(values), "no spread")
    means = _resampled_means(data, resamples, seed)
    tail = (1.0 - confidence) / 2.0
    low, high = (float(q) for q in np.quantile(means, [tail, 1.0 - tail]))
    return Estimate(mean, low, high, len(values), "bootstrap")


def wilson(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of one rate."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def _resampled_means(data: Floats, resamples: int, seed: int) -> Floats:
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_CELLS // len(data))
    parts: list[Floats] = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), len(data))
        parts.append(data[generator.integers(0, len(data), size=shape)].mean(axis=1))
    return np.concatenate(parts)


def paired(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Paired:
    """Compares two runs task by task (b − a).

    Args:
        a: Episodes of the first run by task.
        b: Episodes of the second run by task.
        confidence: Coverage of the interval.
        resamples: Resamples of the bootstrap and, with many tasks, of the permutation test.
        seed: Seed of both.

    Raises:
        ValueError: The runs share no task.
    """
    means_a, means_b = task_means(a), task_means(b)
    shared = sorted(means_a.keys() & means_b.keys())
    if not shared:
        raise ValueError("the two runs share no task; compare runs of the same panel")
    gaps = [means_b[task] - means_a[task] for task in shared]
    return Paired(
        difference=estimate(gaps, confidence=confidence, resamples=resamples, seed=seed),
        p_value=sign_flip_p(gaps, resamples=resamples, seed=seed),
        better=sum(gap > 0 for gap in gaps),
        worse=sum(gap < 0 for gap in gaps),
        equal=sum(gap == 0 for gap in gaps),
    )


def crossed(
    seeds: Sequence[Mapping[str, float]],
    minus: Sequence[Mapping[str, float]] = (),
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Mean over tasks and training seeds, resampling both; with `minus`, the difference of two methods.

    Seeds of a method are drawn independently of the other's; tasks are drawn once for both, so they stay paired.
    With few seeds the interval is somewhat too narrow, as any bootstrap of few units is.

    Args:
        seeds: Per-task means of each seed.
        minus: The same of the method that is taken off.
        confidence: Coverage of the interval.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: The seeds share no task.
    """
    everyone = [*seeds, *minus]
    tasks = [task for task in everyone[0] if all(task in means for means in everyone)]
    if not tasks:
        raise ValueError("the runs share no task; compare runs of the same panel")
    generator = np.random.default_rng(seed)
    columns = generator.multinomial(len(tasks), [1 / len(tasks)] * len(tasks), size=resamples) / len(tasks)
    value, differences = 0.0, np.zeros(resamples)
    for sign, group in ((1.0, seeds), (-1.0, minus)):
        if group:
            table = np.asarray([[means[task] for task in tasks] for means in group], dtype=np.float64)
            rows = generator.multinomial(len(group), [1 / len(group)] * len(group), size=resamples) / len(group)
            value += sign * float(table.mean())
            differences = differences + sign * np.einsum("rs,st,rt->r", rows, table, columns, optimize=True)
    if len(tasks) < 2:
        return Estimate(value, None, None, len(tasks), "none")
    tail = (1.0 - confidence) / 2.0
    low, high = (float(q) for q in np.quantile(differences, [tail, 1.0 - tail]))
    return Estimate(value, low, high, len(tasks), "bootstrap over tasks and seeds")


def sign_flip_p(gaps: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of "the sign of each difference is a coin toss"; exact for up to 12 non-zero differences."""
    moved = np.asarray([gap for gap in gaps if gap != 0.0], dtype=np.float64)
    if not len(moved):
        return 1.0
    threshold = abs(float(moved.sum())) - 1e-12
    if len(moved) <= _EXACT_SIGNS:
        signs = np.asarray(list(product((-1.0, 1.0), repeat=len(moved))))
        return float(np.mean(np.abs(signs @ moved) >= threshold))
    generator = np.random.default_rng(seed)
    signs = generator.choice(np.asarray([-1.0, 1.0]), size=(resamples, len(moved)))
    extreme = int(np.sum(np.abs(signs @ moved) >= threshold))
    return (extreme + 1) / (resamples + 1)
