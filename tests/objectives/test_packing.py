"""Packed = unpacked = float64 oracle: loss and gradient of every parameter."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from objectives_kit import Say, episode, oracle, tiny_model

from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.forecasting import forecast_loss
from cope_train.objectives.observation import observation_loss
from cope_train.objectives.packing import block_mask, dense_mask, hidden_states, pack, shortened, unpack
from cope_train.objectives.projection import Head, score
from cope_train.objectives.rows import (
    Places,
    Sample,
    cover_tokens,
    forecast_tokens,
    observation_tokens,
    policy_tokens,
)
from cope_train.objectives.temporal_ensemble import mix_members, temporal_ensemble_kl, temporal_ensemble_loss

ETA, TEMPERATURE, HORIZON = 0.4, 0.8, 3
VARIANTS = ["llama", "qwen2", "checkpointing"]


@pytest.fixture(scope="module")
def samples(tokenizer, chat):
    """Unequal lengths and prompts, a loss, a failed row, a turn that is skipped, a row without a second turn."""
    scripts = [
        (
            [Say("open door", thought="I should look"), Say("go to kitchen"), Say("focus on thermometer")],
            "Open.",
            True,
        ),
        (
            [Say("pick up metal pot"), Say("open box", valid=False), Say("go to hall"), Say("open door")],
            "Do it. " * 5,
            False,
        ),
        ([Say("go to kitchen")], "Short.", True),
    ]
    made = []
    for (script, task, success), weight in zip(scripts, (1.5, 0.0, 0.7), strict=True):
        record = episode(tokenizer, chat, script, task=task, success=success)
        branches = build_branches(record, chat, BranchOptions(horizon=HORIZON))
        made.append(Sample(record, branches, weight, [True] * len(branches)))
    failed = replace(episode(tokenizer, chat, scripts[0][0], failed=True), turns=())
    return [*made, Sample(replace(failed, loss_mask=[0] * len(failed.ids)), [])]


def losses(model, lm, samples, layout, mask):
    """All four terms, as the trainer will compute them."""
    hidden = hidden_states(model, lm, layout, mask)
    head, places = Head.of(lm), Places(layout.trajectories, layout.branches)
    source, target = policy_tokens(samples, places)[0].tensors(hidden.device)
    policy = -score(hidden[source], target, head, TEMPERATURE).log_probs.mean()
    learnt, _ = forecast_tokens(samples, places)
    source, target = learnt.tensors(hidden.device)
    forecast = forecast_loss(score(hidden[source], target, head).log_probs, torch.tensor(learnt.weight), len(learnt))
    covers = cover_tokens(samples, places)
    source, target = covers.tensors(hidden.device)
    member, owner = covers.member_tensors(hidden.device)
    mixed = mix_members(hidden[member], owner, target, head, TEMPERATURE, 384)
    kl, _ = temporal_ensemble_kl(hidden[source], head, target, mixed, ETA, TEMPERATURE)
    ensemble = temporal_ensemble_loss(kl, len(covers))
    seen = observation_tokens(samples, places, cap=None)
    source, target = seen.tensors(hidden.device)
    observation = observation_loss(score(hidden[source], target, head).log_probs, len(seen))
    return torch.stack([policy, forecast, ensemble, observation])


def gradients(values, model):
    """Gradient of every parameter for every term."""
    parameters = dict(model.named_parameters())
    return [
        dict(zip(parameters, torch.autograd.grad(v, parameters.values(), retain_graph=True), strict=True))
        for v in values
    ]


def assert_close(got, expected, tolerance):
    for ours, theirs in zip(got, expected, strict=True):
        for name, gradient in ours.items():
            scale = theirs[name].abs().max().item()
            assert torch.allclose(gradient.double(), theirs[name].double(), atol=tolerance * scale + 1e-9), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_unpacked_and_oracle_agree(samples, variant):
    model = tiny_model("llama" if variant == "checkpointing" else variant)
    exact = copy.deepcopy(model).double()
    if variant == "checkpointing":
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    records, branches = [s.record for s in samples], [s.branches for s in samples]
    packed = pack(records, branches)
    unpacked = unpack(records, branches)
    assert len(packed.input_ids) < len(records), "short trajectories share rows"
    one = losses(model, model, samples, packed, dense_mask(packed))
    two = losses(model, model, samples, unpacked, None)
    three = oracle(exact, samples, ETA, TEMPERATURE)
    assert torch.allclose(one, two, atol=1e-5) and torch.allclose(one.double(), three, atol=1e-5)
    assert (three > 0).all(), "every term is at work"
    expected = gradients(three, exact)
    assert_close(gradients(one, model), expected, 1e-4)
    assert_close(gradients(two, model), expected, 1e-4)


def test_a_batch_without_branches_still_goes_backward(samples):
    model = tiny_model("llama")
    alone = [samples[-1]]
    layout = pack([alone[0].record], [[]])
    values = losses(model, model, alone, layout, dense_mask(layout))
    values[1:].sum().backward()
    assert values[1:].tolist() == [0, 0, 0]
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_branches_see_their_history_and_themselves_only(samples):
    layout = pack([s.record for s in samples], [s.branches for s in samples])
    mask = dense_mask(layout)[:, 0]
    width = layout.input_ids.shape[1]
    for i, sample in enumerate(samples):
        row, start = divmod(layout.trajectories[i], width)
        for branch, first in zip(sample.branches, layout.branches[i], strict=True):
            column = first - row * width
            for offset in (0, len(branch.ids) - 1):
                seen = mask[row, column + offset].nonzero()[:, 0].tolist()
                own = range(column, column + offset + 1)
                assert seen == [*range(start, start + branch.prefix_end), *own]
            assert layout.position_ids[row, column].item() == branch.prefix_end
        end = start + len(sample.record.ids) - 1
        assert mask[row, end].nonzero()[:, 0].tolist() == list(range(start, end + 1))


@pytest.mark.parametrize("block", [8, 16])
def test_block_mask_is_the_dense_mask(samples, block):
    layout = pack(
        [s.record for s in samples], [s.branches for s in samples], round_up=lambda n: -(-n // block) * block
    )
    dense, blocks = dense_mask(layout), block_mask(layout, block)
    rows, width = layout.input_ids.shape
    columns = torch.arange(width)
    grid = blocks.mask_mod(torch.arange(rows)[:, None, None], torch.tensor(0), columns[:, None], columns[None])
    assert torch.equal(grid, dense[:, 0])
    tiles = dense.view(rows, 1, width // block, block, width // block, block)
    assert torch.equal(blocks.to_dense().bool(), tiles.any(5).any(3)), "no block with a visible key is left out"


def test_flex_attention_takes_the_block_mask(samples):
    from torch.nn.attention.flex_attention import flex_attention

    layout = pack([s.record for s in samples], [s.branches for s in samples], round_up=lambda n: -(-n // 16) * 16)
    rows, width = layout.input_ids.shape
    q, k, v = torch.randn(3, rows, 2, width, 16)
    flex = flex_attention(q, k, v, block_mask=block_mask(layout, 16))
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(layout))
    real = (layout.segment >= 0)[:, None, :, None]
    assert torch.allclose(flex * real, dense * real, atol=1e-5)


def test_unpacked_cuts_the_middle_never_the_prompt(samples):
    record, branch = samples[1].record, samples[1].branches[-1]
    whole = record.ids[: branch.prefix_end]
    assert shortened(record, branch, None) == whole == shortened(record, branch, len(whole) + len(branch.ids))
    short = shortened(record, branch, len(whole) + len(branch.ids) - 7)
    assert short[: record.prompt_length] == whole[: record.prompt_length]
    assert len(short) == len(whole) - 7 and short[-5:] == whole[-5:]
    assert shortened(record, branch, record.prompt_length) is None
    layout = unpack([record], [samples[1].branches], max_length=record.prompt_length + 20)
    assert -1 in layout.branches[0]
