"""From the episodes of a rollout to samples: branches, gates and weights over the groups of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object

from cope_train.objectives.branches import build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.forecasting import (
    Facts,
    balance_factors,
    balanced,
    forecast_gate,
    forecast_weights,
    learnable,
    trajectory_facts,
)
from cope_train.objectives.observation import observation_positions
from cope_train.objectives.placebo import deranged
from cope_train.objectives.records import Branch, Record
from cope_train.objectives.rows import Sample, covered_count


class SampleBuilder:
    """Builds what the objectives of one run need.

    Args:
        args: The run's `ObjectiveConfig`.
        chat: Template pieces of the policy's tokenizer.
    """

    def __init__(self, args: Any, chat: ChatPieces) -> None:
        self.args, self.chat = args, chat
        self.branches, self.forecast = args.branch_options(), args.forecast_options()

    def build(self, records: Sequence[Record], rank: int) -> list[Sample]:
        """Builds the samples of a rank; all ranks call this, with equally many records.

        Args:
            records: Its episodes, in the order of its rows.
            rank: Its number.
        """
        records = [self._placeholder(r) if r.failed else r for r in records]
        branches = [self._branches(r) for r in records]
        learnt = [learnable(r, b, self.forecast) for r, b in zip(records, branches, strict=True)]
        facts = self._facts(records, learnt)
        gate = forecast_gate(facts, self.forecast.gate)
        if self.args.forecast_derange:
            own = gate[rank * len(records) :]
            branches = learnt = deranged([b if keep else [] for b, keep in zip(learnt, own, strict=False)])
            facts = self._facts(records, learnt)
            gate = [keep and f.samples > 0 for keep, f in zip(gate, facts, strict=True)]
        weights = forecast_weights(facts, gate, self.forecast.weights)
        factors = balance_factors(facts, weights) if self.forecast.balance_calls else None
        samples: list[Sample] = []
        for i, record in enumerate(records):
            weight = weights[rank * len(records) + i] if self.args.forecast else 0.0
            # The ensemble needs every branch; forecasting alone only those that it learns from.
            kept = branches[i] if self.args.ensemble else learnt[i] if weight else []
            known = {id(branch) for branch in learnt[i]}
            flags = [id(branch) in known for branch in kept]
            kept = kept if factors is None else [balanced(branch, record, factors) for branch in kept]
            samples.append(Sample(record, kept, weight, flags))
        return samples

    def counts(self, samples: Sequence[Sample]) -> tuple[int, int, int]:
        """Counts target tokens, covered positions and observation tokens."""
        covered = sum(covered_count(s.record, s.branches) for s in samples) if self.args.ensemble else 0
        observed = sum(len(observation_positions(s.record, self.args.observation_cap)) for s in samples)
        return sum(s.forecast_targets() for s in samples), covered, observed

    def _facts(self, records: Sequence[Record], branches: Sequence[Sequence[Branch]]) -> list[Facts]:
        return gather_object([trajectory_facts(r, b, self.forecast) for r, b in zip(records, branches, strict=True)])

    def _branches(self, record: Record) -> list[Branch]:
        wanted = self.args.forecast or self.args.ensemble
        return build_branches(record, self.chat, self.branches) if wanted else []

    def _placeholder(self, record: Record) -> Record:
        """What TRL's batch holds of a failed episode: two tokens without loss."""
        filler = self.chat.turn_end[0]
        return replace(record, ids=[filler] * 2, prompt_length=1, loss_mask=[0, 0], turns=(), observations=())
