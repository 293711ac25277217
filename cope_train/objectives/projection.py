"""From hidden states to log-probabilities, for chosen rows only and in chunks: full-vocabulary logits never add up.

A chunk's logits live for that chunk's forward, and again for its backward, which computes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from trl.kernels import ChunkedLogProbFunction

VOCABULARY_CHUNK = 32768  # columns of the LM head that are projected at once, as in TRL


@dataclass(frozen=True)
class Head:
    """The LM head of a model as a function of hidden states.

    Attributes:
        weight: Shape (V, H).
        bias: Shape (V,) or `None`.
        scale: Factor of the logits (Cohere, Granite, Falcon-H1).
        softcap: Soft cap of the logits (Gemma 2), or `None`.
        fp32: Whether the projection itself runs in float32.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    fp32: bool = False

    @classmethod
    def of(cls, model: Any, fp32: bool = False) -> Head:
        """Takes the head of a Transformers causal language model (unwrapped; sharded weights are gathered)."""
        layer = model.get_output_embeddings()
        config = model.config.get_text_config()
        weight, bias = _gathered(layer.weight), _gathered(layer.bias)
        return cls(weight, bias, logit_scale(config), getattr(config, "final_logit_softcapping", None), fp32)

    def logits(self, hidden: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        """Projects rows.

        Args:
            hidden: Shape (N, H).
            temperature: Divides the logits.

        Returns:
            Float32 logits, shape (N, V).
        """
        weight, bias = self.weight, self.bias
        if self.fp32:
            hidden, weight, bias = hidden.float(), weight.float(), None if bias is None else bias.float()
        logits = F.linear(hidden.to(weight.dtype), weight, bias).float() * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits / temperature

    def frozen(self) -> Head:
        """A copy that later optimizer steps cannot change; shares memory where nothing trains the head."""
        keep = [p if p is None or not p.requires_grad else p.detach().clone() for p in (self.weight, self.bias)]
        return Head(keep[0], keep[1], self.scale, self.softcap, self.fp32)  # pyright: ignore[reportArgumentType]


def _gathered(parameter: Any) -> Any:
    """The whole of a parameter whose shards a module's own forward would have gathered; a collective call."""
    if isinstance(parameter, DTensor):
        return parameter.full_tensor()
    if (status := getattr(parameter, "ds_status", None)) is not None:  # ZeRO's third stage
        # Persistent ones stay whole until the next optimizer step, through the backward pass and its recomputation.
        parameter.ds_persist = True
        if status.name != "AVAILABLE":
            parameter.all_gather()
    return parameter


def logit_scale(config: Any) -> float:
    """The factor that a model family puts on its logits, under the names that Transformers gives it."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if (value := getattr(config, name, None)) is not None:
            return float(value)
    divisor = getattr(config, "logits_scaling", None)
    if divisor is None:
        return 1.0
    return float(divisor) if config.model_type == "hyperclovax" else 1.0 / float(divisor)


@dataclass(frozen=True)
class Scores:
    """What is known of N predicted tokens.

    Attributes:
        log_probs: Log-probability of each token, with gradient, shape (N,).
        entropy: Entropy of each distribution, with gradient, shape (N,).
        top1: Whether the token is the most likely one, shape (N,).
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    top1: torch.Tensor


def score(hidden: torch.Tensor, targets: torch.Tensor, head: Head, temperature: float = 1.0) -> Scores:
    """Scores the token that each hidden state predicts, by the kernel that TRL's own policy loss uses.

    Args:
        hidden: Hidden states of the positions *before* the tokens, shape (N, H).
        targets: Token ids, shape (N,).
        head: The LM head.
        temperature: Divides the logits.
    """
    context = torch.autocast(hidden.device.type, enabled=False) if head.fp32 else nullcontext()
    with context:
        log_probs, entropy, _, _, top1 = ChunkedLogProbFunction.apply(
            hidden.float() if head.fp32 else hidden.to(head.weight.dtype),
            head.weight,
            head.bias,
            targets,
            temperature,
            VOCABULARY_CHUNK,
            head.softcap,
            head.scale,
            ("entropy", "is_top1"),
        )
    return Scores(log_probs, entropy, top1)


def chunked(
    function: Callable[..., tuple[torch.Tensor, ...]], chunk: int, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Applies a row-wise function chunk by chunk, recomputing each chunk in the backward pass."""
    # An empty batch still makes one call, so that the result keeps its graph (all ranks go backward alike).
    pieces = zip(*(t.split(chunk) for t in tensors), strict=True)
    results = [checkpoint(function, *piece, use_reentrant=False) for piece in pieces]
    return tuple(torch.cat(column) for column in zip(*results, strict=True))
