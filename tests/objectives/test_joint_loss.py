"""The objectives inside TRL's trainer: one loss, one step, and stock GRPO where they are off or only measured."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from objectives_kit import oracle, tiny_model
from peft import LoraConfig
from scripted import CHAT, FULL, GROUPS, Scripted, Stock, script, train

from cope_gym.errors import InputError
from cope_train.objective_passes import Passes, PassOptions
from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.rows import Sample

pytestmark = pytest.mark.train
LORA = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}


STOCK: dict[bool, Any] = {}  # what TRL's trainer makes of it, by whether the whole model is trained


def close(got, expected, tolerance=2e-5):
    for name, value in expected.items():
        assert torch.allclose(got[name], value, atol=tolerance), (name, (got[name] - value).abs().max())


def moved(got, start):
    return any(not torch.equal(got[name], value) for name, value in start.items())


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("dry", ["off", "coefficients 0", "warm-up", "unpacked"])
def test_off_and_dry_runs_are_stock_grpo_bit_for_bit(tmp_path, peft, dry):
    changes = {"max_steps": 2, "beta": 0.1 if peft else 0.0}
    watched = {"forecast": True, "forecast_coef": 0.0, "ensemble": True}
    settings = {
        "off": {},
        "coefficients 0": watched,
        "warm-up": {"ensemble": True, "ensemble_coef": 0.5, "ensemble_warmup_steps": 2},
        "unpacked": watched | {"pack_branches": False},
    }[dry]
    lora = LoraConfig(**peft) if peft else None
    whole = peft is None
    if whole not in STOCK:
        STOCK[whole] = train(tmp_path, Stock, peft=lora, **changes)[:2]
    expected, stock_log = STOCK[whole]
    weights, log, _ = train(tmp_path, peft=lora, **changes, **settings)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    for ours, theirs in zip(log, stock_log, strict=True):
        assert {k: ours[k] for k in ("loss", "grad_norm", "entropy")} == {
            k: theirs[k] for k in ("loss", "grad_norm", "entropy")
        }
        if dry != "off":
            assert ours["ensemble/covered_share"] > 0.2 and ours["ensemble/kl"] > 0


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
def test_packed_equals_unpacked(tmp_path, peft):
    lora = LoraConfig(**peft) if peft else None
    start = train(tmp_path, peft=lora, **FULL, learning_rate=0.0)[0]
    packed, log, _ = train(tmp_path, peft=lora, **FULL, gradient_checkpointing=True)
    unpacked, other, _ = train(tmp_path, peft=lora, **FULL, pack_branches=False, branch_batch_size=3)
    assert moved(packed, start)
    close(packed, unpacked)
    for name in ("loss", "entropy", "forecast/loss", "ensemble/kl", "ensemble/gain_win", "observation/loss"):
        assert log[0][name] == pytest.approx(other[0][name], abs=2e-4), name
    assert log[0]["packing/unpacked_share"] == 0 and other[0]["packing/unpacked_share"] == 1


def test_long_trajectories_run_alone_beside_packed_ones(tmp_path):
    packed, _, _ = train(tmp_path, **FULL)
    some, log, _ = train(tmp_path, **FULL, pack_max_length=400)
    close(some, packed)
    assert 0 < log[0]["packing/unpacked_share"] < 1


@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("limit", [None, 400], ids=["all alone", "some alone"])
def test_a_backward_pass_for_every_few_branches_equals_one_for_all(tmp_path, monkeypatch, peft, limit):
    lora = LoraConfig(**peft) if peft else None
    settings = FULL | {"pack_branches": limit is not None, "pack_max_length": limit, "gradient_share_steps": 1}
    settings |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "branch_batch_size": 2}
    early, log, _ = train(tmp_path, peft=lora, **settings)
    one_graph = Passes.run_alone
    monkeypatch.setattr(
        Passes, "run_alone", lambda self, s, n=0, learn=None, joint=False: one_graph(self, s, n, None, True)
    )
    joint, other, _ = train(tmp_path, peft=lora, **settings)
    close(early, joint, 2e-6)
    for name in ("loss", "forecast/loss", "forecast/exact_age1", "gradient_norm/forecast", "gradient_share/ensemble"):
        assert log[0][name] == pytest.approx(other[0][name], abs=2e-4), name


def test_branches_that_run_alone_leave_no_graph_behind():
    model = tiny_model()
    records = [r for group in GROUPS.values() for r in group if not r.failed]
    samples = [
        Sample(r, bs, float(r.success), [True] * len(bs))
        for r in records
        for bs in [build_branches(r, CHAT, BranchOptions())]
    ]
    passes = Passes(model, torch.device("cpu"), 0, PassOptions(packed=False, batch_size=2))
    alive: list[bool] = []
    alone = passes.run_alone(samples, learn=lambda hidden: alive.append(hidden.states.requires_grad))
    assert not alone.states.requires_grad and alone.learnt
    wins = sum(s.weight > 0 for s in samples)
    assert all(alive) and wins <= len(alive) < passes.chunks(samples), "losses are run without a graph"


@pytest.mark.parametrize("term", ["forecast", "ensemble", "observation"])
def test_terms_add_up(tmp_path, term):
    """One step moves the weights by the sum of what each term does alone."""
    stock, _, _ = train(tmp_path, Stock)
    only = {k: v for k, v in FULL.items() if k.startswith(term)}
    one, log, _ = train(tmp_path, **only)
    twice, _, _ = train(tmp_path, **{k: 2 * v if k.endswith("coef") else v for k, v in only.items()})
    for name, value in stock.items():
        first, second = one[name] - value, twice[name] - value
        assert torch.allclose(2 * first, second, atol=5e-5), name
    assert moved(one, stock)


def test_one_step_is_the_gradient_of_the_float64_oracle(tmp_path):
    """Weights by hand: group a has two wins of N₁ and N₂ targets, group b one (another is failed) of N₃."""
    records = [r for group in GROUPS.values() for r in group if not r.failed]
    branches = [build_branches(r, CHAT, BranchOptions()) for r in records]
    targets = [sum(b.targets for b in bs) for bs in branches]
    wins = [i for i, r in enumerate(records) if r.success]
    assert wins == [0, 2, 5]
    raw = {0: 1 / (2 * targets[0]), 2: 1 / (2 * targets[2]), 5: 1 / targets[5]}
    scale = sum(targets[i] for i in wins) / 2
    samples = [
        Sample(r, b, raw.get(i, 0.0) * scale, [True] * len(b))
        for i, (r, b) in enumerate(zip(records, branches, strict=True))
    ]
    model = tiny_model().double()
    _, forecast, ensemble, observation = oracle(model, samples, 0.5, 0.8)
    added = (
        FULL["forecast_coef"] * forecast + FULL["ensemble_coef"] * ensemble + FULL["observation_coef"] * observation
    )
    expected = dict(zip(dict(model.named_parameters()), torch.autograd.grad(added, model.parameters()), strict=True))
    stock, plain, _ = train(tmp_path, Stock)
    ours, log, _ = train(tmp_path, **FULL, ensemble_top_m=384)
    assert log[0]["loss"] - plain[0]["loss"] == pytest.approx(added.item(), abs=2e-3)  # logged with four digits
    for name, gradient in expected.items():
        step = (stock[name] - ours[name]).double() / 0.5
        assert torch.allclose(step, gradient, atol=1e-4 * gradient.abs().max().item() + 2e-6), name


def test_accumulation_does_not_change_the_loss(tmp_path):
    whole, _, _ = train(tmp_path, **FULL)
    pieces, _, _ = train(tmp_path, **FULL, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    close(pieces, whole)


@pytest.mark.parametrize("packed", [True, False])
def test_several_updates_use_the_teacher_of_the_weights_that_played(tmp_path, packed):
    changes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4, "num_iterations": 2}
    one, log, trainer = train(tmp_path, **FULL, **changes, pack_branches=packed, learning_rate=0.05)
    assert "frozen" in trainer._buffered_inputs[0]
    assert log[0]["clip_ratio/region_mean"] == 0, "the first update starts from the weights that played"
    other, _, _ = train(tmp_path, **FULL, **changes, pack_branches=not packed, learning_rate=0.05)
    close(one, other, 1e-4)


def test_failed_rows_have_no_part_in_the_objectives(tmp_path):
    """Another failed episode in the same place changes nothing, not even a count."""
    other = {"a": GROUPS["a"], "b": [*GROUPS["b"]]}
    other["b"][1] = script(6, 11, False, failed=True)
    one, log, _ = train(tmp_path, **FULL)
    two, again, _ = train(tmp_path, groups=other, **FULL)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert log[0]["packing/token_ratio"] == again[0]["packing/token_ratio"]


def test_a_model_that_cannot_pack_falls_back_with_one_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "cope_train"):
        _, log, _ = train(tmp_path, model="sliding", **FULL)
    said = [r for r in caplog.records if "one by one" in r.message]
    assert len(said) == 1 and "sliding_attention" in said[0].getMessage()
    assert log[0]["packing/unpacked_share"] == 1 and log[0]["ensemble/kl"] > 0


def test_gradient_shares_are_logged(tmp_path):
    _, log, _ = train(tmp_path, **FULL, gradient_share_steps=2, max_steps=3)
    shares = [log[0][f"gradient_share/{name}"] for name in ("policy", "forecast", "ensemble", "observation")]
    assert sum(shares) == pytest.approx(1) and all(share > 0 for share in shares)
    assert "gradient_share/policy" not in log[1] and "gradient_share/policy" in log[2]


def test_measuring_gradient_shares_does_not_change_training(tmp_path):
    plain, _, _ = train(tmp_path, **FULL)
    measured, _, _ = train(tmp_path, **FULL, gradient_share_steps=1)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


def test_separate_step_moves_the_weights_after_the_policy(tmp_path):
    alone = {"forecast": True, "forecast_coef": 0.3, "forecast_separate_step": True}
    stock, _, _ = train(tmp_path, Stock)
    none, _, _ = train(tmp_path, **alone, forecast_lr_scale=0.0)
    assert all(torch.equal(none[name], value) for name, value in stock.items())
    one, log, _ = train(tmp_path, **alone)
    two, _, _ = train(tmp_path, **alone, forecast_lr_scale=2.0)
    assert moved(one, stock)
    for name, value in stock.items():
        assert torch.allclose(2 * (one[name] - value), two[name] - value, atol=2e-5), name
    assert log[0]["forecast/loss"] > 0


def test_separate_step_forgets_what_it_has_learnt_from(tmp_path):
    _, _, trainer = train(tmp_path, forecast=True, forecast_coef=0.3, forecast_separate_step=True, max_steps=3)
    assert len(trainer.objectives.window) == 1
    _, _, joint = train(tmp_path, **FULL, max_steps=2)
    assert joint.objectives.window == []


def test_separate_step_without_targets_is_no_step(tmp_path):
    lost = {"a": [script(2, i, False) for i in range(4)], "b": [script(2, i, i == 0, failed=i == 0) for i in range(4)]}
    settings = {"forecast": True, "forecast_coef": 0.3, "forecast_separate_step": True, "optim": "adamw_torch"}
    stock, _, _ = train(tmp_path, Stock, lost, optim="adamw_torch")
    ours, _, _ = train(tmp_path, groups=lost, **settings)
    assert all(torch.equal(ours[name], value) for name, value in stock.items())


def test_nothing_to_learn_is_a_step_of_stock_size(tmp_path):
    """All lost: forecasting has no target, the ensemble still has covers."""
    lost = {"a": [script(2, i, False) for i in range(4)], "b": [script(1, i, False) for i in range(4)]}
    stock, _, _ = train(tmp_path, Stock, lost)
    ours, log, _ = train(tmp_path, groups=lost, forecast=True, forecast_coef=0.3)
    close(ours, stock)
    assert "forecast/loss" not in log[0] and log[0]["forecast/learnt_share"] == 0


def test_lora_dropout_is_refused(tmp_path):
    with pytest.raises(InputError, match="lora_dropout"):
        train(tmp_path, peft=LoraConfig(**LORA, lora_dropout=0.1), **FULL)


def test_a_stopped_run_trains_stock_grpo_and_still_measures(tmp_path):
    stock, _, _ = train(tmp_path, Stock)

    class Stopped(Scripted):
        def _generate_and_score_completions(self, inputs):
            self.objectives.stopped = True
            return super()._generate_and_score_completions(inputs)

    weights, log, _ = train(tmp_path, Stopped, **FULL | {"observation_coef": 0.0})
    assert all(torch.equal(weights[name], value) for name, value in stock.items())
    assert log[0]["ensemble/kl"] > 0 and log[0]["forecast/loss"] > 0
