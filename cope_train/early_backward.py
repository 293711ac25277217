"""Backward passes of the forecasting loss on branches that are run alone, before the joint one.

Their gradients add up in `.grad` as those of micro-batches do. Ranks reduce them in the joint pass: until the wrapped
model's own forward, its hooks do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cope_train.objective_passes import Hidden, Learn


class EarlyBackward:
    """Those of one micro-batch.

    Args:
        loss: Loss of some branches, from their states and the micro-batch.
        accelerator: Makes the backward passes.
        model: Whose gradients are meant.
        measuring: Whether `gradients` are wanted.

    Attributes:
        value: What these passes have added to the loss.
        gradients: Their gradient, one entry a trainable parameter.
    """

    def __init__(
        self, loss: Callable[[Hidden, dict[str, Any]], torch.Tensor], accelerator: Any, model: Any, measuring: bool
    ) -> None:
        self.loss, self.accelerator, self.measuring = loss, accelerator, measuring
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.value: torch.Tensor | float = 0.0
        self.gradients: list[torch.Tensor | None] = []

    def learn(self, inputs: dict[str, Any], coefficient: float) -> Learn:
        """Returns what `Passes.run_alone` calls."""

        def run(hidden: Hidden) -> None:
            loss = coefficient * self.loss(hidden, inputs)
            self.value = self.value + loss.detach()
            before = self._take() if self.measuring else []
            with torch.autocast(hidden.states.device.type, enabled=False):
                self.accelerator.backward(loss)
            if self.measuring:
                own = self._take()
                self.gradients = _sums(self.gradients or [None] * len(own), own)
                for p, gradient in zip(self.parameters, _sums(before, own), strict=True):
                    p.grad = gradient

        return run

    def _take(self) -> list[torch.Tensor | None]:
        taken = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return taken


def _sums(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)]
