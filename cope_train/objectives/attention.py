"""FlexAttention for packed rows, the model's own attention for everything else, decided call by call by the mask.

The choice cannot be a context around the forward: gradient checkpointing runs layers again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BLOCK = 128


def accept_block_masks(lm: Any) -> bool:
    """Makes a model take `BlockMask`s beside the masks that it takes anyhow.

    Args:
        lm: A Transformers causal language model.

    Returns:
        Whether it does; not where its attention is not one of Transformers' registered functions (e.g. `eager`).
    """
    own = lm.config._attn_implementation
    if own.startswith("packed_"):
        return True
    if own not in ALL_ATTENTION_FUNCTIONS or own not in ALL_MASK_ATTENTION_FUNCTIONS or not lm._supports_flex_attn:
        return False
    function = ALL_ATTENTION_FUNCTIONS[own]

    def attend(module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        chosen = flex_attention_forward if isinstance(attention_mask, BlockMask) else function
        return chosen(module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register(f"packed_{own}", attend)
    AttentionMaskInterface.register(f"packed_{own}", ALL_MASK_ATTENTION_FUNCTIONS[own])
    lm.config._attn_implementation = f"packed_{own}"
    # Gradients of single terms keep the graph for a further backward, which donated buffers do not survive.
    torch._functorch.config.donated_buffer = False
    return True


def bucket(length: int, block: int = BLOCK) -> int:
    """Rounds a row length up such that few lengths occur (each is compiled once) and at most an eighth is padding."""
    step = max(block, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step
