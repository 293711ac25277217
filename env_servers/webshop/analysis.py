"""Lucene's English analysis: Unicode words, possessives, stop words, Porter stems.

`data/lucene_token_classes.json` says which class Lucene's tokenizer gives to every code point. It is a measurement and
not derivable from a current Unicode table: decorative symbols such as a star are tokens, by an old emoji list.
`IGNORED` there are the marks and format characters (the zero-width space is none), which never end a word.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

from env_servers.webshop.porter import stem

_STOP_LINES = (
    "a an and are as at be but by for if in into is it no not of on or",
    "such that the their then there these they this to was will with",
)
STOP_WORDS = frozenset(word for line in _STOP_LINES for word in line.split())
_MAX_TOKEN = 255
_LIMITS = (0x7F, 0xFFFF, sys.maxunicode)
_MID_LETTER = ":\u00b7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a"
_MID_NUMBER = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_MID_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_JOINERS = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f"
_POSSESSIVE = ("'s", "\u2019s", "\uff07s", "'S", "\u2019S", "\uff07S")


def tokenize(text: str) -> list[str]:
    """Returns the terms of a text in order, repeats included."""
    terms: list[str] = []
    highest = ord(max(text, default=" "))
    limit = next(limit for limit in _LIMITS if highest <= limit)
    for word in _pattern(limit).findall(text):
        for start in range(0, len(word), _MAX_TOKEN):
            term = _term(word[start : start + _MAX_TOKEN])
            if term:
                terms.append(term)
    return terms


@functools.lru_cache(maxsize=20_000)
def _term(word: str) -> str:
    """Returns the index term of one word, "" for a stop word."""
    if word.endswith(_POSSESSIVE):
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


@functools.lru_cache(maxsize=len(_LIMITS))
def _pattern(limit: int) -> re.Pattern[str]:
    """Writes the word-boundary rules of Unicode annex 29, as Lucene applies them, as one expression.

    Args:
        limit: Highest code point that a text may hold; expressions for less of Unicode are many times faster.
    """
    classes = _classes(limit)
    ignored = f"[{classes['IGNORED']}]*" if classes["IGNORED"] else ""

    def unit(*names: str, also: str = "") -> str:
        members = "".join(classes[name] for name in names) + re.escape(also)
        return f"(?:[{members}]{ignored})" if members else "(?!)"

    letter, digit, katakana, joiner = unit("ALPHANUM", "HANGUL"), unit("NUM"), unit("KATAKANA"), unit(also=_JOINERS)
    mid_letter, mid_number = unit(also=_MID_LETTER + _MID_BOTH), unit(also=_MID_NUMBER + _MID_BOTH)
    letters = f"{letter}(?:(?:{joiner}*|{mid_letter}){letter})*"
    digits = f"{digit}(?:(?:{joiner}*|{mid_number}){digit})*"
    core = f"(?:{katakana}(?:{joiner}*{katakana})*|(?:{digits}|{letters})+)"
    word = f"{joiner}*{core}(?:{joiner}+{core})*{joiner}*"
    emoji = f"{unit('EMOJI')}(?:(?<=\\u200d){unit('EMOJI')})*"
    return re.compile(f"{word}|{emoji}|{unit('IDEOGRAPHIC', 'HIRAGANA')}|{unit('SOUTHEAST_ASIAN')}+")


def _classes(limit: int) -> dict[str, str]:
    """Returns the members of each class up to a code point, written as for a set of an expression."""
    path = Path(__file__).with_name("data") / "lucene_token_classes.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: "".join(f"{_char(first)}-{_char(min(last, limit))}" for first, last in runs if first <= limit)
        for name, runs in table.items()
    }


def _char(code: int) -> str:
    return f"\\U{code:08x}"
