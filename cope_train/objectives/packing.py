"""A trajectory and its branches in one sequence: the shared history is computed once.

    row      [ trajectory 0 ........ | branch 0.0 | branch 0.1 | trajectory 1 .... | branch 1.0 | padding ]
    attends    causally to itself      to trajectory 0 below its prefix_end, and causally to itself
    position   0 1 2 ...               prefix_end, prefix_end + 1, ...

Short trajectories share a row, which saves padding. `unpack` lays the same tokens out with one sequence a branch: the
oracle, and the way for models that cannot take such a mask. Both give a `Layout`, so that losses are written once.
Nothing here knows a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from cope_train.objectives.records import Branch, Record

_EVERYWHERE = torch.iinfo(torch.int32).max
_MASK_CELLS = 1 << 26  # cells of a mask that are looked at together


@dataclass(frozen=True)
class Layout:
    """Where every token of a micro-batch lies. Rows R, columns S; a flat index is row·S + column.

    Attributes:
        input_ids: Shape (R, S), padded at the right.
        position_ids: Shape (R, S).
        segment: Trajectory or branch that a token belongs to, -1 for padding, shape (R, S).
        trunk: Segment that a token may look back into, besides its own, shape (R, S).
        limit: Column below which it may do so, shape (R, S).
        trajectories: Flat index of the first token of every trajectory.
        branches: Flat index of the first token of every branch, per trajectory; -1 for one that did not fit.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    segment: torch.Tensor
    trunk: torch.Tensor
    limit: torch.Tensor
    trajectories: list[int]
    branches: list[list[int]]

    def to(self, device: torch.device) -> Layout:
        """Moves the tensors."""
        tensors = (self.input_ids, self.position_ids, self.segment, self.trunk, self.limit)
        return Layout(*(t.to(device, non_blocking=True) for t in tensors), self.trajectories, self.branches)

    def visible(self, rows: Any, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether a query column sees a key column; index tensors are broadcast."""
        own = self.segment[rows, queries] == self.segment[rows, keys]
        back = (self.segment[rows, keys] == self.trunk[rows, queries]) & (keys < self.limit[rows, queries])
        return (queries >= keys) & (own | back)


class _Row:
    """Grows one row, piece by piece."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pieces: list[tuple[int, int, int, int, int]] = []

    def add(self, ids: Sequence[int], position: int, segment: int, trunk: int, limit: int) -> int:
        column = len(self.ids)
        self.ids += ids
        self.pieces.append((len(ids), position - column, segment, trunk, limit))
        return column


def multiple_of_8(length: int) -> int:
    """Rounds a row length up as dense kernels like it."""
    return -(-length // 8) * 8


def pack(
    records: Sequence[Record],
    branches: Sequence[Sequence[Branch]],
    round_up: Callable[[int], int] = multiple_of_8,
    pad_id: int = 0,
) -> Layout:
    """Lays trajectories and their branches out in as few rows as the longest of them allows.

    Args:
        records: Trajectories of the micro-batch; a failed one is laid out without branches.
        branches: Their branches.
        round_up: From the longest row to the row length (FlexAttention: `attention.whole_blocks`).
        pad_id: Fills the rest.
    """
    sizes = [len(r.ids) + sum(len(b.ids) for b in bs) for r, bs in zip(records, branches, strict=True)]
    rows: list[_Row] = []
    places: dict[int, tuple[int, int, list[int]]] = {}
    # First fit by decreasing size: no row grows beyond the longest trajectory.
    for i in sorted(range(len(records)), key=lambda i: -sizes[i]):
        fitting = (r for r, row in enumerate(rows) if len(row.ids) + sizes[i] <= max(sizes))
        r = next(fitting, len(rows))
        if r == len(rows):
            rows.append(_Row())
        places[i] = (r, *_add_tree(rows[r], records[i], branches[i]))
    width = round_up(max(max(sizes), 1))
    return _layout(
        rows,
        width,
        pad_id,
        [places[i][0] * width + places[i][1] for i in range(len(records))],
        [[places[i][0] * width + column for column in places[i][2]] for i in range(len(records))],
    )


def _add_tree(row: _Row, record: Record, branches: Sequence[Branch]) -> tuple[int, list[int]]:
    # Columns are unique in a row, so a segment's first column can name it.
    start = row.add(record.ids, 0, len(row.ids), len(row.ids), _EVERYWHERE)
    columns = [
        row.add(branch.ids, branch.prefix_end, len(row.ids), start, start + branch.prefix_end) for branch in branches
    ]
    return start, columns


def unpack(
    records: Sequence[Record],
    branches: Sequence[Sequence[Branch]],
    round_up: Callable[[int], int] = multiple_of_8,
    pad_id: int = 0,
    max_length: int | None = None,
    trajectories: bool = True,
) -> Layout:
    """Lays every trajectory and every branch out as a sequence of its own.

    Args:
        records: As for `pack`.
        branches: As for `pack`.
        round_up: As for `pack`.
        pad_id: As for `pack`.
        max_length: A longer branch loses the middle of its history, never the prompt.
        trajectories: Whether the trajectories themselves get rows.
    """
    rows: list[_Row] = []
    starts = [-1] * len(records)
    places: list[list[tuple[int, int]]] = [[] for _ in records]

    def add(ids: Sequence[int]) -> int:
        row = _Row()
        row.add(ids, 0, 0, 0, _EVERYWHERE)
        rows.append(row)
        return len(rows) - 1

    for i, record in enumerate(records):
        if trajectories:
            starts[i] = add(record.ids)
        for branch in branches[i]:
            history = shortened(record, branch, max_length)
            places[i].append((-1, 0) if history is None else (add(history + branch.ids), len(history)))
    if not rows:
        add([pad_id])
    width = round_up(max(len(row.ids) for row in rows))
    return _layout(
        rows,
        width,
        pad_id,
        [start * width if start >= 0 else -1 for start in starts],
        [[r * width + column if r >= 0 else -1 for r, column in place] for place in places],
    )


def shortened(record: Record, branch: Branch, max_length: int | None) -> list[int] | None:
    """Returns h_t with its middle cut as `max_length` demands; `None` where even the prompt does not fit."""
    history = record.ids[: branch.prefix_end]
    excess = 0 if max_length is None else len(history) + len(branch.ids) - max_length
    head = min(record.prompt_length, len(history))
    if excess <= 0:
        return history
    return None if excess > len(history) - head else history[:head] + history[head + excess :]


def _layout(
    rows: Sequence[_Row], width: int, pad_id: int, trajectories: list[int], branches: list[list[int]]
) -> Layout:
    shape = (len(rows), width)
    ids, positions = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.long)
    segment, trunk, limit = (torch.full(shape, fill, dtype=torch.int32) for fill in (-1, -1, 0))
    for r, row in enumerate(rows):
        length = len(row.ids)
        ids[r, :length] = torch.tensor(row.ids, dtype=torch.long)
        # Once a row rather than once a token: a micro-batch has tens of thousands of tokens and few pieces.
        sizes, shifts, *values = torch.tensor(row.pieces, dtype=torch.long).view(-1, 5).unbind(1)
        positions[r, :length] = torch.arange(length) + shifts.repeat_interleave(sizes)
        for whole, value in zip((segment, trunk, limit), values, strict=True):
            whole[r, :length] = value.repeat_interleave(sizes)
    return Layout(ids, positions, segment, trunk, limit, trajectories, branches)


def dense_mask(layout: Layout) -> torch.Tensor:
    """The attention mask for SDPA, boolean, shape (R, 1, S, S)."""
    r, s = layout.input_ids.shape
    columns = torch.arange(s, device=layout.segment.device)
    rows = torch.arange(r, device=layout.segment.device)
    return layout.visible(rows[:, None, None], columns[None, :, None], columns[None, None, :])[:, None]


def block_mask(layout: Layout, block: int = 128) -> BlockMask:
    """The attention mask for FlexAttention; S must be a multiple of `block`.

    Which blocks are empty, full or mixed is found row of blocks by row of blocks, without compilation, so that a new
    number of rows or columns costs nothing.
    """
    r, s = layout.input_ids.shape
    device, n = layout.segment.device, s // block
    columns = torch.arange(s, device=device)
    rows = torch.arange(r, device=device)
    some, every = [], []
    # A few at a time: each alone is some ten small kernels, all at once would be a dense mask.
    for queries in columns.split(max(_MASK_CELLS // (r * block * s), 1) * block):
        seen = layout.visible(rows[:, None, None], queries[None, :, None], columns[None, None, :])
        tiles = seen.view(r, -1, block, n, block)
        some.append(tiles.any(4).any(2))
        every.append(tiles.all(4).all(2))
    any_seen, all_seen = torch.cat(some, 1)[:, None], torch.cat(every, 1)[:, None]
    segment, trunk, limit = layout.segment, layout.trunk, layout.limit

    def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        own = segment[b, q] == segment[b, k]
        back = (segment[b, k] == trunk[b, q]) & (k < limit[b, q])
        return (q >= k) & (own | back)

    return BlockMask.from_kv_blocks(
        *_ordered(any_seen & ~all_seen), *_ordered(all_seen), BLOCK_SIZE=block, mask_mod=visible, seq_lengths=(s, s)
    )


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of marked blocks a row, and their indices first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int().contiguous()


def causal_lm(model: Any) -> Any:
    """The Transformers causal language model inside PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@contextmanager
def captured(lm: Any) -> Iterator[list[torch.Tensor]]:
    """Collects the last hidden states, shape (R, S, H), of every forward within the context, with their graph."""
    states: list[torch.Tensor] = []
    backbone = getattr(lm, lm.base_model_prefix)
    handle = backbone.register_forward_hook(lambda _, __, output: states.append(output.last_hidden_state))
    try:
        yield states
    finally:
        handle.remove()


def hidden_states(model: Any, lm: Any, layout: Layout, mask: torch.Tensor | BlockMask | None) -> torch.Tensor:
    """Runs the model on a layout.

    Args:
        model: What to call: the wrapped model in training, so that its gradient hooks run.
        lm: The causal language model inside it.
        layout: On the model's device.
        mask: `dense_mask` or `block_mask` of the layout; `None` where every row is one plain sequence.

    Returns:
        Last hidden states by flat index, shape (R·S, H).
    """
    with captured(lm) as states:
        # One projected position keeps the output connected to every parameter and costs nothing.
        model(
            input_ids=layout.input_ids,
            attention_mask=mask if mask is not None else (layout.segment >= 0).long(),
            position_ids=layout.position_ids,
            use_cache=False,
            logits_to_keep=1,
        )
    return states[-1].flatten(0, 1)
