"""Temporal ensemble: membership by true turn, the teacher's published properties, and a dense float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives_kit import Say, episode

from cope_train.objectives import projection
from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.projection import Head, score
from cope_train.objectives.temporal_ensemble import (
    Forecast,
    TemporalEnsembleOptions,
    find_covers,
    mix_members,
    teacher_kl,
    temporal_ensemble_kl,
    temporal_ensemble_loss,
)


def members_of(record, branches):
    covers, _ = find_covers(record, branches)
    return {c.turn: [(branches[b].turn, age) for b, _, age in c.members] for c in covers}


def test_members_are_the_earlier_forecasts_of_a_turn(tokenizer, chat):
    record = episode(tokenizer, chat, [Say(f"go to room {n}") for n in range(4)])
    branches = build_branches(record, chat, BranchOptions(horizon=3))
    assert members_of(record, branches) == {1: [(0, 1)], 2: [(0, 2), (1, 1)], 3: [(1, 2), (2, 1)]}


def test_members_follow_true_turns_when_actions_are_skipped(tokenizer, chat):
    script = [Say("open door"), Say("open box", valid=False), Say("go to hall"), Say("take apple")]
    record = episode(tokenizer, chat, script)
    branches = build_branches(record, chat, BranchOptions(horizon=2))
    # Branch 1 starts at turn 2, because its own action was invalid: slot 0 is of age 1 there, not of age 0.
    assert members_of(record, branches) == {2: [(0, 2), (1, 1)], 3: [(1, 2), (2, 1)]}


def test_slots_point_at_the_action_of_the_turn(tokenizer, chat):
    record = episode(tokenizer, chat, [Say("open door"), Say("go to hall", thought="I should"), Say("take apple")])
    branches = build_branches(record, chat, BranchOptions())
    covers, mismatched = find_covers(record, branches)
    assert mismatched == 0
    for cover in covers:
        sampled = record.ids[cover.start : cover.end]
        for b, first, _ in cover.members:
            assert branches[b].ids[first : first + len(sampled)] == sampled


def test_other_ids_are_no_member_and_are_counted(tokenizer, chat):
    record = episode(tokenizer, chat, [Say("open door"), Say("go to hall")])
    branch = build_branches(record, chat, BranchOptions())[0]
    ids = list(branch.ids)
    ids[branch.slots[1].action_start] += 1
    assert find_covers(record, [replace(branch, ids=ids)]) == ([], 1)


def dense_kl(log_pi, p0, q_f, eta, ids=None):
    """The definition, in float64, over the whole vocabulary."""
    log_pi, p0, q_f = log_pi.double(), p0.double(), q_f.double()
    if ids is not None:
        q_f = torch.zeros_like(q_f).scatter(-1, ids, q_f.gather(-1, ids))
    q = (1 - eta) * p0 + eta * q_f
    q = q / q.sum(-1, keepdim=True)
    pi = log_pi.exp()
    return (pi * (log_pi - q.log())).sum(-1)


def draw(seed, positions=5, vocabulary=23, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, positions, vocabulary, generator=generator) * scale
    log_pi = logits[0].log_softmax(-1)
    return log_pi, logits[1].log_softmax(-1), logits[2].softmax(-1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.99), st.integers(1, 23), st.floats(0.1, 8), st.booleans())
def test_equals_the_dense_oracle(seed, eta, m, scale, moved):
    log_pi, log_p0, q_f = draw(seed, scale=scale)
    top = q_f.topk(m, -1)
    kl = teacher_kl(log_pi, log_p0 if moved else None, top.indices, top.values, eta)
    oracle = dense_kl(log_pi, log_p0.exp() if moved else log_pi.exp(), q_f, eta, top.indices)
    assert torch.allclose(kl.double(), oracle, atol=2e-5, rtol=2e-5)
    assert (kl > -1e-5).all(), "a divergence is not negative"


@pytest.mark.parametrize("m", [4, 23])
def test_gradient_equals_the_dense_oracle(m):
    log_pi, log_p0, q_f = draw(1)
    logits = log_pi.double().requires_grad_()
    top = q_f.double().topk(m, -1)
    teacher_kl(logits.log_softmax(-1), log_p0.double(), top.indices, top.values, 0.5).sum().backward()
    again = log_pi.double().requires_grad_()
    dense_kl(again.log_softmax(-1), log_p0.exp(), q_f, 0.5, top.indices).sum().backward()
    assert torch.allclose(logits.grad, again.grad, atol=1e-12)


@pytest.mark.parametrize("m", [4, 23])
def test_value_and_gradient_vanish_where_the_student_is_the_teacher(m):
    _, log_p0, q_f = draw(2)
    log_p0 = log_p0.double().log_softmax(-1)
    top = q_f.double().topk(m, -1)
    sparse = torch.zeros_like(q_f.double()).scatter(-1, top.indices, top.values)
    q = 0.5 * log_p0.double().exp() + 0.5 * sparse
    logits = q.log().requires_grad_()
    kl = teacher_kl(logits.log_softmax(-1), log_p0.double(), top.indices, top.values, 0.5)
    kl.sum().backward()
    assert kl.abs().max() < 1e-12 and logits.grad.abs().max() < 1e-12


def test_gradient_vanishes_where_forecast_and_policy_agree_and_theta_is_frozen_theta():
    log_pi, _, _ = draw(3)
    logits = log_pi.double().requires_grad_()
    log_pi = logits.log_softmax(-1)
    top = log_pi.detach().exp().topk(23, -1)
    kl = teacher_kl(log_pi, None, top.indices, top.values, 0.5)
    kl.sum().backward()
    assert kl.abs().max() < 1e-12 and logits.grad.abs().max() < 1e-12


def test_frozen_theta_equal_to_theta_is_the_short_form():
    log_pi, _, q_f = draw(4)
    top = q_f.topk(8, -1)
    a = teacher_kl(log_pi, None, top.indices, top.values, 0.3)
    b = teacher_kl(log_pi, log_pi.clone(), top.indices, top.values, 0.3)
    assert torch.allclose(a, b, atol=1e-6)


def test_grows_as_the_student_moves_away():
    _, log_p0, q_f = draw(5)
    top = q_f.topk(23, -1)
    away = torch.zeros(23)
    away[int(q_f[0].argmin())] = 1.0
    values = [
        teacher_kl((log_p0 + step * away).log_softmax(-1), log_p0, top.indices, top.values, 0.5)[0].item()
        for step in (4.0, 6.0, 8.0, 12.0)
    ]
    assert values == sorted(values)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0], [0.0, 0.0, 0.0, 300.0]], requires_grad=True)
    q_f = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    top = q_f.topk(4, -1)
    for log_p0 in (None, torch.tensor([[0.0, 1e4, 0.0, 0.0], [500.0, 0.0, 0.0, 0.0]]).log_softmax(-1)):
        logits.grad = None
        kl = teacher_kl(logits.log_softmax(-1), log_p0, top.indices, top.values, 0.5)
        kl.sum().backward()
        assert torch.isfinite(kl).all() and torch.isfinite(logits.grad).all()


def head_and_rows(seed=0, rows=9, vocabulary=31, width=6):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocabulary, width, generator=generator)
    return Head(weight), torch.randn(rows, width, generator=generator)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_members_are_averaged_uniformly(chunk):
    head, hidden = head_and_rows()
    owner, targets = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4]), torch.tensor([3, 1, 4, 1, 5])
    forecast = mix_members(hidden, owner, targets, head, temperature=0.7, top_m=31, chunk=chunk)
    probs = (hidden @ head.weight.T / 0.7).softmax(-1)
    mean = torch.stack([probs[owner == p].mean(0) for p in range(5)])
    dense = torch.zeros_like(mean).scatter(-1, forecast.ids, forecast.probs)
    assert torch.allclose(dense, mean, atol=1e-6)
    assert torch.allclose(forecast.realised, mean.gather(-1, targets[:, None])[:, 0].log(), atol=1e-5)


def test_top_m_keeps_the_most_likely():
    head, hidden = head_and_rows()
    forecast = mix_members(hidden, torch.arange(9), torch.zeros(9, dtype=torch.long), head, top_m=4)
    probs = (hidden @ head.weight.T).softmax(-1)
    assert torch.equal(forecast.ids, probs.topk(4, -1).indices) and forecast.probs.shape == (9, 4)


@pytest.mark.parametrize("chunk", [2, 100])
@pytest.mark.parametrize("updated", [False, True])
def test_loss_from_hidden_states_equals_the_oracle(chunk, updated):
    head, members = head_and_rows(1, rows=6)
    _, hidden = head_and_rows(2, rows=3)
    _, old = head_and_rows(3, rows=3)
    old_head = Head(head.weight + 0.1)
    targets = torch.tensor([7, 8, 9])
    forecast = mix_members(members, torch.tensor([0, 0, 1, 1, 2, 2]), targets, head, 0.8, top_m=31)
    hidden.requires_grad_()
    reference = (old, old_head) if updated else None
    kl, log_pi = temporal_ensemble_kl(hidden, head, targets, forecast, 0.5, 0.8, reference, chunk)
    temporal_ensemble_loss(kl, 3).backward()

    again = hidden.detach().double().requires_grad_()
    logits = (again @ head.weight.double().T / 0.8).log_softmax(-1)
    p0 = (old @ old_head.weight.T / 0.8).softmax(-1) if updated else logits.detach().exp()
    q_f = torch.zeros(3, 31).scatter(-1, forecast.ids, forecast.probs)
    dense_kl(logits, p0, q_f, 0.5).mean().backward()
    assert torch.allclose(hidden.grad.double(), again.grad, atol=1e-5)
    assert torch.allclose(log_pi.double(), logits.detach().gather(-1, targets[:, None])[:, 0], atol=1e-5)


def test_no_coverage_is_exactly_zero_with_a_graph():
    head, hidden = head_and_rows()
    hidden.requires_grad_()
    none = torch.zeros(0, dtype=torch.long)
    forecast = mix_members(hidden[:0], none, none, head)
    kl, _ = temporal_ensemble_kl(hidden[:0], head, none, forecast, 0.5)
    loss = temporal_ensemble_loss(kl, 0)
    loss.backward()
    assert loss.item() == 0.0 and hidden.grad.abs().max() == 0


def test_the_heads_factors_apply():
    head, hidden = head_and_rows()
    capped = Head(head.weight, torch.ones(31), scale=0.5, softcap=2.0)
    expected = 2.0 * torch.tanh((hidden @ head.weight.T + 1) * 0.5 / 2.0) / 0.9
    assert torch.allclose(capped.logits(hidden, 0.9), expected, atol=1e-6)


def test_scores_in_chunks_equal_one_projection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(projection, "VOCABULARY_CHUNK", 7)
    head, hidden = head_and_rows()
    hidden.requires_grad_()
    targets = torch.arange(9)
    scores = score(hidden, targets, head, 0.7)
    log_p = (hidden @ head.weight.T / 0.7).log_softmax(-1)
    assert torch.allclose(scores.log_probs, log_p.gather(-1, targets[:, None])[:, 0], atol=1e-6)
    assert torch.allclose(scores.entropy, -(log_p.exp() * log_p).sum(-1), atol=1e-6)
    assert torch.equal(scores.top1, log_p.argmax(-1) == targets)
    mine = torch.autograd.grad((scores.log_probs + scores.entropy).sum(), hidden)[0]
    plain = log_p.gather(-1, targets[:, None])[:, 0] - (log_p.exp() * log_p).sum(-1)
    assert torch.allclose(mine, torch.autograd.grad(plain.sum(), hidden)[0], atol=1e-5)


def test_warm_up_and_options():
    options = TemporalEnsembleOptions(weight=0.3, warmup_steps=2)
    assert [options.effective(step) for step in range(4)] == [0.0, 0.0, 0.3, 0.3]
    with pytest.raises(ValueError, match=r"eta must lie in \[0, 1\)"):
        TemporalEnsembleOptions(eta=1.0)


def test_forecast_is_detached():
    head, hidden = head_and_rows()
    forecast = mix_members(hidden.requires_grad_(), torch.arange(9), torch.arange(9), head)
    assert isinstance(forecast, Forecast) and not forecast.probs.requires_grad
