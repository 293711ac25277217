"""How much each term of the loss pulls: the norm of its own gradient, measured before the joint backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def gradient_norms(
    parts: dict[str, torch.Tensor],
    model: Any,
    early: Mapping[str, Sequence[torch.Tensor | None]] | None = None,
) -> dict[str, float]:
    """Computes the gradient norm of every term on this rank. Costs one backward pass a term; the graph is kept.

    Args:
        parts: The weighted terms of the loss, by name.
        model: Whose trainable parameters are meant.
        early: Gradients of terms that were taken back before, one entry a parameter; they belong to their term.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms: dict[str, float] = {}
    for name, part in parts.items():
        gradients = torch.autograd.grad(part, parameters, retain_graph=True, allow_unused=True)
        before = (early or {}).get(name) or [None] * len(parameters)
        gradients = [a if b is None else b if a is None else a + b for a, b in zip(gradients, before, strict=True)]
        squares = [g.float().square().sum() for g in gradients if g is not None]
        norms[name] = torch.stack(squares).sum().sqrt().item() if squares else 0.0
    return norms
