"""Gates, weights and the loss, on groups small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from objectives_kit import Say, episode

from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.forecasting import (
    Facts,
    ForecastOptions,
    balance_factors,
    balanced,
    forecast_gate,
    forecast_loss,
    forecast_weights,
    learnable,
    trajectory_facts,
)


def fact(group, success, samples=1, targets=4, failed=False, **more):
    return Facts(group, success, failed, more.pop("eligible", True), samples, targets, **more)


# Group a: two wins of unequal length and a loss. Group b: one win, one infrastructure failure. Group c: only losses.
BATCH = [
    fact("a", True, samples=2, targets=10),
    fact("a", True, samples=4, targets=30),
    fact("a", False, samples=3, targets=20),
    fact("b", True, samples=1, targets=5),
    fact("b", False, samples=1, targets=5, failed=True),
    fact("c", False, samples=2, targets=8),
]


def test_gates():
    assert forecast_gate(BATCH, "wins") == [True, True, False, True, False, False]
    assert forecast_gate(BATCH, "all") == [True, True, True, True, False, True]
    assert forecast_gate(BATCH, "mixed") == [True, True, False, False, False, False], "a failed row is no loss"


def test_nothing_to_learn_is_not_kept():
    assert (
        forecast_gate([fact("a", True, samples=0, targets=0), fact("a", True, eligible=False)], "wins") == [False] * 2
    )


def test_cope_weights_by_hand():
    # raw 1/m: a = 1/2 on 2 + 4 samples, b = 1 on 1 sample; mean over 7 samples = (6·0.5 + 1)/7 = 4/7
    weights = forecast_weights(BATCH, forecast_gate(BATCH, "wins"), "cope")
    assert weights == pytest.approx([7 / 8, 7 / 8, 0, 7 / 4, 0, 0])
    assert 2 * weights[0] + 4 * weights[1] + weights[3] == pytest.approx(7), "mean 1 over samples"


def test_equal_groups_by_hand():
    # raw 1/(m·N): 1/20, 1/60, 1/5; Σ N·raw = 1/2 + 1/2 + 1 = 2, Σ N = 45
    weights = forecast_weights(BATCH, forecast_gate(BATCH, "wins"), "equal_groups")
    assert weights == pytest.approx([45 / 40, 45 / 120, 0, 45 / 10, 0, 0])
    assert 10 * weights[0] + 30 * weights[1] == pytest.approx(5 * weights[3]), "both groups carry the same"


def test_nothing_kept_gives_zeros():
    assert forecast_weights(BATCH, [False] * 6, "equal_groups") == [0.0] * 6


FACTS = st.builds(fact, st.sampled_from("abc"), st.booleans(), st.integers(1, 9), st.integers(1, 200), st.booleans())


@given(st.lists(FACTS, min_size=1, max_size=20), st.sampled_from(["wins", "all", "mixed"]))
def test_equal_groups_properties(facts, gate):
    kept = forecast_gate(facts, gate)
    weights = forecast_weights(facts, kept, "equal_groups")
    total = sum(w * f.targets for w, f in zip(weights, facts, strict=True))
    assert total == pytest.approx(sum(f.targets for f, keep in zip(facts, kept, strict=True) if keep))
    shares = {f.group: 0.0 for f, keep in zip(facts, kept, strict=True) if keep}
    for w, f in zip(weights, facts, strict=True):
        if w:
            shares[f.group] += w * f.targets
    assert all(share == pytest.approx(total / len(shares)) for share in shares.values())


def test_loss_divides_by_the_unweighted_count():
    log_probs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    weights = torch.tensor([2.0, 2.0, 0.5])
    loss = forecast_loss(log_probs, weights, count=3)
    assert loss.item() == pytest.approx((2 + 4 + 1.5) / 3)
    loss.backward()
    assert log_probs.grad.tolist() == pytest.approx([-2 / 3, -2 / 3, -1 / 6]), "doubling w doubles the gradient"


def test_loss_over_ranks_is_the_loss_of_the_whole():
    log_probs, weights = -torch.rand(7), torch.rand(7)
    whole = forecast_loss(log_probs, weights, count=7)
    ranks = [forecast_loss(log_probs[a:b], weights[a:b], 7, world_size=2) for a, b in ((0, 7), (7, 7))]
    assert (sum(ranks) / 2).item() == pytest.approx(whole.item())


def test_a_rank_without_targets_gives_zero_with_a_graph():
    hidden = torch.ones(2, requires_grad=True)
    loss = forecast_loss(hidden[:0], torch.ones(0), count=40, world_size=2)
    loss.backward()
    assert loss.item() == 0 and hidden.grad.tolist() == [0, 0]


def test_require_action_null_tasks_and_skip_no_call(tokenizer, chat):
    talk = episode(tokenizer, chat, [Say("Hello", call=False), Say("open door", call=True, handoff=True)], task="t1")
    work = episode(tokenizer, chat, [Say("Hello", call=False), Say("open door", call=True)], task="t2")
    options = ForecastOptions(require_action=True, null_tasks=frozenset({"t3"}))
    assert not trajectory_facts(talk, build_branches(talk, chat, BranchOptions()), options).eligible
    assert trajectory_facts(work, build_branches(work, chat, BranchOptions()), options).eligible
    assert not trajectory_facts(replace(work, task_id="t3"), [], options).eligible
    plain = episode(tokenizer, chat, [Say("open door")])
    assert trajectory_facts(plain, [], options).eligible, "without calls and messages there is nothing to require"
    short = build_branches(work, chat, BranchOptions(horizon=1))
    assert [b.turn for b in learnable(work, short, ForecastOptions(skip_no_call=True))] == [1]
    assert len(learnable(work, short, ForecastOptions())) == 2


def test_balance_by_hand():
    # The policy calls in 30 of 100 turns. With weights 1 and 2, 10·1 of 40·1 + 10·2 target slots are calls: q = 1/6.
    facts = [fact("a", True, call_slots=10, slots=40, call_turns=20, turns=50)]
    facts += [fact("b", True, call_slots=0, slots=10, call_turns=10, turns=50)]
    call, message = balance_factors(facts, [1.0, 2.0])
    assert (call, message) == pytest.approx((0.3 / (1 / 6), 0.7 / (5 / 6)))
    assert balance_factors([facts[1]], [1.0]) == (0.0, 0.0), "q = 0 cannot be kept neutral"
    rare = [fact("a", True, call_slots=1, slots=100, call_turns=50, turns=100)]
    assert balance_factors(rare, [1.0])[0] == 5.0


def test_balanced_touches_the_first_token_of_each_slot(tokenizer, chat):
    record = episode(tokenizer, chat, [Say("Hello", call=False), Say("open door", call=True)])
    branch = build_branches(record, chat, BranchOptions())[0]
    weighed = balanced(branch, record, (3.0, 0.5))
    changed = {i: w for i, w in enumerate(weighed.weights) if w != 1.0}
    assert changed == {branch.slots[0].start: 0.5, branch.slots[1].start: 3.0}


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="gate must be one of wins, all, mixed"):
        ForecastOptions(gate="loss")
    with pytest.raises(ValueError, match="weights must be one of equal_groups, cope"):
        ForecastOptions(weights="none")
