"""Forecasting loss L_AF: cross-entropy on the actions that a branch asks for, on gated and weighted trajectories.

L_AF = Σ m·w·v·CE / Σ m, with m the target mask, w the trajectory's weight, v a token's factor. The denominator is not
weighted: a weighted one would cancel w. Gates and weights look at whole groups, so they take facts of the whole batch
(all ranks); the loss takes this rank's tokens and the global count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from cope_train.objectives.records import Branch, Record

GATES = ("wins", "all", "mixed")
WEIGHTS = ("equal_groups", "cope", "uniform")
MAX_BALANCE = 5.0


@dataclass(frozen=True)
class ForecastOptions:
    """Which trajectories are learnt from, and how much each counts. In brackets the name in CoPE's own launcher.

    Attributes:
        gate: `wins`, `all`, or `mixed`: wins of groups that also lost. [GATE]
        weights: `cope`: 1/m_g per sample, rescaled to mean 1 over samples [GROUP_NORM]; `equal_groups`: every group
            counts the same, whatever the number and length of its wins; `uniform`: every token counts the same.
        require_action: Drop a win that made no tool call but a hand-off to a human. [REQUIRE_ACTION]
        skip_no_call: Drop a branch whose actions hold no tool call. [SKIP_NO_CALL]
        null_tasks: Tasks that a do-nothing agent solves; their trajectories are dropped. [NULL_TASKS_FILE]
        balance_calls: Weigh the first token of call and message slots such that the share of calls among the targets
            equals the policy's own. [BALANCE_CALLS]
    """

    gate: str = "wins"
    weights: str = "equal_groups"
    require_action: bool = False
    skip_no_call: bool = False
    null_tasks: frozenset[str] = field(default=frozenset())
    balance_calls: bool = False

    def __post_init__(self) -> None:
        if self.gate not in GATES:
            raise ValueError(f"gate must be one of {', '.join(GATES)}, got {self.gate!r}")
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}")


@dataclass(frozen=True)
class Facts:
    """What the gate and the weights of other ranks need to know of one trajectory.

    Attributes:
        group: Group key g.
        success: `info.success`.
        failed: Infrastructure failure; in no group.
        eligible: Passes `require_action` and `null_tasks`.
        samples: Number of branches n_i that may be learnt from.
        targets: Their target tokens N_i.
        call_slots: Slots that are tool calls.
        slots: All slots whose kind is known.
        call_turns: The policy's own turns with a tool call.
        turns: The policy's own turns whose kind is known.
    """

    group: str
    success: bool
    failed: bool
    eligible: bool
    samples: int
    targets: int
    call_slots: int = 0
    slots: int = 0
    call_turns: int = 0
    turns: int = 0


def learnable(record: Record, branches: Sequence[Branch], options: ForecastOptions) -> list[Branch]:
    """Returns the branches that `skip_no_call` lets through."""
    if not options.skip_no_call:
        return list(branches)
    calls = {turn.index for turn in record.turns if turn.call}
    return [branch for branch in branches if any(slot.turn in calls for slot in branch.slots)]


def trajectory_facts(record: Record, branches: Sequence[Branch], options: ForecastOptions) -> Facts:
    """Summarises one trajectory and its learnable branches for `forecast_gate` and `forecast_weights`."""
    kind = {turn.index: turn.call for turn in record.turns if turn.call is not None}
    slots = [kind[slot.turn] for branch in branches for slot in branch.slots if slot.turn in kind]
    acted = not kind or any(turn.call and not turn.handoff for turn in record.turns)
    return Facts(
        group=record.group,
        success=record.success,
        failed=record.failed,
        eligible=(acted or not options.require_action) and record.task_id not in options.null_tasks,
        samples=len(branches),
        targets=sum(branch.targets for branch in branches),
        call_slots=sum(map(bool, slots)),
        slots=len(slots),
        call_turns=sum(map(bool, kind.values())),
        turns=len(kind),
    )


def forecast_gate(facts: Sequence[Facts], gate: str) -> list[bool]:
    """Decides which trajectories are distilled.

    Args:
        facts: One entry a trajectory, whole groups together (all ranks).
        gate: See `ForecastOptions.gate`.

    Returns:
        One flag a trajectory; never true for failed ones or ones without a sample.
    """
    lost = {f.group for f in facts if not f.failed and not f.success}

    def passes(f: Facts) -> bool:
        if f.failed or not f.eligible or f.samples == 0:
            return False
        return gate == "all" or (f.success and (gate == "wins" or f.group in lost))

    return [passes(f) for f in facts]


def forecast_weights(facts: Sequence[Facts], kept: Sequence[bool], weights: str) -> list[float]:
    """Computes the weight w of every trajectory; all its target tokens share it.

    With m_g the number of distilled trajectories of group g, n_i samples and N_i target tokens of trajectory i:
    `cope` is 1/m_g, divided by its mean over samples; `equal_groups` is 1/(m_g·N_i), scaled so that Σ m·w = Σ m;
    `uniform` is 1.

    Args:
        facts: As for `forecast_gate`.
        kept: What `forecast_gate` returned.
        weights: See `ForecastOptions.weights`.

    Returns:
        One weight a trajectory, 0 where it is not kept.
    """
    distilled = Counter(f.group for f, keep in zip(facts, kept, strict=True) if keep)

    def raw(f: Facts) -> float:
        if weights == "uniform":
            return 1.0
        return 1.0 / distilled[f.group] / (1.0 if weights == "cope" else f.targets)

    def share(f: Facts) -> int:
        return f.samples if weights == "cope" else f.targets

    pairs = [(raw(f), share(f)) if keep else (0.0, 0) for f, keep in zip(facts, kept, strict=True)]
    total = sum(value * count for value, count in pairs)
    scale = sum(count for _, count in pairs) / total if total else 0.0
    return [value * scale for value, _ in pairs]


def balance_factors(facts: Sequence[Facts], weights: Sequence[float]) -> tuple[float, float]:
    """Computes the factors of a call's and of a message's first token.

    With p the share of calls among the policy's own turns and q their weighted share among the targets: p/q and
    (1−p)/(1−q), at most 5; both 0 where q is 0 or 1, because then the choice cannot be kept neutral.
    """
    turns = sum(f.turns for f in facts if not f.failed)
    total = sum(w * f.slots for f, w in zip(facts, weights, strict=True))
    if not turns or not total:
        return 1.0, 1.0
    p = sum(f.call_turns for f in facts if not f.failed) / turns
    q = sum(w * f.call_slots for f, w in zip(facts, weights, strict=True)) / total
    if q in (0.0, 1.0):
        return 0.0, 0.0
    return min(p / q, MAX_BALANCE), min((1 - p) / (1 - q), MAX_BALANCE)


def balanced(branch: Branch, record: Record, factors: tuple[float, float]) -> Branch:
    """Returns the branch with the first target token of every slot weighed by `balance_factors`."""
    kind = {turn.index: turn.call for turn in record.turns if turn.call is not None}
    weights = list(branch.weights)
    for slot in branch.slots:
        if slot.turn in kind:
            weights[slot.start] *= factors[0] if kind[slot.turn] else factors[1]
    return replace(branch, weights=weights)


def forecast_loss(log_probs: torch.Tensor, weights: torch.Tensor, count: float, world_size: int = 1) -> torch.Tensor:
    """L_AF of this rank, to be averaged over ranks by the gradient reduction.

    Args:
        log_probs: Log-probability of every target token at temperature 1, shape (N,).
        weights: w·v of every target token, shape (N,).
        count: Σ m over the optimizer-step window and all ranks.
        world_size: Number of ranks.

    Returns:
        Scalar; 0 with a graph where this rank has no target token.
    """
    return -(log_probs * weights).sum() * (world_size / max(count, 1.0))
