"""BM25 search that ranks like Lucene to the last bit, over a memory-mapped index.

A stock BM25 library often shows another first page: Lucene keeps a document's length in one byte, computes in single
precision, adds in double precision and breaks ties by document id. All of that is here.
Documents are numbered in ascending order of their ids, so a tie goes to the lower number.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_TERMS = 1024  # Lucene refuses queries with more distinct terms; here the first ones count
_K1 = np.float32(0.9)
_B = np.float32(0.4)
_CHUNK = 50_000  # documents that are sorted by term at once
_BLOCK = 1024
_EXACT_LENGTHS = 24
_COMMON = 64  # a term in more than this part of the documents is worth a look at who can still win
_SLACK = 1 + 2.0**-20  # covers the rounding of bounds, and of scores to single precision


class Index:
    """A read-only index; the arrays are shared by every process that opens the same folder.

    Args:
        folder: Where `build` wrote the index.
    """

    def __init__(self, folder: Path) -> None:
        self._hashes = np.load(folder / "terms.npy", mmap_mode="r")
        self._starts = np.load(folder / "starts.npy", mmap_mode="r")
        self._docs = np.load(folder / "docs.npy", mmap_mode="r")
        self._factors = np.load(folder / "factors.npy", mmap_mode="r")
        self._size, self._filled = (int(n) for n in np.load(folder / "sizes.npy"))
        self._scores = np.zeros(self._size, dtype=np.float64)
        self._highest: dict[int, NDArray[np.float32]] = {}

    def search(self, terms: Sequence[str], k: int = 50) -> list[int]:
        """Returns the numbers of the best documents, best first; documents without any of the terms are left out."""
        scores = self._scores
        scores.fill(0.0)
        counts = list(Counter(terms).items())[:MAX_TERMS]
        found = sorted(self._postings(counts), key=lambda p: p[1] - p[0])
        weights = [np.float32(count) * self._idf(end - start) for start, end, count in found]
        rare = sum(end - start <= self._size // _COMMON for start, end, _ in found)
        most = [self._most(term, weight) for term, weight in zip(found[rare:], weights[rare:], strict=True)]
        for number, ((start, end, _), weight) in enumerate(zip(found, weights, strict=True)):
            if number >= rare:
                hopeful = _within(scores, k, sum(most[number - rare :]))
                if hopeful is not None:
                    return self._finish(hopeful, found[number:], weights[number:], k)
            scores[self._docs[start:end]] += _contribution(weight, self._factors[start:end])
        return _best(scores.astype(np.float32), k)

    def _most(self, posting: tuple[int, int, int], weight: np.float32) -> float:
        """Returns the most that a common term adds to any document: a contribution grows with its factor."""
        start, end, _ = posting
        if start not in self._highest:
            self._highest[start] = self._factors[start:end].max(keepdims=True)
        return float(_contribution(weight, self._highest[start])[0])

    def _finish(
        self, hopeful: NDArray[np.int32], found: Sequence[tuple[int, int, int]], weights: Sequence[np.float32], k: int
    ) -> list[int]:
        """Adds the commonest terms for the few documents that they can still lift to the first `k`."""
        scores = self._scores[hopeful]
        for (start, end, _), weight in zip(found, weights, strict=True):
            docs = self._docs[start:end]
            at = np.searchsorted(docs, hopeful)
            at[at == len(docs)] = 0
            has = np.flatnonzero(docs[at] == hopeful)
            scores[has] += _contribution(weight, self._factors[start:end][at[has]])
        order = np.argsort(-scores.astype(np.float32), kind="stable")[:k]
        return [int(hopeful[n]) for n in order]

    def _postings(self, counts: Iterable[tuple[str, int]]) -> Iterator[tuple[int, int, int]]:
        for term, count in counts:
            key = _hash(term)
            at = int(np.searchsorted(self._hashes, key))
            if at < len(self._hashes) and self._hashes[at] == key:
                yield int(self._starts[at]), int(self._starts[at + 1]), count

    def _idf(self, frequency: int) -> np.float32:
        return np.float32(math.log(1 + (self._filled - frequency + 0.5) / (frequency + 0.5)))


def build(folder: Path, documents: Iterable[Sequence[str]]) -> None:
    """Writes the index of the documents, given as terms in ascending order of the documents' ids."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, int] = {}
    terms, tfs, distinct, lengths = array("i"), array("H"), array("i"), array("i")
    for document in documents:
        for term, count in Counter(document).items():
            terms.append(numbers.setdefault(term, len(numbers)))
            tfs.append(min(count, 0xFFFF))
        distinct.append(len(terms))
        lengths.append(len(document))
    hashes = np.fromiter((_hash(term) for term in numbers), dtype=np.uint64, count=len(numbers))
    order = np.argsort(hashes)
    rank = np.empty(len(numbers), dtype=np.int32)
    rank[order] = np.arange(len(numbers), dtype=np.int32)
    if len(np.unique(hashes)) != len(hashes):
        raise ValueError("two terms have the same 64-bit hash; change the hash function of env_servers.webshop.bm25")
    _write(folder, hashes[order], rank, terms, tfs, distinct, lengths)


def _write(
    folder: Path,
    hashes: NDArray[np.uint64],
    rank: NDArray[np.int32],
    numbers: array[int],
    frequencies: array[int],
    distinct: array[int],
    lengths: array[int],
) -> None:
    """Sorts the postings by term, a chunk of documents at a time, so that the sort needs little memory."""
    terms = _view(numbers)
    tfs = np.frombuffer(frequencies, dtype=np.uint16) if len(frequencies) else np.zeros(0, dtype=np.uint16)
    starts = np.zeros(len(hashes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(terms, minlength=len(hashes))[np.argsort(rank)], out=starts[1:])
    length = _view(lengths)
    norms = _norms(length)
    docs = np.lib.format.open_memmap(folder / "docs.npy", mode="w+", dtype=np.int32, shape=(len(terms),))
    factors = np.lib.format.open_memmap(folder / "factors.npy", mode="w+", dtype=np.float32, shape=(len(terms),))
    cursor = starts[:-1].copy()
    ends = np.concatenate([np.zeros(1, dtype=np.int64), _view(distinct).astype(np.int64)])
    for first in range(0, len(length), _CHUNK):
        last = min(first + _CHUNK, len(length))
        span = slice(int(ends[first]), int(ends[last]))
        doc = np.repeat(np.arange(first, last, dtype=np.int32), np.diff(ends[first : last + 1]))
        ranked = rank[terms[span]]
        order = np.argsort(ranked, kind="stable")
        term = ranked[order]
        counts = np.bincount(term, minlength=len(hashes))
        before = np.repeat(np.cumsum(counts) - counts, counts)
        target = cursor[term] + np.arange(len(term)) - before
        docs[target] = doc[order]
        factors[target] = tfs[span][order].astype(np.float32) * norms[doc[order]]
        cursor += counts
    docs.flush()
    factors.flush()
    np.save(folder / "terms.npy", hashes)
    np.save(folder / "starts.npy", starts)
    np.save(folder / "sizes.npy", np.array([len(length), int((length > 0).sum())], dtype=np.int64))


def _view(values: array[int]) -> NDArray[np.int32]:
    """Returns the numbers without a copy; numpy refuses an empty buffer."""
    return np.frombuffer(values, dtype=np.int32) if len(values) else np.zeros(0, dtype=np.int32)


def _norms(length: NDArray[np.int32]) -> NDArray[np.float32]:
    """Returns 1 / (k1 · (1 − b + b · length / average)) with the length as Lucene's one byte keeps it."""
    filled = max(int((length > 0).sum()), 1)
    average = np.float32(int(length.sum()) / filled)
    if not average:
        return np.ones(len(length), dtype=np.float32)
    kept = np.array([_kept(n) for n in range(int(length.max()) + 1)], dtype=np.float32)[length]
    one = np.float32(1)
    return one / (_K1 * ((one - _B) + _B * kept / average))


def _kept(length: int) -> int:
    """Rounds a length down as one byte does: exact to 39, then four significant bits of the excess over 24."""
    excess = length - _EXACT_LENGTHS
    if excess < 16:
        return length
    shift = excess.bit_length() - 4
    return _EXACT_LENGTHS + (excess >> shift << shift)


def _hash(term: str) -> np.uint64:
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _contribution(weight: np.float32, factors: NDArray[np.float32]) -> NDArray[np.float32]:
    return weight - weight / (np.float32(1) + factors)


def _within(scores: NDArray[np.float64], k: int, rest: float) -> NDArray[np.int32] | None:
    """Returns the documents that can be among the first `k` once at most `rest` is added, `None` if they are many.

    Whoever is further than `rest` below the k-th highest maximum of the blocks, which k documents reach already, is
    out.
    """
    whole = len(scores) // _BLOCK * _BLOCK
    if whole < k * _BLOCK:
        return None
    maxima = scores[:whole].reshape(-1, _BLOCK).max(axis=1)
    bound = float(np.partition(maxima, len(maxima) - k)[len(maxima) - k]) / _SLACK - rest * _SLACK
    if bound <= 0:
        return None
    # As narrow as the postings: searching wide numbers in narrow ones would widen all of these first.
    hopeful = np.flatnonzero(scores >= bound).astype(np.int32)
    return hopeful if len(hopeful) < len(scores) // _COMMON else None


def _best(scores: NDArray[np.float32], k: int) -> list[int]:
    """Returns the `k` highest positive scores, ties by number.

    The k-th highest of the blocks' maxima is a lower bound of the k-th highest score, so a pass over the maxima spares
    the sort of everything.
    """
    bound = np.float32(0)
    whole = len(scores) // _BLOCK * _BLOCK
    if whole >= k * _BLOCK:
        maxima = scores[:whole].reshape(-1, _BLOCK).max(axis=1)
        bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
    candidates = np.flatnonzero(scores >= bound if bound > 0 else scores > 0)
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return [int(n) for n in candidates[order]]
