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
        if not isinstance(attention_mask, BlockMask):
            return function(module, query, key, value, attention_mask, **kwargs)
        options = kernel_options(query, key)
        return flex_attention_forward(module, query, key, value, attention_mask, kernel_options=options, **kwargs)

    AttentionInterface.register(f"packed_{own}", attend)
    AttentionMaskInterface.register(f"packed_{own}", ALL_MASK_ATTENTION_FUNCTIONS[own])
    lm.config._attn_implementation = f"packed_{own}"
    # Gradients of single terms keep the graph for a further backward, which donated buffers do not survive.
    torch._functorch.config.donated_buffer = False
    return True


def kernel_options(query: torch.Tensor, key: torch.Tensor) -> dict[str, int | bool]:
    """Options of FlexAttention's kernel, where its own are known to be slow.

    On Hopper and heads of 64 dimensions the forward pass takes 2.0 ms with eight warps and 3.6 ms with torch 2.11's
    four (8 rows of 7,168 tokens, 9 heads, an H200). A kernel compiled for any length checks the bounds of every block
    unless it is told that there are only whole ones, which `whole_blocks` sees to.

    Args:
        query: (rows, heads, tokens, dimensions).
        key: The same.
    """
    hopper = query.is_cuda and torch.cuda.get_device_capability(query.device)[0] == 9
    options: dict[str, int | bool] = {"fwd_num_warps": 8} if hopper and query.shape[-1] <= 64 else {}
    if query.shape[-2] % BLOCK == 0 and key.shape[-2] % BLOCK == 0:
        options["IS_DIVISIBLE"] = True
    return options


def whole_blocks(length: int) -> int:
    """Rounds a row length up to whole blocks. From its second length on FlexAttention is compiled for any."""
    return -(-length // BLOCK) * BLOCK
