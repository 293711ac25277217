"""CoPE's published form of the forecasting loss: an Adam step of its own after the policy's.

One step for all samples of the policy's step. Adam divides the coefficient away but for its moments, which both steps
share; `forecast_lr_scale` is the dose. Kept for comparison: in the joint loss the coefficient means what it says.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from cope_train.objective_terms import Objectives


class SeparateStep(TrainerCallback):
    """Runs after every optimizer step.

    Args:
        objectives: Of the trainer.
    """

    def __init__(self, objectives: Objectives) -> None:
        self.objectives = objectives

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forgets the micro-batches of the step before."""
        self.objectives.window.clear()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Learns from the micro-batches of the step that has just been made."""
        window, trainer = self.objectives.window, self.objectives.trainer
        # Without a target on any rank there is no step: Adam's momentum would move the weights all the same.
        if not window or window[0]["counts"].forecast == 0 or self.objectives.stopped:
            return
        optimizer: Any = trainer.optimizer
        for inputs in window:
            with trainer.compute_loss_context_manager():
                loss = self.objectives.forecast_alone(trainer.model_wrapped, inputs)
            trainer.accelerator.backward(loss)
        norm = trainer.accelerator.clip_grad_norm_(trainer.model_wrapped.parameters(), args.max_grad_norm or 1.0)
        if torch.isfinite(torch.as_tensor(norm)):
            rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * args.forecast_lr_scale
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        optimizer.zero_grad()
        self.objectives.flush()
