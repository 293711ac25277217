"""LoRA weights for the sampler: the same as a merge, and the base stays what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from toy import make_model, make_tokenizer

from cope_train.weights import merged_parameters

pytestmark = pytest.mark.train


def lora_model(dtype: torch.dtype) -> Any:
    model = make_model(make_tokenizer()).to(dtype)
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))


def nudge(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.02 * torch.randn_like(parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_equal_a_merge(dtype: torch.dtype) -> None:
    model = lora_model(dtype)
    nudge(model)
    ours = {name: value.clone() for name, value in merged_parameters(model)}
    merged = model.merge_and_unload()
    expected = dict(merged.named_parameters())
    assert set(ours) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value.data, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_two_hundred_syncs_leave_the_base_as_it_was() -> None:
    model = lora_model(torch.bfloat16)
    before = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" not in n}
    for _ in range(200):
        nudge(model)
        for _ in merged_parameters(model):
            pass
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())

    # TRL's way, for comparison: merging into the weights and back changes them.
    for _ in range(20):
        nudge(model)
        model.merge_adapter()
        model.unmerge_adapter()
    assert any(not torch.equal(after[name], value) for name, value in before.items())
