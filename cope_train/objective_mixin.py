"""Where the objectives enter TRL's trainer: three methods that only call their parent while no objective is on."""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOTrainer

from cope_train.objective_terms import Objectives


class ObjectivesMixin(GRPOTrainer):
    """Adds `objectives` to the loss of a `GRPOTrainer`.

    Attributes:
        objectives: `None` where every objective is off. Set after `GRPOTrainer.__init__`; batches of training must
            then hold `samples`, see `Objectives.samples`.
    """

    objectives: Objectives | None = None

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.objectives and self.model.training and self._buffered_inputs is not before:
            self.objectives.plan(self._buffered_inputs, self.model_wrapped)
        return inputs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if self.objectives and self.objectives.policy_scores is not None:
            return (*self.objectives.policy_scores, None)
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        stock = super()._compute_loss
        if self.objectives and self.model.training:
            return self.objectives.loss(model, inputs, stock)
        return stock(model, inputs)
