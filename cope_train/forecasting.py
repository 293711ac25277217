"""The forecasting loss inside the optimizer step, in its plain form: one sequence a sample, a forward pass of its own.

Gradients join those of the policy in the same accumulation window, which equals adding the losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from cope_train.config import CoPEConfig
from cope_train.episodes import record
from cope_train.objectives.branches import build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.forecasting import forecast_gate, forecast_loss, forecast_weights, trajectory_facts
from cope_train.objectives.packing import causal_lm, hidden_states, unpack
from cope_train.objectives.projection import Head, score
from cope_train.objectives.rows import Places, Sample, forecast_tokens
from cope_train.rollout.driver import Episode
from cope_train.trl_adapter import micro_batches, record_metric


@dataclass
class _Sums:
    """What one optimizer step adds up: Σ CE, correct tokens, tokens, samples."""

    loss: float = 0.0
    correct: float = 0.0
    tokens: float = 0.0
    samples: float = 0.0

    def values(self) -> list[float]:
        return [self.loss, self.correct, self.tokens, self.samples]


class Forecaster:
    """Builds forecast samples of a rollout and adds their gradients.

    Args:
        config: The run.
        chat: Template pieces of the policy's tokenizer.
    """

    def __init__(self, config: CoPEConfig, chat: ChatPieces) -> None:
        self.config = config
        self.chat = chat
        self.branches, self.options = config.branch_options(), config.forecast_options()
        self._sums = _Sums()

    def samples(self, trainer: GRPOTrainer, episodes: Sequence[Episode]) -> list[Sample]:
        """Builds the samples of this rank's episodes; gate and weights look at the episodes of all ranks."""
        rank, group = trainer.accelerator.process_index, trainer.num_generations
        records = [record(e, f"{(rank * len(episodes) + i) // group}") for i, e in enumerate(episodes)]
        branches = [build_branches(r, self.chat, self.branches) for r in records]
        local = [trajectory_facts(r, b, self.options) for r, b in zip(records, branches, strict=True)]
        facts = gather_object(local)
        kept = forecast_gate(facts, self.options.gate)
        weights = forecast_weights(facts, kept, self.options.weights)[rank * len(local) :]
        return [
            Sample(r, b if w else [], w, [True] * len(b) if w else [])
            for r, b, w in zip(records, branches, weights[: len(local)], strict=True)
        ]

    def backward(self, trainer: GRPOTrainer, model: Any) -> torch.Tensor:
        """Adds c_AF times the gradients of the samples of the micro-batch that was just trained on.

        Returns:
            c_AF·L_AF of this micro-batch, detached, to be added to the logged loss.
        """
        current, window, share = micro_batches(trainer)
        pieces = _pieces(current["forecast"], self.config.forecast_batch_size)
        count = sum(sample.forecast_targets() for batch in window for sample in batch["forecast"])
        facts = trainer.accelerator.gather(torch.tensor([[count, len(pieces)]], device=trainer.accelerator.device))
        total = facts[:, 0].sum().item() / share
        pieces += [[]] * (int(facts[:, 1].max()) - len(pieces))  # every rank goes forward and backward equally often
        loss = torch.zeros((), device=trainer.accelerator.device)
        for piece in pieces:
            loss += self._backward_piece(trainer, model, piece, total)
        self._flush(trainer)
        return loss

    def _backward_piece(self, trainer: GRPOTrainer, model: Any, piece: list[Sample], count: float) -> torch.Tensor:
        accelerator = trainer.accelerator
        with trainer.compute_loss_context_manager():
            lm = causal_lm(accelerator.unwrap_model(model))
            layout = unpack(
                [s.record for s in piece],
                [s.branches for s in piece],
                pad_id=trainer.processing_class.pad_token_id,
                max_length=self.config.forecast_max_length,
                trajectories=False,
            ).to(accelerator.device)
            hidden = hidden_states(model, lm, layout, None)
            tokens, _ = forecast_tokens(piece, Places(layout.trajectories, layout.branches))
            source, target = tokens.tensors(accelerator.device)
            scores = score(hidden[source], target, Head.of(lm, trainer.args.cast_lm_head_to_fp32))
            weight = torch.tensor(tokens.weight, device=accelerator.device)
            loss = forecast_loss(scores.log_probs, weight, count, accelerator.num_processes)
        loss = self.config.forecast_coef * loss
        accelerator.backward(loss)
        self._sums.loss -= scores.log_probs.detach().sum().item()
        self._sums.correct += scores.top1.sum().item()
        self._sums.tokens += len(tokens)
        self._sums.samples += sum(len(s.branches) for s in piece)
        return loss.detach()

    def _flush(self, trainer: GRPOTrainer) -> None:
        """At the end of an optimizer step, records what all ranks added up."""
        if not trainer.accelerator.sync_gradients:
            return
        sums = torch.tensor([self._sums.values()], device=trainer.accelerator.device, dtype=torch.float64)
        loss, correct, tokens, samples = trainer.accelerator.gather(sums).sum(0).tolist()
        self._sums = _Sums()
        record_metric(trainer, "forecast/samples", samples)
        if tokens:
            record_metric(trainer, "forecast/loss", loss / tokens)
            record_metric(trainer, "forecast/accuracy", correct / tokens)


def _pieces(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Cuts trajectories into lists of at most `size` branches each."""
    single = [replace(sample, branches=[branch], learnable=[True]) for sample in samples for branch in sample.branches]
    single.sort(key=lambda sample: sample.branches[0].prefix_end)  # near lengths share a batch
    return [single[i : i + size] for i in range(0, len(single), size)]
