"""What the objectives need to know of one rolled-out episode: the seam between `cope_train.rollout` and this package.

Plain Python (ids are lists), so that a record travels in TRL's batch dictionary as a list and between ranks as
an object.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActionTurn:
    """One assistant turn, as token positions in `Record.ids`. All ends are exclusive.

    Attributes:
        index: True turn index, from 0; never renumbered when turns are skipped.
        start: First sampled token of the turn.
        end: End of the sampled tokens (a sampled end-of-turn token included).
        prefix_end: End of the observation message before the turn, without the generation header:
            h_t = ids[:prefix_end].
        block_start: First token of the action in the policy's own format, e.g. of `Action:`.
        block_end: End of that block, e.g. after a closing tag or fence; without the end-of-turn token.
        action_start: First token that overlaps the executed substring.
        action_end: End of the tokens that overlap it; equal to `action_start` where nothing was executed.
        valid: Whether the benchmark could execute the action (`info.action_valid`).
        call: Whether the turn is a tool call (τ²: call or message); `None` where the distinction has no meaning.
        calls: Number of tool calls in the turn; a turn with two or more is neither anchor nor target.
        handoff: Whether the call only hands the customer to a human.
        lines: Number of lines of the executed substring.
    """

    index: int
    start: int
    end: int
    prefix_end: int
    block_start: int
    block_end: int
    action_start: int
    action_end: int
    valid: bool = True
    call: bool | None = None
    calls: int = 1
    handoff: bool = False
    lines: int = 1


@dataclass(frozen=True)
class Record:
    """One trajectory i of group g.

    Attributes:
        ids: Prompt and completion without padding, as sampled (T tokens).
        prompt_length: Number of prompt tokens; `ids[prompt_length:]` is TRL's completion.
        loss_mask: 1 on tokens that the policy sampled and is trained on, length T.
        turns: The action turns in order.
        group: Group key, equal for the G rollouts of one task and unique over ranks within one batch.
        success: `info.success` of the last step.
        failed: Infrastructure failure: the row counts nowhere.
        task_id: Stable task id.
        observations: Token ranges of observation *content* after the prompt, no roles and no template (L_OBS).
    """

    ids: list[int]
    prompt_length: int
    loss_mask: list[int]
    turns: tuple[ActionTurn, ...]
    group: str
    success: bool
    failed: bool = False
    task_id: str = ""
    observations: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Slot:
    """One forecast action inside a branch.

    Attributes:
        turn: True index of the turn whose action this is.
        action_start: First action token, as a position in `Branch.ids`.
        action_end: End of the action tokens.
        start: First token of the slot's target (marker included).
        end: End of the slot's target (end-of-turn token included).
    """

    turn: int
    action_start: int
    action_end: int
    start: int
    end: int


@dataclass(frozen=True)
class Branch:
    """A synthetic continuation of h_t that asks for the next k actions and holds them as target.

    Attributes:
        turn: True index of the anchor turn t.
        prefix_end: The branch attends to trajectory positions below this and to itself; its positions go on from here.
        ids: Cue and target tokens (L).
        loss_mask: 1 on target tokens, length L (m).
        weights: Factor of every token, length L (v); all 1 unless `length_norm` or `balance_calls`.
        slots: The k realised slots in order.
    """

    turn: int
    prefix_end: int
    ids: list[int]
    loss_mask: list[int]
    weights: list[float]
    slots: tuple[Slot, ...]

    @property
    def targets(self) -> int:
        """Number of target tokens, Σ m."""
        return sum(self.loss_mask)
