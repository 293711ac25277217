"""Branches: h_t + a synthetic user turn that asks for the next k actions + the actions that were really executed.

A branch never happened in the rollout. It is built for wins and losses alike; which of them the forecasting loss
learns from is decided in `forecasting`, because the temporal ensemble needs the losses too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.records import ActionTurn, Branch, Record, Slot

LAYOUTS = ("policy", "turns", "list")
TARGETS = ("all", "calls")


@dataclass(frozen=True)
class BranchOptions:
    """How branches are built.

    Attributes:
        horizon: K, the largest number of actions asked for, the current one included.
        layout: `policy`: k assistant turns in the policy's own action format, without thought. `turns`: bare actions,
            one a turn. `list`: one assistant turn, one action a line, as CoPE published it.
        skip_invalid: Pass over actions that the benchmark could not execute, looking further ahead.
        targets: `all` action turns, or tool `calls` only (benchmarks that tell calls from messages).
        thought: Keep the current turn's thought before slot 0 as context without loss. Later thoughts never: they leak
            o_{t+1}. Layout `policy` only.
        length_norm: Weigh tokens such that every action of a branch counts the same whatever its length.
        max_samples_per_trajectory: Keep only the last so many branches of a trajectory; `None` keeps all.
    """

    horizon: int = 3
    layout: str = "policy"
    skip_invalid: bool = True
    targets: str = "all"
    thought: bool = False
    length_norm: bool = False
    max_samples_per_trajectory: int | None = None

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1, got {self.horizon}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        if self.targets not in TARGETS:
            raise ValueError(f"targets must be one of {', '.join(TARGETS)}, got {self.targets!r}")


def build_branches(record: Record, chat: ChatPieces, options: BranchOptions) -> list[Branch]:
    """Builds the branches of one trajectory.

    Args:
        record: The trajectory. A failed one has no branches.
        chat: Template pieces of the policy's tokenizer.
        options: Horizon, layout and what counts as a target.

    Returns:
        One branch for every anchor turn that has at least one target, in the order of turns.
    """
    if record.failed:
        return []
    branches = [
        _build(record, chat, options, turn, targets)
        for n, turn in enumerate(record.turns)
        if _is_anchor(turn, options) and (targets := _targets(record.turns[n:], options))
    ]
    keep = options.max_samples_per_trajectory
    return branches if keep is None else branches[max(len(branches) - keep, 0) :]


def _is_anchor(turn: ActionTurn, options: BranchOptions) -> bool:
    # Where calls and messages differ, a turn of several calls has no single action to ask for.
    if turn.call is not None and not _has_action(turn):
        return False
    return bool(turn.call) if options.targets == "calls" else True


def _has_action(turn: ActionTurn) -> bool:
    return turn.action_end > turn.action_start and turn.calls <= 1


def _targets(turns: Sequence[ActionTurn], options: BranchOptions) -> list[ActionTurn]:
    """The actions in the horizon; with `skip_invalid` or `calls` the first K that count, however far away."""
    looks_ahead = options.skip_invalid or options.targets == "calls"
    window = turns if looks_ahead else turns[: options.horizon]
    counted = [
        turn
        for turn in window
        if _has_action(turn) and (turn.valid or not options.skip_invalid) and (turn.call or options.targets == "all")
    ]
    return counted[: options.horizon]


def cue_text(k: int, now: bool, layout: str, calls: bool) -> str:
    """Words the request.

    Args:
        k: Number of actions that really follow.
        now: Whether slot 0 is the action of the anchor turn; otherwise (it was invalid) nothing is said of "now".
        layout: See `BranchOptions.layout`.
        calls: Whether only tool calls are asked for.
    """
    noun = ("tool call" if calls else "action") + ("" if k == 1 else "s")
    what = f"your next {noun}" if k == 1 else f"your next {k} {noun}"
    first = "" if not now else " (the one you take now)" if k == 1 else ", the one you take now first"
    how = {"policy": "usual format, no reasoning", "turns": "nothing else", "list": "nothing else"}[layout]
    each = "" if k == 1 else ", one per line" if layout == "list" else ", one per reply"
    return f"Give {what}{first}: {how}{each}."


class _Writer:
    """Appends pieces to a branch and keeps mask and slots in step with the ids."""

    def __init__(self, cue: list[int]) -> None:
        self.ids = list(cue)
        self.mask = [0] * len(cue)
        self.slots: list[Slot] = []

    def add(self, ids: list[int], learn: bool) -> None:
        self.ids += ids
        self.mask += [int(learn)] * len(ids)

    def action(self, before: list[int], action: list[int], after: list[int], turn: int) -> None:
        start = len(self.ids)
        self.add(before + action + after, learn=True)
        first = start + len(before)
        self.slots.append(Slot(turn, first, first + len(action), start, len(self.ids)))


def _build(
    record: Record, chat: ChatPieces, options: BranchOptions, anchor: ActionTurn, targets: list[ActionTurn]
) -> Branch:
    now = targets[0].index == anchor.index
    calls = options.targets == "calls"
    text = cue_text(len(targets), now, options.layout, calls)
    writer = _Writer(chat.cue(text))
    if options.layout == "list":
        _write_list(writer, record.ids, chat, targets)
    else:
        thought = record.ids[anchor.start : anchor.block_start] if options.thought and now else []
        if options.layout == "policy":
            writer.add(thought, learn=False)
        _write_turns(writer, record.ids, chat, options.layout, targets)
    return Branch(
        turn=anchor.index,
        prefix_end=anchor.prefix_end - chat.merge_cut,
        ids=writer.ids,
        loss_mask=writer.mask,
        weights=_length_norm(writer.slots, len(writer.ids)) if options.length_norm else [1.0] * len(writer.ids),
        slots=tuple(writer.slots),
    )


def _write_turns(writer: _Writer, ids: list[int], chat: ChatPieces, layout: str, targets: list[ActionTurn]) -> None:
    glue = chat.between("Next.")
    for j, turn in enumerate(targets):
        before, after = ids[turn.block_start : turn.action_start], ids[turn.action_end : turn.block_end]
        if layout == "turns":
            before, after = [], []
        last = j == len(targets) - 1
        end_of_turn = chat.turn_end[:1] if last else glue[:1]
        writer.action(before, ids[turn.action_start : turn.action_end], after + end_of_turn, turn.index)
        if not last:
            writer.add(glue[1:], learn=False)


def _write_list(writer: _Writer, ids: list[int], chat: ChatPieces, targets: list[ActionTurn]) -> None:
    newline, fence = chat.encode("\n"), chat.encode("```")
    for j, turn in enumerate(targets):
        action = ids[turn.action_start : turn.action_end]
        fenced = turn.lines > 1
        before = fence + newline if fenced else []
        after = newline + fence if fenced else []
        end = chat.turn_end[:1] if j == len(targets) - 1 else newline
        writer.action(before, action, after + end, turn.index)


def _length_norm(slots: Sequence[Slot], length: int) -> list[float]:
    """Returns v = N / (S·n_j) for a token of span j (N target tokens, S spans, n_j the span's length)."""
    total = sum(slot.end - slot.start for slot in slots)
    weights = [1.0] * length
    for slot in slots:
        span = slot.end - slot.start
        weights[slot.start : slot.end] = [total / (len(slots) * span)] * span
    return weights
