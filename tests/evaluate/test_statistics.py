"""Estimators against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_gym.evaluate import statistics as stats


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [
        (4, 2, 1, 0.5, 0.5),
        (4, 2, 2, 1 - 1 / 6, 1 / 6),  # C(2,2)/C(4,2) = 1/6 both ways
        (4, 3, 2, 1.0, 0.5),  # C(1,2) = 0; C(3,2)/C(4,2) = 3/6
        (5, 2, 3, 0.9, 0.0),  # C(3,3)/C(5,3) = 1/10; C(2,3) = 0
        (4, 0, 4, 0.0, 0.0),
        (4, 4, 4, 1.0, 1.0),
    ],
)
def test_pass_at_k_and_pass_hat_k_by_hand(n: int, c: int, k: int, at: float, hat: float) -> None:
    assert stats.pass_at_k(n, c, k) == pytest.approx(at)
    assert stats.pass_hat_k(n, c, k) == pytest.approx(hat)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_both_equal_the_mean_over_all_subsets(case: tuple[int, int, int]) -> None:
    n, c, k = case
    outcomes = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(outcomes, k))
    assert stats.pass_at_k(n, c, k) == pytest.approx(sum(max(s) for s in subsets) / len(subsets))
    assert stats.pass_hat_k(n, c, k) == pytest.approx(sum(min(s) for s in subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0), (0, 0, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    for estimator in (stats.pass_at_k, stats.pass_hat_k):
        with pytest.raises(ValueError):
            estimator(n, c, k)


def test_bootstrap_interval_of_two_tasks_is_the_enumerated_one() -> None:
    # Resampling (0, 1) gives means 0, ½, 1 with weights ¼, ½, ¼, so the 2.5 % and 97.5 % points are 0 and 1,
    # and the 30 % and 70 % points are both ½.
    assert stats.estimate([0.0, 1.0]) == stats.Estimate(0.5, 0.0, 1.0, 2, "bootstrap")
    narrow = stats.estimate([0.0, 1.0], confidence=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_bootstrap_agrees_with_the_normal_approximation_of_a_large_panel() -> None:
    values = [0.0, 0.5, 1.0, 1.0] * 100
    result = stats.estimate(values)
    spread = 1.96 * math.sqrt(sum((v - 0.625) ** 2 for v in values) / 400 / 400)
    assert result.value == pytest.approx(0.625)
    assert result.low == pytest.approx(0.625 - spread, abs=0.004)
    assert result.high == pytest.approx(0.625 + spread, abs=0.004)


def width(result: stats.Estimate) -> float:
    assert result.low is not None and result.high is not None
    return result.high - result.low


def test_clustering_widens_the_interval_of_repeated_episodes() -> None:
    # 10 tasks, each always or never solved, 16 episodes each: 160 episodes hold no more information than 10.
    by_task = {f"t{i}": [float(i % 2)] * 16 for i in range(10)}
    clustered = stats.estimate(list(stats.task_means(by_task).values()), rate=True)
    naive = stats.estimate([v for values in by_task.values() for v in values], rate=True)
    assert (
        clustered.low is not None and clustered.high is not None and naive.low is not None and naive.high is not None
    )
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)


def test_estimates_are_seeded_and_independent_of_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.1 * i for i in range(11)]
    whole = stats.estimate(values)
    assert whole == stats.estimate(values)
    assert whole != stats.estimate(values, seed=1)
    monkeypatch.setattr(stats, "_CHUNK_CELLS", 100)
    assert stats.estimate(values) == whole


def test_wilson_by_hand_and_at_the_ends() -> None:
    # n = 10, 0 successes: upper end z²/(n + z²) = 3.8415 / 13.8415.
    assert stats.wilson(0, 10) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert stats.wilson(5, 10) == (pytest.approx(0.23659, abs=1e-5), pytest.approx(0.76341, abs=1e-5))
    solved = stats.estimate([1.0] * 10, rate=True)
    assert solved == stats.Estimate(1.0, pytest.approx(0.72247, abs=1e-5), 1.0, 10, "wilson")
    assert stats.estimate([1.0] * 10) == stats.Estimate(1.0, 1.0, 1.0, 10, "no spread")


def test_one_task_has_no_interval_and_no_task_no_estimate() -> None:
    assert stats.estimate([0.25]) == stats.Estimate(0.25, None, None, 1, "none")
    with pytest.raises(ValueError, match="nothing to estimate"):
        stats.estimate([])


def test_paired_comparison_by_hand() -> None:
    a = {"t1": [0.0, 0.0], "t2": [1.0, 0.0], "t3": [0.0, 0.0], "t4": [1.0, 1.0], "only_a": [1.0]}
    b = {"t1": [1.0, 1.0], "t2": [1.0, 1.0], "t3": [1.0, 1.0], "t4": [1.0, 1.0], "only_b": [0.0], "empty": []}
    result = stats.paired(a, b)
    assert (result.better, result.worse, result.equal) == (3, 0, 1)
    assert result.difference.value == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert result.p_value == pytest.approx(2 / 8)  # only +++ and −−− of the eight sign patterns reach |2.5|
    reverse = stats.paired(b, a)
    assert reverse.difference.value == -result.difference.value
    assert reverse.p_value == result.p_value


def test_sampled_permutation_test_agrees_with_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = [0.5, -0.25, 1.0, 0.75, 0.1, -0.6, 0.3, 0.3, 0.0, 0.9]
    exact = stats.sign_flip_p(gaps)
    monkeypatch.setattr(stats, "_EXACT_SIGNS", 0)
    assert stats.sign_flip_p(gaps, resamples=40_000) == pytest.approx(exact, abs=0.01)
    assert stats.sign_flip_p([0.0, 0.0]) == 1.0


def test_runs_without_a_common_task_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="share no task"):
        stats.paired({"a": [1.0]}, {"b": [1.0]})


def test_crossed_bootstrap_of_one_seed_is_the_one_over_tasks() -> None:
    means = {f"t{i}": i / 19 for i in range(20)}
    one, plain = stats.crossed([means]), stats.estimate(list(means.values()))
    assert one.value == pytest.approx(plain.value)
    assert (one.low, one.high) == (pytest.approx(plain.low, abs=0.02), pytest.approx(plain.high, abs=0.02))


def test_crossed_bootstrap_counts_seeds_and_not_only_tasks() -> None:
    # 200 tasks agree within a seed, seeds differ: all the uncertainty is between seeds, 0, ½ and 1.
    seeds = [dict.fromkeys(map(str, range(200)), level) for level in (0.0, 0.5, 1.0)]
    result = stats.crossed(seeds)
    assert result.value == pytest.approx(0.5)
    # The mean of three draws is 0 with probability 1/27 > 2.5 %, so the interval reaches the ends.
    assert (result.low, result.high) == (0.0, pytest.approx(1.0))
    assert width(stats.estimate([0.5] * 200)) == 0.0


def test_crossed_difference_keeps_tasks_paired() -> None:
    # Tasks differ wildly, methods by exactly 0.1 on each: pairing leaves no uncertainty.
    hard = {f"t{i}": (i % 7) / 10 for i in range(30)}
    better = {task: value + 0.1 for task, value in hard.items()}
    result = stats.crossed([better, better], [hard, hard])
    assert (result.value, result.low, result.high) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))
    with pytest.raises(ValueError, match="share no task"):
        stats.crossed([{"a": 1.0}], [{"b": 1.0}])
