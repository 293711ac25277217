"""Where tokens come from: one small interface, token ids in, token ids and log-probabilities out.

`submit` queues the next turn of an episode, `poll` gives back turns that are done. A backend never sees text,
templates or environments.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the fields of `GRPOConfig`. A temperature of 0 takes the most probable token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None


@dataclass(frozen=True)
class Request:
    """One turn to sample.

    Attributes:
        key: The episode; requests of one key extend each other's ids.
        ids: All tokens so far.
        max_tokens: Limit of this turn.
        seed: What fixes the random numbers of this turn, whatever shares its batch.
    """

    key: Hashable
    ids: list[int]
    max_tokens: int
    seed: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One sampled turn; `finished` says that the model ended it (its last id is then a stop id)."""

    key: Hashable
    ids: list[int]
    logprobs: list[float]
    finished: bool


class Backend(Protocol):
    """What the rollout driver needs of a sampler.

    Attributes:
        batches: Whether a call of `poll` takes all that is queued as one batch. The driver then waits a moment for
            more episodes to become ready; with a continuous engine it does not.
        context: Most tokens of a conversation, those to be sampled included.
    """

    batches: bool
    context: int

    def submit(self, request: Request) -> None:
        """Queues a request."""
        ...

    def poll(self) -> list[Completion]:
        """Works for a while and returns what has finished; may be empty while requests are pending."""
        ...

    def release(self, key: Hashable) -> None:
        """Forgets an episode: its cache, and its request when one is pending."""
        ...


def seed_number(*parts: Hashable) -> int:
    """Returns a 63-bit seed, equal on every machine for equal parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


class TransformersBackend:
    """Batched sampling with a Transformers model; keeps each episode's key-value cache between its turns.

    A later turn only computes the tokens that are new. Models with sliding-window or recurrent layers are computed
    from the first token each time.

    Args:
        model: Causal language model, unwrapped, with its weights in place until the backend is dropped.
        sampling: How tokens are drawn.
        stop_ids: Ids that end a turn.
        pad_id: Any id; its positions are masked.
        max_batch: Most episodes in one forward pass.
    """

    batches = True

    def __init__(
        self, model: Any, sampling: Sampling, stop_ids: Sequence[int], pad_id: int, max_batch: int = 64
    ) -> None:
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.pad_id = pad_id
        self.max_batch = max_batch
        self.greedy = sampling.temperature == 0
        self.warpers = _warpers(sampling)
        self.keeps_cache = _all_full_attention(model.config)
        self.context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
        self._queue: list[Request] = []
        self._caches: dict[Hashable, _Past] = {}

    def submit(self, request: Request) -> None:
        """Queues a request."""
        self._queue.append(request)

    def release(self, key: Hashable) -> None:
        """Forgets an episode."""
        self._caches.pop(key, None)
        self._queue = [request for request in self._queue if request.key != key]

    @torch.no_grad()
    def poll(self) -> list[Completion]:
        """Samples all queued turns to their ends."""
        batch, self._queue = self._queue[: self.max_batch], self._queue[self.max_batch :]
        return self._sample(batch) if batch else []

    def _sample(self, batch: list[Request]) -> list[Completion]:
        state = _Batch(self, batch)
        uniform = torch.stack([_uniform(request.seed, max(r.max_tokens for r in batch)) for request in batch])
        sampled: list[list[int]] = [[] for _ in batch]
        logprobs: list[list[float]] = [[] for _ in batch]
        step = 0
        logits = state.prefill()
        while state.rows:
            tokens, chosen = self._draw(logits, uniform[state.rows, step])
            for row, token, logprob in zip(state.rows, tokens, chosen, strict=True):
                sampled[row].append(token)
                logprobs[row].append(logprob)
            ended = [token in self.stop_ids for token in tokens]
            step += 1
            full = [step >= batch[row].max_tokens for row in state.rows]
            state.retire([a or b for a, b in zip(ended, full, strict=True)])
            if state.rows:
                logits = state.advance([sampled[row][-1] for row in state.rows])
        return [
            Completion(request.key, ids, logps, ids[-1] in self.stop_ids)
            for request, ids, logps in zip(batch, sampled, logprobs, strict=True)
        ]

    def _draw(self, logits: torch.Tensor, uniform: torch.Tensor) -> tuple[list[int], list[float]]:
        logits = logits.float()
        if self.greedy:
            tokens = logits.argmax(-1)
        else:
            # The log-probability is the trainer's: temperature applied, but not renormalised over a kept set.
            kept = self.warpers(None, logits).softmax(-1).double().cumsum(-1)
            logits = logits / self.temperature
            draw = (uniform.to(kept.device) * kept[:, -1]).unsqueeze(-1)
            tokens = torch.searchsorted(kept, draw, right=True).squeeze(-1).clamp(max=kept.size(-1) - 1)
        logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        return tokens.tolist(), logprobs.tolist()

    @property
    def temperature(self) -> float:
        """Sampling temperature, 1 for greedy decoding."""
        return next((w.temperature for w in self.warpers if isinstance(w, TemperatureLogitsWarper)), 1.0)


@dataclass
class _Past:
    """Keys and values of one episode's first `length` tokens, one pair of tensors a layer."""

    length: int
    layers: list[tuple[torch.Tensor, torch.Tensor]]


class _Batch:
    """Rows that are decoded together. Caches of unequal length stand right-aligned, gaps are masked."""

    def __init__(self, backend: TransformersBackend, requests: list[Request]) -> None:
        self.backend = backend
        self.model = backend.model
        self.device = next(backend.model.parameters()).device
        self.requests = requests
        self.rows = list(range(len(requests)))
        self._slots = list(self.rows)  # which row each line of the tensors belongs to
        self.past = (
            [backend._caches.pop(r.key, None) for r in requests] if backend.keeps_cache else [None] * len(requests)
        )
        self.cache = DynamicCache(config=backend.model.config)
        lengths = [p.length if p else 0 for p in self.past]
        self.mask = _right_aligned([[1] * n for n in lengths], 0)
        self.position = torch.tensor([len(r.ids) for r in requests])

    def prefill(self) -> torch.Tensor:
        width = self.mask.size(1)
        if width:
            _fill(self.cache, self.past, width)
        fresh = [r.ids[p.length if p else 0 :] for r, p in zip(self.requests, self.past, strict=True)]
        self.past = []
        new_mask = _right_aligned([[1] * len(ids) for ids in fresh], 0)
        ends = [len(r.ids) for r in self.requests]
        positions = _right_aligned([list(range(n - len(f), n)) for n, f in zip(ends, fresh, strict=True)], 0)
        return self._forward(_right_aligned(fresh, self.backend.pad_id), new_mask, positions)

    def advance(self, tokens: list[int]) -> torch.Tensor:
        by_row = dict(zip(self.rows, tokens, strict=True))
        ids = torch.tensor([[by_row.get(row, self.backend.pad_id)] for row in self._slots])
        alive = torch.tensor([[int(row in by_row)] for row in self._slots])
        logits = self._forward(ids, alive, self.position.unsqueeze(-1))
        self.position += 1
        return logits[[self._slots.index(row) for row in self.rows]] if len(self.rows) < len(self._slots) else logits

    def retire(self, done: list[bool]) -> None:
        """Stores the caches of rows that are done; drops their lines once half of the lines are idle."""
        for row, finished in zip(list(self.rows), done, strict=True):
            if finished:
                self._store(row)
                self.rows.remove(row)
        if self.rows and 2 * len(self.rows) <= len(self._slots):
            keep = torch.tensor([self._slots.index(row) for row in self.rows])
            self.cache.batch_select_indices(keep.to(self.device))
            self.mask, self.position, self._slots = self.mask[keep], self.position[keep], list(self.rows)

    def _store(self, row: int) -> None:
        if not self.backend.keeps_cache:
            return
        line = self._slots.index(row)
        columns = self.mask[line].nonzero().squeeze(-1).to(self.device)
        layers = [(layer.keys[line][:, columns], layer.values[line][:, columns]) for layer in self.cache.layers]
        self.backend._caches[self.requests[row].key] = _Past(len(columns), layers)

    def _forward(self, ids: torch.Tensor, new_mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.mask = torch.cat([self.mask, new_mask], dim=1)
        output = self.model(
            input_ids=ids.to(self.device),
            attention_mask=self.mask.to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def _fill(cache: DynamicCache, past: list[_Past | None], width: int) -> None:
    """Puts the episodes' caches side by side into an empty cache."""
    some = next(p for p in past if p)
    for layer, (key, value) in enumerate(some.layers):
        keys = key.new_zeros(len(past), key.size(0), width, key.size(2))
        values = value.new_zeros(len(past), value.size(0), width, value.size(2))
        for row, p in enumerate(past):
            if p:
                keys[row, :, width - p.length :], values[row, :, width - p.length :] = p.layers[layer]
        cache.update(keys, values, layer)


def _right_aligned(rows: list[list[int]], fill: int) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[fill] * (width - len(row)) + row for row in rows], dtype=torch.long).view(len(rows), width)


def _uniform(seed: tuple[Hashable, ...], count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed_number(*seed)), dtype=torch.float64)


def _warpers(sampling: Sampling) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if sampling.temperature not in (0, 1):
        warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers


def _all_full_attention(config: Any) -> bool:
    """Whether every layer attends to all earlier tokens, so that a cache can be cut and joined by positions."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
