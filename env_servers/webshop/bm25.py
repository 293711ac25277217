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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_TERMS = 1024  # Lucene refuses queries with more distinct terms; here the first ones count
_K1 = np.float32(0.9)
_B = np.float32(0.4)
_CHUNK = 50_000  # documents that are sorted by term at once
_EXACT_LENGTHS = 24
_RANGE = 1 << 16  # documents that are scored at once: their scores stay in a core's cache
_LOOKUP = 8  # finding a document among a term's costs as much as adding up so many of them
_WORTH = 3_000  # documents of a term in a range that cost as much to add up as a look at who can still win
_LONG = 10_000  # documents of a term whose highest factor is worth remembering
_SLACK = 1 + 2.0**-20  # covers the rounding of bounds, and of scores to single precision


@dataclass(frozen=True)
class _Term:
    """A term of a query, or its part in a range of documents.

    Attributes:
        docs: Documents that hold it, ascending.
        factors: What `_contribution` takes of each.
        weight: What it takes of the term.
        most: The highest contribution to any document.
    """

    docs: NDArray[np.int32]
    factors: NDArray[np.float32]
    weight: np.float32
    most: float

    def part(self, start: int, end: int) -> _Term:
        """Returns the term with some of its documents only."""
        return _Term(self.docs[start:end], self.factors[start:end], self.weight, self.most)


class Index:
    """A read-only index; the arrays are shared by every process that opens the same folder.

    Args:
        folder: Where `build` wrote the index.
    """

    def __init__(self, folder: Path) -> None:
        self._hashes = np.load(folder / "terms.npy", mmap_mode="r")
        self._starts = np.load(folder / "starts.npy", mmap_mode="r")
        # As plain arrays over the mapped file: the class `memmap` costs microseconds at every cut.
        self._docs = np.asarray(np.load(folder / "docs.npy", mmap_mode="r"))
        self._factors = np.asarray(np.load(folder / "factors.npy", mmap_mode="r"))
        self._size, self._filled = (int(n) for n in np.load(folder / "sizes.npy"))
        self._scores = np.zeros(_RANGE, dtype=np.float64)
        self._highest: dict[int, NDArray[np.float32]] = {}

    def search(self, terms: Sequence[str], k: int = 50) -> list[int]:
        """Returns the numbers of the best documents, best first; documents without any of the terms are left out.

        A range of documents is scored at a time. The k-th best score so far is a bound for the next range: there, the
        rarest terms are added up for all, the others only for those documents that they can still lift above it.
        """
        counts = list(Counter(terms).items())[:MAX_TERMS]
        query = sorted((self._term(*posting) for posting in self._postings(counts)), key=lambda term: len(term.docs))
        rests = [sum(term.most for term in query[n:]) * _SLACK for n in range(len(query))]
        edges = np.arange(0, self._size + _RANGE, _RANGE, dtype=np.int32)
        cuts = [np.searchsorted(term.docs, edges).tolist() for term in query]
        docs, scores = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
        for number, first in enumerate(range(0, self._size, _RANGE)):
            parts = [term.part(cut[number], cut[number + 1]) for term, cut in zip(query, cuts, strict=True)]
            bound = float(scores[-1]) / _SLACK if len(scores) == k else 0.0
            more, reached = self._range(first, parts, rests, bound)
            docs, scores = _best(np.concatenate([docs, more]), np.concatenate([scores, reached]), k)
        return [int(n) for n in docs]

    def _range(
        self, first: int, parts: Sequence[_Term], rests: Sequence[float], bound: float
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Returns the documents of a range that may score `bound` or more, with their scores.

        Args:
            first: The range's first document.
            parts: The query, rarest term first.
            rests: For each term, the most that it and all after it add to a document.
            bound: 0 for all documents that hold a term.
        """
        scores = self._scores
        scores.fill(0.0)
        for number, (part, rest) in enumerate(zip(parts, rests, strict=True)):
            if bound > rest and len(part.docs) > _WORTH:
                hopeful = np.flatnonzero(scores >= bound - rest).astype(np.int32)
                if len(hopeful) * _LOOKUP <= len(part.docs):
                    docs = hopeful + np.int32(first)
                    return _finish(docs, scores[hopeful], parts[number:], rests[number:], bound)
            scores[part.docs - np.int32(first)] += _contribution(part.weight, part.factors)
        hopeful = np.flatnonzero(scores >= bound if bound > 0 else scores > 0).astype(np.int32)
        return hopeful + np.int32(first), scores[hopeful].astype(np.float32)

    def _term(self, start: int, end: int, count: int) -> _Term:
        weight = np.float32(count) * self._idf(end - start)
        factors = self._factors[start:end]
        highest = self._highest.get(start)
        if highest is None:
            highest = factors.max(keepdims=True)
            if end - start > _LONG:
                self._highest[start] = highest
        return _Term(self._docs[start:end], factors, weight, float(_contribution(weight, highest)[0]))

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


def _finish(
    docs: NDArray[np.int32], scores: NDArray[np.float64], parts: Sequence[_Term], rests: Sequence[float], bound: float
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Adds terms for a few documents; those that cannot reach the bound any more are left out on the way."""
    for part, rest in zip(parts, rests, strict=True):
        kept = scores >= bound - rest
        docs, scores = docs[kept], scores[kept]
        if len(docs) and len(part.docs):
            at = np.searchsorted(part.docs, docs)
            at[at == len(part.docs)] = 0
            has = np.flatnonzero(part.docs[at] == docs)
            scores[has] += _contribution(part.weight, part.factors[at[has]])
    return docs, scores.astype(np.float32)


def _best(
    docs: NDArray[np.int32], scores: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Returns the `k` highest scores, highest first, with their documents; ties stay in the order given."""
    if len(scores) > k:
        kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        docs, scores = docs[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")[:k]
    return docs[order], scores[order]
