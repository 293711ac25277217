"""Which hidden states predict which tokens: from records, branches and their places to index tensors.

The hidden state of a position predicts the token after it, so a token's *source* is the position before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from cope_train.objectives.observation import observation_positions
from cope_train.objectives.records import Branch, Record
from cope_train.objectives.temporal_ensemble import Cover, find_covers


@dataclass(frozen=True)
class Sample:
    """One row of the batch, as the objectives see it.

    Attributes:
        record: The trajectory.
        branches: Its branches; those that the losses of this run need.
        weight: w of the forecasting loss, 0 where the gate keeps it out.
        learnable: Per branch whether the forecasting loss may learn from it (`skip_no_call`).
    """

    record: Record
    branches: list[Branch]
    weight: float = 0.0
    learnable: list[bool] = field(default_factory=list[bool])

    def forecast_targets(self) -> int:
        """Target tokens that the forecasting loss counts."""
        pairs = zip(self.branches, self.learnable, strict=True)
        return sum(branch.targets for branch, learn in pairs if learn) if self.weight else 0


@dataclass(frozen=True)
class Places:
    """Where the hidden states of a micro-batch lie in one flat tensor.

    Attributes:
        trajectories: Index of the first token of every trajectory.
        branches: Index of the first token of every branch, per trajectory; -1 for one that did not fit.
    """

    trajectories: list[int]
    branches: list[list[int]]


@dataclass
class Tokens:
    """Predicted tokens: source index and token id, in step."""

    source: list[int] = field(default_factory=list[int])
    target: list[int] = field(default_factory=list[int])

    def add(self, first: int, ids: Sequence[int], positions: Iterable[int]) -> None:
        """Adds tokens of a sequence whose token 0 has the index `first`."""
        places = list(positions)
        self.source += [first - 1 + place for place in places]
        self.target += [ids[place] for place in places]

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns sources and targets, both of shape (N,)."""
        source, target = (torch.tensor(values, dtype=torch.long) for values in (self.source, self.target))
        return source.to(device, non_blocking=True), target.to(device, non_blocking=True)

    def __len__(self) -> int:
        return len(self.target)


def policy_tokens(samples: Sequence[Sample], places: Places) -> tuple[Tokens, list[tuple[int, int]]]:
    """Tokens that the policy sampled, and their (row, completion column) in TRL's batch."""
    tokens, cells = Tokens(), []
    for row, (sample, first) in enumerate(zip(samples, places.trajectories, strict=True)):
        record = sample.record
        positions = [p for p, m in enumerate(record.loss_mask) if m]
        tokens.add(first, record.ids, positions)
        cells += [(row, p - record.prompt_length) for p in positions]
    return tokens, cells


def observation_tokens(samples: Sequence[Sample], places: Places, cap: int | None) -> Tokens:
    """Observation content of every trajectory."""
    tokens = Tokens()
    for sample, first in zip(samples, places.trajectories, strict=True):
        tokens.add(first, sample.record.ids, observation_positions(sample.record, cap))
    return tokens


@dataclass
class ForecastTokens(Tokens):
    """Target tokens of branches.

    Attributes:
        weight: w·v of every token.
        slot: Number of the slot that a token's action belongs to, -1 for tokens around the action.
        ages: Age of every slot, by its number.
        won: Whether the slot's trajectory was a success, by its number.
    """

    weight: list[float] = field(default_factory=list[float])
    slot: list[int] = field(default_factory=list[int])
    ages: list[int] = field(default_factory=list[int])
    won: list[bool] = field(default_factory=list[bool])


def forecast_tokens(samples: Sequence[Sample], places: Places) -> tuple[ForecastTokens, ForecastTokens]:
    """Target tokens that the forecasting loss learns from, and those that are only looked at."""
    learnt, watched = ForecastTokens(), ForecastTokens()
    for sample, firsts in zip(samples, places.branches, strict=True):
        for branch, learn, first in zip(sample.branches, sample.learnable, firsts, strict=True):
            if first >= 0:
                _add_branch(learnt if learn and sample.weight else watched, sample, branch, first)
    return learnt, watched


def _add_branch(tokens: ForecastTokens, sample: Sample, branch: Branch, first: int) -> None:
    positions = [p for p, m in enumerate(branch.loss_mask) if m]
    tokens.add(first, branch.ids, positions)
    tokens.weight += [sample.weight * branch.weights[p] for p in positions]
    numbers = {}
    for slot in branch.slots:
        numbers.update(dict.fromkeys(range(slot.action_start, slot.action_end), len(tokens.ages)))
        tokens.ages.append(slot.turn - branch.turn)
        tokens.won.append(sample.record.success)
    tokens.slot += [numbers.get(p, -1) for p in positions]


@dataclass
class CoverTokens(Tokens):
    """Covered positions of the trajectories and the members that speak of them.

    Attributes:
        member: Source index of every member row.
        owner: Covered position that a member row speaks of, ascending.
        won: Whether the position's trajectory was a success.
        turn: Turn of every position, in one trajectory its true index.
        actions: Action tokens of all trajectories, covered or not.
        mismatched: Candidates that are no members because their ids differ.
        members: Members in all, counted per turn.
        turns: Turns with at least one member.
    """

    member: list[int] = field(default_factory=list[int])
    owner: list[int] = field(default_factory=list[int])
    won: list[bool] = field(default_factory=list[bool])
    turn: list[int] = field(default_factory=list[int])
    actions: int = 0
    mismatched: int = 0
    members: int = 0
    turns: int = 0

    def member_tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the source and the owner of every member row, both of shape (R,)."""
        return torch.tensor(self.member, device=device).long(), torch.tensor(self.owner, device=device).long()


def cover_tokens(samples: Sequence[Sample], places: Places) -> CoverTokens:
    """Finds what the temporal ensemble compares."""
    tokens = CoverTokens()
    for sample, first, branch_firsts in zip(samples, places.trajectories, places.branches, strict=True):
        if sample.record.failed:
            continue
        covers, mismatched = find_covers(sample.record, sample.branches)
        tokens.mismatched += mismatched
        tokens.actions += sum(turn.action_end - turn.action_start for turn in sample.record.turns)
        for cover in covers:
            _add_cover(tokens, sample.record, cover, first, branch_firsts)
    return tokens


def _add_cover(tokens: CoverTokens, record: Record, cover: Cover, first: int, branch_firsts: list[int]) -> None:
    starts = [branch_firsts[b] + start for b, start, _ in cover.members if branch_firsts[b] >= 0]
    if not starts:
        return
    tokens.members += len(starts)
    tokens.turns += 1
    for offset, position in enumerate(range(cover.start, cover.end)):
        tokens.member += [start + offset - 1 for start in starts]
        tokens.owner += [len(tokens)] * len(starts)
        tokens.add(first, record.ids, [position])
        tokens.won.append(record.success)
        tokens.turn.append(cover.turn)


def covered_count(record: Record, branches: Sequence[Branch]) -> int:
    """Number of covered positions of a trajectory, before any branch is left out for its length."""
    return 0 if record.failed else sum(cover.end - cover.start for cover in find_covers(record, branches)[0])
