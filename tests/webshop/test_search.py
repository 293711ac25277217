"""Analysis and ranking, on small indexes whose scores can be worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_servers.webshop import bm25
from env_servers.webshop.analysis import tokenize
from env_servers.webshop.porter import stem

STEMS = {
    "caresses": "caress",
    "ponies": "poni",
    "ties": "ti",
    "feed": "feed",
    "agreed": "agre",
    "plastered": "plaster",
    "hopping": "hop",
    "falling": "fall",
    "hissing": "hiss",
    "filing": "file",
    "sized": "size",
    "happy": "happi",
    "sky": "sky",
    "relational": "relat",
    "conditional": "condit",
    "assembly": "assembl",
    "technology": "technolog",
    "controll": "control",
    "adoption": "adopt",
    "replacement": "replac",
    "yes": "ye",
    "is": "is",
}


@pytest.mark.parametrize(("word", "wanted"), STEMS.items())
def test_stems(word: str, wanted: str) -> None:
    assert stem(word) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3.5mm jack, 1,000 u.s.a", ["3.5mm", "jack", "1,000", "u.s.a"]),
        ('t-shirt usb-c 10"', ["t", "shirt", "usb", "c", "10"]),
        ("O'Neill's and the boss\u2019s foo_bar", ["o'neil", "boss", "foo_bar"]),
        ("★ heart ❤️ 👨‍💼", ["★", "heart", "❤️", "👨‍💼"]),
        ("日本 カタカナ ひら", ["日", "本", "カタカナ", "ひ", "ら"]),
        ("", []),
        ("the of and", []),
    ],
)
def test_tokens(text: str, wanted: list[str]) -> None:
    assert tokenize(text) == wanted


def test_a_long_word_is_cut_into_pieces() -> None:
    assert [len(token) for token in tokenize("x" * 600)] == [255, 255, 90]


@given(st.text(max_size=60))
def test_the_three_expressions_agree(text: str) -> None:
    """The one for all of Unicode is used as soon as a text holds an astral character."""
    assert tokenize(f"{text} 😀")[:-1] == tokenize(f"{text} ")


def test_scores_follow_the_formula(tmp_path: Path) -> None:
    documents = [["red", "shoe"], ["red", "red", "hat", "box"], ["blue", "shoe", "shoe"], []]
    bm25.build(tmp_path, documents)
    index = bm25.Index(tmp_path)

    def score(query: list[str], document: list[str]) -> float:
        total = 0.0
        filled = [d for d in documents if d]
        average = sum(map(len, filled)) / len(filled)
        for term in query:
            frequency = sum(term in d for d in documents)
            tf = document.count(term)
            idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
            total += idf * tf / (tf + 0.9 * (0.6 + 0.4 * len(document) / average))
        return total

    for query in (["red"], ["shoe"], ["red", "shoe"], ["shoe", "shoe", "blue"], ["hat", "nothing"]):
        wanted = sorted((n for n in range(4) if score(query, documents[n])), key=lambda n: -score(query, documents[n]))
        assert index.search(query) == wanted, query
    assert index.search([]) == index.search(["nothing"]) == []


def test_ties_go_to_the_lower_number_and_k_cuts(tmp_path: Path) -> None:
    bm25.build(tmp_path, [["same", "words"]] * 120)
    assert bm25.Index(tmp_path).search(["same"], 50) == list(range(50))


def test_lengths_are_kept_in_one_byte() -> None:
    kept = bm25._kept  # pyright: ignore[reportPrivateUsage]
    assert [kept(n) for n in (39, 40, 41, 42, 55, 56, 59, 60, 87, 88, 95, 151, 152, 279)] == (
        [39, 40, 40, 42, 54, 56, 56, 60, 84, 88, 88, 144, 152, 264]
    )


def test_the_bounds_of_large_indexes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All results are asked for with `k` so large that nothing can be left out; then the first 50."""
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(300)]
    size = 15 * 1024 + 77
    picks = rng.integers(0, len(words), (size, 5)) ** 2 // len(words)
    bm25.build(tmp_path, ([words[i] for i in row] for row in picks))
    monkeypatch.setattr(bm25, "_RANGE", 1024)
    monkeypatch.setattr(bm25, "_WORTH", 30)
    shortened: list[int] = []
    finish = bm25._finish  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(bm25, "_finish", lambda *given: (shortened.append(1), finish(*given))[1])
    index = bm25.Index(tmp_path)
    queries = [["w0"], ["w250", "w3"], ["w1", "w1", "w7", "w100"]]
    queries += [[words[int(n)] for n in rng.integers(0, len(words), 6) ** 2 // len(words)] for _ in range(40)]
    for query in queries:
        everything = index.search(query, size)
        assert index.search(query, 50) == everything[:50]
    assert len(shortened) > 20  # else the bounds were never tight enough to matter


def test_more_terms_than_lucene_takes(tmp_path: Path) -> None:
    bm25.build(tmp_path, [["late"], ["early"]])
    query = ["early", *(f"x{n}" for n in range(bm25.MAX_TERMS)), "late"]
    assert bm25.Index(tmp_path).search(query) == [1]
