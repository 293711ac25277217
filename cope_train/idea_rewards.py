"""Reward functions that ask the policy itself: they bind to a trainer for their forwards.

Every rank runs equally many forwards, whatever its episodes hold. Off by default; named in `idea_rewards`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from trl import GRPOTrainer

from cope_train.objective_passes import Hidden, Passes
from cope_train.objectives.branches import build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.projection import score
from cope_train.objectives.records import Record
from cope_train.objectives.rewards import ensemble_reward, forecast_reward
from cope_train.objectives.rows import CoverTokens, Sample, cover_tokens
from cope_train.objectives.temporal_ensemble import mix_members


class IdeaReward:
    """A reward function of TRL; scores the episodes of the trainer's last rollout.

    Args:
        records: Gives this rank's episodes in the order of the rows.
    """

    name = ""

    def __init__(self, records: Callable[[], Sequence[Record]]) -> None:
        self.__name__ = self.name
        self._records = records

    def bind(self, trainer: GRPOTrainer) -> None:
        """Names the trainer whose policy is asked."""
        args: Any = trainer.args
        tokenizer: Any = trainer.processing_class
        lm = trainer.accelerator.unwrap_model(trainer.model)
        self._trainer, self._args = trainer, args
        self._chat = ChatPieces.probe(tokenizer, args.chat_template_kwargs)
        self._passes = Passes(
            lm, trainer.accelerator.device, tokenizer.pad_token_id, args.pass_options(args.cast_lm_head_to_fp32)
        )
        self._settled = False

    @torch.no_grad()
    def __call__(self, **_: Any) -> list[float | None]:
        """Returns one reward a row; `None` for a failed episode."""
        model, accelerator = self._trainer.model_wrapped, self._trainer.accelerator
        samples = [self._sample(record) for record in self._records()]
        size = self._args.per_device_train_batch_size
        batches = [samples[i : i + size] for i in range(0, len(samples), size)]
        rewards: list[float | None] = []
        with self._trainer.compute_loss_context_manager():
            if not self._settled:
                self._passes.settle(model)
                self._settled = True
            local = torch.tensor([[self._passes.chunks(batch) for batch in batches]], device=accelerator.device)
            chunks = accelerator.gather(local).amax(0).tolist()
            for batch, number in zip(batches, chunks, strict=True):
                run = self._passes.packed if self._passes.packs else self._passes.separate
                hidden = run(model, batch, self._passes.run_alone(batch, number)).whole()
                rewards += [self._reward(hidden, batch, i) for i in range(len(batch))]
        return rewards

    def _sample(self, record: Record) -> Sample:
        branches = build_branches(record, self._chat, self._args.branch_options())
        return Sample(record, branches, 0.0, [True] * len(branches))

    def _reward(self, hidden: Hidden, batch: Sequence[Sample], i: int) -> float | None:
        sample, places = batch[i], hidden.places
        if sample.record.failed:
            return None
        one = type(places)([places.trajectories[i]], [places.branches[i]])
        return self._of(hidden, sample, cover_tokens([sample], one))

    def _of(self, hidden: Hidden, sample: Sample, covers: CoverTokens) -> float:
        raise NotImplementedError


class ForecastReward(IdeaReward):
    """Success × how likely earlier forecasts found what was done; `rewards.forecast_reward`."""

    name = "forecast_reward"

    def _of(self, hidden: Hidden, sample: Sample, covers: CoverTokens) -> float:
        device = hidden.states.device
        member, owner = covers.member_tensors(device)
        _, target = covers.tensors(device)
        log_probs = score(hidden.states[member], target[owner], hidden.head).log_probs
        turn = torch.tensor(covers.turn, device=device).long()[owner]
        return forecast_reward(sample.record.success, [log_probs[turn == t] for t in turn.unique()])


class EnsembleReward(IdeaReward):
    """Success × how much better the mixture of forecasts knew what was done; `rewards.ensemble_reward`."""

    name = "ensemble_reward"

    def _of(self, hidden: Hidden, sample: Sample, covers: CoverTokens) -> float:
        device, temperature = hidden.states.device, self._trainer.temperature
        member, owner = covers.member_tensors(device)
        source, target = covers.tensors(device)
        mixed = mix_members(hidden.states[member], owner, target, hidden.head, temperature, top_m=1)
        log_pi = score(hidden.states[source], target, hidden.head, temperature).log_probs
        return ensemble_reward(sample.record.success, mixed.realised - log_pi)


IDEA_REWARDS: dict[str, type[IdeaReward]] = {kind.name: kind for kind in (ForecastReward, EnsembleReward)}
