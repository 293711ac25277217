"""Skill co-evolution: the published golden numbers, and missing cells."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cope_train.objectives.advantages import (
    extractor_advantages,
    extractor_rewards,
    group_advantages,
    solver_advantages,
    source_advantages,
    step_advantages,
)

NAN = float("nan")
GOLDEN = torch.tensor([0.75, 0.5, 0.5, 0.25, 1, 0, 0.5, 0.5])
GOLDEN_A = [0.8944, 0, 0, -0.8944, 1.7888, -1.7888, 0, 0]


def fine(n):
    return torch.ones(n, dtype=torch.bool)


def test_golden_extractor():
    assert group_advantages(GOLDEN).tolist() == pytest.approx(GOLDEN_A, abs=1e-4)
    scaled = group_advantages(GOLDEN, weight=0.2).tolist()
    assert scaled == pytest.approx([0.1789, 0, 0, -0.1789, 0.3578, -0.3578, 0, 0], abs=1e-4)


def test_golden_solver():
    rewards = torch.tensor([10.0, 0, 0, 10, 10, 0, 0, 0])
    expected = [1.291, -0.7746, -0.7746, 1.291, 1.291, -0.7746, -0.7746, -0.7746]
    assert group_advantages(rewards).tolist() == pytest.approx(expected, abs=1e-4)


def test_all_equal_gives_zeros():
    assert group_advantages(torch.full((4,), 0.5)).tolist() == [0.0] * 4


def test_extractor_reward_is_the_mean_over_tasks_and_repeats():
    outcomes = torch.zeros(8, 4, 1)
    for i, r in enumerate(GOLDEN.tolist()):
        outcomes[i, : round(4 * r)] = 1
    assert extractor_rewards(outcomes, fine(8), fine(8)).tolist() == pytest.approx(GOLDEN.tolist())
    assert extractor_advantages(outcomes, fine(8), fine(8)).tolist() == pytest.approx(
        [0.2 * a for a in GOLDEN_A], abs=1e-4
    )


def test_format_and_audit_zero_the_reward():
    outcomes = torch.ones(3, 2, 1)
    bad = torch.tensor([True, False, True])
    assert extractor_rewards(outcomes, bad, fine(3)).tolist() == [1, 0, 1]
    assert extractor_rewards(outcomes, fine(3), bad).tolist() == [1, 0, 1]


def test_losing_a_hard_task_does_not_raise_the_reward():
    # Task 0 is easy (all win), task 1 is hard (nobody wins). Skill 0 lost its hard episode to an infrastructure fault.
    outcomes = torch.tensor([[[1.0], [NAN]], [[1.0], [0.0]], [[1.0], [0.0]]])
    assert extractor_rewards(outcomes, fine(3), fine(3)).tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_without_any_episode_the_row_is_failed():
    outcomes = torch.tensor([[[NAN], [NAN]], [[1.0], [0.0]], [[0.0], [0.0]]])
    rewards = extractor_rewards(outcomes, fine(3), fine(3))
    assert rewards[0].isnan() and not rewards[1:].isnan().any()
    assert extractor_advantages(outcomes, fine(3), fine(3)).tolist() == pytest.approx([0.0, 0.2, -0.2], abs=1e-4)


def test_solver_group_is_a_task_across_skills():
    rewards = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])  # (N=2, K=2, R=1)
    assert solver_advantages(rewards)[:, 0, 0].tolist() == pytest.approx([1, -1], abs=1e-4)
    assert solver_advantages(rewards)[:, 1, 0].tolist() == [0, 0]
    assert solver_advantages(rewards, weight=0.5)[0, 0, 0].item() == pytest.approx(0.5, abs=1e-4)


def test_baseline_counts_only_when_asked():
    rewards = torch.tensor([[[1.0]], [[1.0]]])
    assert solver_advantages(rewards).flatten().tolist() == [0, 0]
    with_baseline = solver_advantages(rewards, baseline=torch.tensor([[0.0, 0.0]]))
    assert with_baseline.flatten().tolist() == pytest.approx([1, 1], abs=1e-4)


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))
def test_a_failed_cell_is_as_if_it_were_not_there(seed, n, k, r):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 2, (n, k, r), generator=generator).float()
    rewards[0, 0, 0] = NAN
    advantages = solver_advantages(rewards)
    assert advantages[0, 0, 0] == 0 and not advantages.isnan().any()
    rest = rewards[:, 0].flatten()[1:]
    assert advantages[:, 0].flatten()[1:].tolist() == pytest.approx(group_advantages(rest).tolist())


def test_source_episodes():
    assert source_advantages(torch.tensor([1.0, 0.0]), torch.tensor([])).tolist() == pytest.approx([1, -1], abs=1e-4)
    one = source_advantages(torch.tensor([1.0]), torch.tensor([0.0, 1.0]))
    assert one.tolist() == pytest.approx([1.0], abs=1e-4)
    assert source_advantages(torch.tensor([1.0]), torch.tensor([0.0])).tolist() == [0.0]


def test_step_advantages():
    # Step 0: rewards 1, 1, 0. Step 1: 1, 0. Step 2: only the first episode, correct, keeps its value; step 3: wrong.
    got = step_advantages([[1, 1, 1, 0], [1, 0], [0]])
    high, low = 0.5**0.5, -(2**0.5)
    assert got[0] == pytest.approx([high, 1, 1, -1], abs=1e-4)
    assert got[1] == pytest.approx([high, -1], abs=1e-4)
    assert got[2] == pytest.approx([low], abs=1e-4)
    assert step_advantages([[1]], weight=0.5) == [[0.5]] and step_advantages([[], []]) == [[], []]
