"""Weights as the sampler needs them, without touching those that are trained, and as they are saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.distributed.tensor import DTensor


@torch.no_grad()
def merged_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a LoRA model's weights with the active adapter added, under the names of the base model.

    Out of place: merging into bf16 weights and back changes the frozen base a little every time (17 % of the weights
    after 200 rounds), and the reference policy with it.

    Args:
        model: A `PeftModel`. Weights in shards (FSDP2, ZeRO's third stage) are gathered one at a time, which all ranks
            have to do together.
    """
    deltas = {
        f"{name}.base_layer.weight": module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and not module.merged
    }
    for name, parameter in model.named_parameters():
        if model.prefix in name or "original_module" in name:
            continue
        module = deltas.get(name)
        for part in ("base_model.model.", "base_layer.", "modules_to_save.default.", "_checkpoint_wrapped_module."):
            name = name.replace(part, "")
        with gathered(parameter, *(module.parameters() if module else ())):
            data = _whole(parameter.data)
            if module is not None:
                delta = sum(_whole(module.get_delta_weight(adapter)).float() for adapter in module.active_adapters)
                data = (data.float() + delta).to(data.dtype)
            yield name, data


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def gathered(*parameters: torch.nn.Parameter) -> Iterator[None]:
    """Has parameters that ZeRO's third stage keeps in shards whole for a while; all ranks call it together."""
    shards = list({id(p): p for p in parameters if hasattr(p, "ds_id")}.values())
    if not shards:
        yield
        return
    from deepspeed import zero

    with zero.GatheredParameters(shards):
        yield


@contextmanager
def whole_weights(trainer: Any) -> Iterator[None]:
    """Has sharded weights gathered for saving: in shards, as checkpoints are, `save_model` writes no model at all."""
    if not trainer.is_fsdp_enabled:
        yield
        return
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    kind = plugin.state_dict_type
    plugin.set_state_dict_type("FULL_STATE_DICT")
    try:
        yield
    finally:
        plugin.set_state_dict_type(kind)
