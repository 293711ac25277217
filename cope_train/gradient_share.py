"""How much each term of the loss pulls: the norm of its own gradient, measured before the joint backward pass."""

from __future__ import annotations

from typing import Any

import torch


def gradient_norms(parts: dict[str, torch.Tensor], model: Any) -> dict[str, float]:
    """Computes the gradient norm of every term on this rank. Costs one backward pass a term; the graph is kept.

    Args:
        parts: The weighted terms of the loss, by name.
        model: Whose trainable parameters are meant.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms: dict[str, float] = {}
    for name, part in parts.items():
        gradients = torch.autograd.grad(part, parameters, retain_graph=True, allow_unused=True)
        squares = [g.float().square().sum() for g in gradients if g is not None]
        norms[name] = torch.stack(squares).sum().sqrt().item() if squares else 0.0
    return norms
