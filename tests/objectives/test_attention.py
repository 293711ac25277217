"""The mask decides call by call which attention runs, and both give the same."""

from __future__ import annotations

import pytest
import torch
from objectives_kit import Say, episode, tiny_model

from cope_train.objective_passes import Passes, PassOptions
from cope_train.objectives.attention import accept_block_masks, whole_blocks
from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.packing import block_mask, dense_mask, hidden_states, pack


@torch.no_grad()
def test_flex_and_dense_attention_agree_in_a_model(tokenizer, chat):
    model = tiny_model().eval()
    plain = model(input_ids=torch.arange(20)[None]).logits
    assert accept_block_masks(model) and accept_block_masks(model), "asking twice changes nothing"
    assert torch.equal(model(input_ids=torch.arange(20)[None]).logits, plain), "other forwards are untouched"
    record = episode(tokenizer, chat, [Say("open door"), Say("go to kitchen"), Say("look around")])
    layout = pack([record], [build_branches(record, chat, BranchOptions())], whole_blocks)
    dense = hidden_states(model, model, layout, dense_mask(layout))
    with torch.compiler.set_stance("force_eager"):  # the compiled kernel is for GPUs
        flex = hidden_states(model, model, layout, block_mask(layout))
    real = (layout.segment >= 0).flatten()
    assert torch.allclose(flex[real], dense[real], atol=1e-5)


def test_a_model_without_registered_attention_is_left_alone():
    model = tiny_model()
    model.set_attn_implementation("eager")
    assert not accept_block_masks(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1000, 2047, 2049, 5000, 33333])
def test_rows_have_whole_blocks_only(length):
    padded = whole_blocks(length)
    assert padded % 128 == 0 and 0 <= padded - length < 128


@pytest.mark.parametrize(("implementation", "kind", "packs"), [("eager", "llama", True), ("sdpa", "sliding", False)])
def test_a_small_example_tells_whether_a_model_packs(implementation, kind, packs):
    model = tiny_model(kind)
    model.set_attn_implementation(implementation)
    passes = Passes(model, torch.device("cpu"), 0, PassOptions())
    passes.settle(model)
    assert passes.packs is packs


def test_a_model_that_ignores_the_mask_is_found_out(monkeypatch):
    model = tiny_model()
    passes = Passes(model, torch.device("cpu"), 0, PassOptions())
    monkeypatch.setattr(passes, "_mask", lambda layout: (layout.segment >= 0).long())
    passes.settle(model)
    assert not passes.packs
