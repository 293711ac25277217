"""Temporal ensemble: what earlier forecasts said of turn t teaches the policy at turn t.

Member of age k: π^k(a_t | h_{t−k}), what the branch at turn t−k gives, in its slot, to the action of turn t. Members
are found by true turn; age 0 is excluded. q^F_t = uniform mean over members. Teacher q_t = (1−η)·p0 + η·q^F_t, with
p0 the policy of the weights θ̄ that collected the batch. L_TE = mean over covered positions of KL(π_θ ‖ q_t).

q^F enters by its M most likely tokens a position. With mass = Σ_M q^F and Z = (1−η) + η·mass:
KL = KL(π‖p0) − log((1−η)/Z) − Σ_{v∈M} π(v)·softplus(log η + log q^F(v) − log(1−η) − log p0(v)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cope_train.objectives.projection import Head, chunked
from cope_train.objectives.records import Branch, Record

CHUNK = 256  # positions; several (chunk, V) float32 tensors live at once


@dataclass(frozen=True)
class TemporalEnsembleOptions:
    """How the teacher is mixed and how strongly it pulls.

    Attributes:
        weight: λ_TE. At 0 everything is measured and nothing is changed (dry run).
        eta: η, the share of the members in the teacher, in [0, 1).
        top_m: M, how many of a position's most likely tokens of q^F are kept.
        warmup_steps: Optimizer steps during which λ_TE counts as 0.
    """

    weight: float = 0.0
    eta: float = 0.5
    top_m: int = 64
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.eta < 1.0:
            raise ValueError(f"eta must lie in [0, 1), got {self.eta}: at 1 the teacher would forget the policy")
        if self.weight < 0 or self.top_m < 1 or self.warmup_steps < 0:
            raise ValueError("weight and warmup_steps must not be negative, and top_m must be at least 1")

    def effective(self, step: int) -> float:
        """λ_TE at an optimizer step (from 0)."""
        return self.weight if step >= self.warmup_steps else 0.0


@dataclass(frozen=True)
class Cover:
    """The action of one turn and the members that speak of it.

    Attributes:
        turn: True turn index t.
        start: First action token in `Record.ids`.
        end: End of the action tokens.
        members: Per member the index of its branch, the first position of the action in `Branch.ids`, and its age.
    """

    turn: int
    start: int
    end: int
    members: tuple[tuple[int, int, int], ...]


def find_covers(record: Record, branches: Sequence[Branch]) -> tuple[list[Cover], int]:
    """Finds the members of every turn.

    A member counts only if its ids equal the rollout's, position by position.

    Args:
        record: The trajectory.
        branches: Its branches.

    Returns:
        The turns with at least one member, and the number of candidates whose ids differ.
    """
    mismatched = 0
    members: dict[int, list[tuple[int, int, int]]] = {}
    actions = {turn.index: (turn.action_start, turn.action_end) for turn in record.turns}
    for b, branch in enumerate(branches):
        for slot in branch.slots:
            if slot.turn <= branch.turn:
                continue
            start, end = actions[slot.turn]
            if branch.ids[slot.action_start : slot.action_end] == record.ids[start:end]:
                members.setdefault(slot.turn, []).append((b, slot.action_start, slot.turn - branch.turn))
            else:
                mismatched += 1
    return [Cover(turn, *actions[turn], tuple(members[turn])) for turn in sorted(members)], mismatched


@dataclass(frozen=True)
class Forecast:
    """q^F at P covered positions, detached.

    Attributes:
        ids: The M most likely tokens, shape (P, M).
        probs: Their probabilities, shape (P, M).
        realised: log q^F of the token that was sampled, shape (P,).
    """

    ids: torch.Tensor
    probs: torch.Tensor
    realised: torch.Tensor


@torch.no_grad()
def mix_members(
    hidden: torch.Tensor,
    owner: torch.Tensor,
    targets: torch.Tensor,
    head: Head,
    temperature: float = 1.0,
    top_m: int = 64,
    chunk: int = CHUNK,
) -> Forecast:
    """Averages the members of every covered position over the full vocabulary and keeps the top M.

    Args:
        hidden: Hidden states that predict the members' tokens, shape (R, H).
        owner: Covered position of each member row, ascending, every position at least once, shape (R,).
        targets: Sampled token of each covered position, shape (P,).
        head: LM head of θ̄.
        temperature: The sampling temperature.
        top_m: M.
        chunk: Positions handled at once.
    """
    counts = torch.bincount(owner, minlength=len(targets))
    ends = counts.cumsum(0).tolist()
    m = min(top_m, head.weight.shape[0])
    results: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for low in range(0, len(targets), chunk):
        high = min(low + chunk, len(targets))
        rows = slice(ends[low - 1] if low else 0, ends[high - 1])
        probs = head.logits(hidden[rows], temperature).softmax(-1)
        mean = probs.new_zeros(high - low, probs.shape[1]).index_add_(0, owner[rows] - low, probs)
        mean /= counts[low:high, None]
        top = mean.topk(m, dim=-1)
        results.append((top.indices, top.values, mean.gather(-1, targets[low:high, None])[:, 0].log()))
    if not results:
        empty = hidden.new_zeros(0, m, dtype=torch.float32)
        return Forecast(empty.long(), empty, empty[:, 0])
    return Forecast(*(torch.cat(column) for column in zip(*results, strict=True)))


def teacher_kl(
    log_pi: torch.Tensor, log_p0: torch.Tensor | None, ids: torch.Tensor, probs: torch.Tensor, eta: float
) -> torch.Tensor:
    """KL(π ‖ q) over the full vocabulary with q = [(1−η)·p0 + η·q^F on its top M] / Z.

    Args:
        log_pi: Student's log-probabilities with gradient, shape (P, V).
        log_p0: Those of θ̄, detached; `None` means θ̄ = θ, so p0 is π itself without gradient.
        ids: Top-M tokens of q^F, shape (P, M).
        probs: Their probabilities, shape (P, M).
        eta: η in [0, 1).

    Returns:
        One KL a position, shape (P,).
    """
    pi = log_pi.exp()
    # Value and gradient of KL(π‖p0) are 0 where p0 is π itself.
    drift = torch.zeros_like(pi[:, 0]) if log_p0 is None else (pi * (log_pi - log_p0)).sum(-1)
    if eta == 0.0:
        return drift
    base = (log_pi if log_p0 is None else log_p0).detach().gather(-1, ids)
    # log1p of the ratio would overflow where p0 underflows.
    gain = F.softplus(math.log(eta) + probs.log() - math.log1p(-eta) - base)
    normaliser = torch.log1p(-eta + eta * probs.sum(-1)) - math.log1p(-eta)
    return drift + normaliser - (pi.gather(-1, ids) * gain).sum(-1)


def temporal_ensemble_kl(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    forecast: Forecast,
    eta: float,
    temperature: float = 1.0,
    reference: tuple[torch.Tensor, Head] | None = None,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(π_θ ‖ q_t) at covered positions.

    Args:
        hidden: Student's hidden states that predict the covered tokens, with gradient, shape (P, H).
        head: Student's LM head.
        targets: Sampled token of each position, shape (P,).
        forecast: q^F at the same positions.
        eta: η.
        temperature: The sampling temperature; student and teacher share it.
        reference: Hidden states and head of θ̄ at the same positions; `None` means θ̄ = θ.
        chunk: Positions handled at once.

    Returns:
        The KL with gradient, and log π of the sampled tokens without; both of shape (P,).
    """

    def one(
        rows: torch.Tensor, token: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, *frozen: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        log_pi = head.logits(rows, temperature).log_softmax(-1)
        log_p0 = None
        if reference is not None:
            with torch.no_grad():
                log_p0 = reference[1].logits(frozen[0], temperature).log_softmax(-1)
        kl = teacher_kl(log_pi, log_p0, ids, probs, eta)
        return kl, log_pi.detach().gather(-1, token[:, None])[:, 0]

    frozen = () if reference is None else (reference[0],)
    kl, log_pi = chunked(one, chunk, hidden, targets, forecast.ids, forecast.probs, *frozen)
    return kl, log_pi


def temporal_ensemble_loss(kl: torch.Tensor, count: float, world_size: int = 1) -> torch.Tensor:
    """L_TE of this rank, to be averaged over ranks by the gradient reduction.

    Args:
        kl: Divergence at this rank's covered positions, shape (P,).
        count: Covered positions in the optimizer-step window over all ranks.
        world_size: Number of ranks.
    """
    return kl.sum() * (world_size / max(count, 1.0))
