"""Forward passes of the objectives: trajectories with their branches packed, or one sequence a branch.

Every pass ends in `Hidden`: states in one flat tensor and where the tokens lie in it. Losses do not know which it was.

Branches that are not packed run some at a time, before their trajectories: what they teach is taken back through each
graph while it lives, so that never more than one is in memory. What is kept are their last states, for the ensemble,
whose members have no gradient.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from cope_train.objectives.attention import BLOCK, accept_block_masks, whole_blocks
from cope_train.objectives.packing import (
    Layout,
    block_mask,
    causal_lm,
    dense_mask,
    hidden_states,
    multiple_of_8,
    pack,
    unpack,
)
from cope_train.objectives.projection import Head
from cope_train.objectives.records import Branch, Record
from cope_train.objectives.rows import Places, Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hidden:
    """Last hidden states of a micro-batch.

    Attributes:
        states: Shape (N, H).
        places: Where trajectories and branches begin in it.
        head: The LM head that belongs to them.
        alone: Branches that were run before; `places` holds -1 for them.
    """

    states: torch.Tensor
    places: Places
    head: Head
    alone: Alone | None = None

    def whole(self) -> Hidden:
        """The same with the branches that were run alone at their places."""
        if self.alone is None:
            return self
        offset, alone = len(self.states), self.alone
        branches = [
            [place + offset if place >= 0 else own for own, place in zip(owns, places, strict=True)]
            for owns, places in zip(self.places.branches, alone.branches, strict=True)
        ]
        states = torch.cat([self.states, alone.states])
        return Hidden(states, Places(self.places.trajectories, branches), self.head)


@dataclass(frozen=True)
class Alone:
    """Branches that were run on their own.

    Attributes:
        states: States of their tokens, shape (N, H).
        branches: Where each begins in it, per trajectory; -1 for the others.
        learnt: Whether what they teach has been taken back already.
        tie: 0, and depends on all of their passes: with it in the loss, all ranks go back through equally many.
    """

    states: torch.Tensor
    branches: list[list[int]]
    learnt: bool = False
    tie: torch.Tensor | None = None


Learn = Callable[[Hidden], None]


@dataclass(frozen=True)
class PassOptions:
    """How branches are run.

    Attributes:
        packed: Pack them behind their trajectory, where the model can.
        packed_max_length: A trajectory that is longer with its branches has them run one by one; `None`: no limit.
        max_length: Longest sequence of a branch that is run on its own; the middle of its history is cut.
        batch_size: Branches run at once when they are not packed.
        fp32_head: Project in float32 (TRL's `cast_lm_head_to_fp32`).
    """

    packed: bool = True
    packed_max_length: int | None = None
    max_length: int | None = None
    batch_size: int = 8
    fp32_head: bool = False


class Passes:
    """Runs one model on samples.

    Args:
        lm: The causal language model; PEFT's wrapper around it or none, but no parallel wrapper.
        device: Where it lives.
        pad_id: Padding token.
        options: See `PassOptions`.
    """

    def __init__(self, lm: Any, device: torch.device, pad_id: int, options: PassOptions) -> None:
        self.lm = causal_lm(lm)
        self.device = device
        self.pad_id = pad_id
        self.options = options
        self.packs = options.packed
        self.flex = options.packed and device.type == "cuda" and accept_block_masks(self.lm)

    def settle(self, model: Any) -> None:
        """Finds out by a small example whether the model can pack; warns once where it cannot. All ranks call this."""
        if self.packs and (reason := self._mismatch(model)):
            logger.warning("branches are run one by one, which costs several times as much: %s", reason)
            self.packs = False

    def fits(self, sample: Sample) -> bool:
        """Whether a trajectory's branches are packed behind it."""
        limit = self.options.packed_max_length
        length = len(sample.record.ids) + sum(len(branch.ids) for branch in sample.branches)
        return self.packs and (limit is None or length <= limit)

    def alone(self, samples: Sequence[Sample]) -> list[tuple[int, int]]:
        """Numbers (sample, branch) of the branches that are run one by one."""
        return [(i, b) for i, s in enumerate(samples) if not self.fits(s) for b in range(len(s.branches))]

    def chunks(self, samples: Sequence[Sample]) -> int:
        """How many further forwards that takes."""
        return -(-len(self.alone(samples)) // self.options.batch_size)

    def packed(self, model: Any, samples: Sequence[Sample], alone: Alone | None = None) -> Hidden:
        """Runs trajectories and the branches that fit behind them.

        Args:
            model: What to call, with its parallel wrapper.
            samples: The micro-batch.
            alone: Its other branches.
        """
        together = [s.branches if self.fits(s) else [] for s in samples]
        layout = self._lay_out([s.record for s in samples], together).to(self.device)
        states = hidden_states(model, self.lm, layout, self._mask(layout))
        firsts = [
            list(row) if row else [-1] * len(s.branches) for row, s in zip(layout.branches, samples, strict=True)
        ]
        return self._hidden(states, Places(layout.trajectories, firsts), alone)

    def beside(
        self, states: torch.Tensor, prompt_width: int, samples: Sequence[Sample], alone: Alone | None = None
    ) -> Hidden:
        """Takes trajectories from the stock forward.

        Args:
            states: Last hidden states of TRL's batch (left-padded prompts, completions), shape (B, P+C, H).
            prompt_width: P.
            samples: The micro-batch.
            alone: Its branches.
        """
        width = states.shape[1]
        firsts = [i * width + prompt_width - s.record.prompt_length for i, s in enumerate(samples)]
        return self._hidden(states.flatten(0, 1), Places(firsts, _nowhere(samples)), alone)

    def separate(self, model: Any, samples: Sequence[Sample], alone: Alone | None = None) -> Hidden:
        """Runs trajectories apart from TRL's batch."""
        records = [s.record for s in samples]
        layout = unpack(records, [[] for _ in samples], pad_id=self.pad_id).to(self.device)
        states = hidden_states(model, self.lm, layout, None)
        return self._hidden(states, Places(layout.trajectories, _nowhere(samples)), alone)

    def run_alone(
        self, samples: Sequence[Sample], chunks: int = 0, learn: Learn | None = None, joint: bool = False
    ) -> Alone:
        """Runs the branches that are not packed.

        Args:
            samples: The micro-batch.
            chunks: Forwards to make, at least `chunks(samples)`; equal on all ranks.
            learn: Called with the states of some branches while their graph lives, where one of them is to be learnt
                from; takes it back by a backward pass of its own.
            joint: Keep the graph instead, recomputed in one later backward pass. For weights that are sharded, whose
                gradients are reduced in every backward pass.
        """
        rest, size = self.alone(samples), self.options.batch_size
        branches, parts, length = _nowhere(samples), list[torch.Tensor](), 0
        tie = torch.zeros((), device=self.device)
        for c in range(max(chunks, -(-len(rest) // size))):
            some = rest[c * size : (c + 1) * size]
            pairs = [(samples[i].record, samples[i].branches[b]) for i, b in some]
            taught = any(samples[i].weight and samples[i].learnable[b] for i, b in some)
            with torch.set_grad_enabled(torch.is_grad_enabled() and (joint or (learn is not None and taught))):
                whole, kept, places = self._run_alone(pairs, recompute=joint)
                part = whole[kept]
                if joint:
                    tie = tie + 0 * whole.sum()
                if learn is not None and taught:
                    firsts = _nowhere(samples)
                    for (i, b), place in zip(some, places, strict=True):
                        firsts[i][b] = place
                    learn(self._hidden(part, Places([0] * len(samples), firsts)))
                    part = part.detach()
            for (i, b), place in zip(some, places, strict=True):
                branches[i][b] = place + length if place >= 0 else -1
            parts.append(part)
            length += len(part)
        width = self.lm.config.get_text_config().hidden_size
        none = torch.zeros(0, width, device=self.device)
        return Alone(torch.cat(parts) if parts else none, branches, learn is not None, tie if joint else None)

    def _hidden(self, states: torch.Tensor, places: Places, alone: Alone | None = None) -> Hidden:
        if alone is not None and alone.tie is not None:
            states = states + alone.tie.to(states.dtype)
        known = alone if alone is not None and len(alone.states) else None
        return Hidden(states, places, Head.of(self.lm, self.options.fp32_head), known)

    def _run_alone(
        self, pairs: Sequence[tuple[Record, Branch]], recompute: bool
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """All states, which are branches' own tokens, and where each branch begins in those; -1: it is too long."""
        layout = unpack(
            [record for record, _ in pairs],
            [[branch] for _, branch in pairs],
            multiple_of_8,
            self.pad_id,
            self.options.max_length,
            trajectories=False,
        ).to(self.device)

        def run(ids: torch.Tensor) -> torch.Tensor:
            backbone = getattr(self.lm, self.lm.base_model_prefix)
            mask = (layout.segment >= 0).long()
            return backbone(input_ids=ids, attention_mask=mask, position_ids=layout.position_ids, use_cache=False)[0]

        ids = layout.input_ids
        states = checkpoint(run, ids, use_reentrant=False) if recompute and torch.is_grad_enabled() else run(ids)
        kept: list[int] = []
        places: list[int] = []
        for (_, branch), [first] in zip(pairs, layout.branches, strict=True):
            places.append(len(kept) if first >= 0 else -1)
            kept += range(first, first + len(branch.ids)) if first >= 0 else ()
        return states.flatten(0, 1), torch.tensor(kept, device=self.device).long(), places

    def _lay_out(self, records: Sequence[Record], branches: Sequence[Sequence[Branch]]) -> Layout:
        return pack(records, branches, whole_blocks if self.flex else multiple_of_8, self.pad_id)

    def _mask(self, layout: Layout) -> Any:
        if self.flex:
            return block_mask(layout, BLOCK)
        mask = dense_mask(layout)
        if self.lm.config._attn_implementation != "eager":
            return mask
        dtype = self.lm.get_input_embeddings().weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=self.device).masked_fill(~mask, torch.finfo(dtype).min)

    @torch.no_grad()
    def _mismatch(self, model: Any) -> str | None:
        """Why this model cannot pack: its attention takes no such mask, or forgets it."""
        kinds = set(getattr(self.lm.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            return f"{type(self.lm).__name__} has other than full attention: {', '.join(sorted(kinds))}"
        ids = [(7 * i + 3) % min(self.lm.config.get_text_config().vocab_size, 97) for i in range(24)]
        record = Record(ids[:16], 4, [0] * 16, (), "", success=False)
        branches = [Branch(t, end, ids[-5:], [1] * 5, [1.0] * 5, ()) for t, end in enumerate((6, 11))]
        try:
            layout = self._lay_out([record], [branches]).to(self.device)
            ours = hidden_states(model, self.lm, layout, self._mask(layout))
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            return f"{type(self.lm).__name__} refuses the mask ({error})"
        for branch, first in zip(branches, layout.branches[0], strict=True):
            whole = unpack([record], [[branch]], pad_id=self.pad_id, trajectories=False).to(self.device)
            plain = hidden_states(model, self.lm, whole, None)[branch.prefix_end : branch.prefix_end + 5].float()
            packed = ours[first : first + 5].float()
            if (plain - packed).norm() > 0.05 * plain.norm():
                return f"{type(self.lm).__name__} ignores the mask"
        return None


def _nowhere(samples: Sequence[Sample]) -> list[list[int]]:
    return [[-1] * len(s.branches) for s in samples]
