"""Language audit of a skill card, by rules. A card that fails conditions nothing and earns its extractor 0.

Rules as in Evolving-RL (arXiv 2605.10663): odd characters, letters of other scripts, and repetition loops.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

_ODD_CATEGORIES = {"Cf", "Cs", "Co", "Cn"}
_ODD_NAMES = (
    "ZERO WIDTH",
    "FULLWIDTH",
    "HALFWIDTH",
    "MATHEMATICAL",
    "MODIFIER LETTER",
    "COMBINING",
    "PRIVATE USE",
    "SMALL FORM VARIANT",
)
_SHOWN = 8
_SAME_CHARACTER = re.compile(r"(\S)\1{7,}")
# Rules and table borders in Markdown are runs of one character on a line of their own.
_RULE_LINE = re.compile(r"^[ \t|:]*([-=*_#~])[-=*_#~ \t|:]*$", re.MULTILINE)


@dataclass(frozen=True)
class AuditResult:
    """Outcome of an audit.

    Attributes:
        passed: Whether nothing was found.
        reasons: One sentence for each finding.
    """

    passed: bool
    reasons: tuple[str, ...] = ()


def audit(card: str) -> AuditResult:
    """Checks a rendered skill card.

    Args:
        card: Markdown, as it would be put before a solver. An empty card passes: it conditions nothing anyway.
    """
    reasons = [*_odd_characters(card), *_other_scripts(card), *_repetition(_RULE_LINE.sub("", card))]
    return AuditResult(not reasons, tuple(reasons))


def _list(characters: list[str]) -> str:
    unique = list(dict.fromkeys(characters))[:_SHOWN]
    return ", ".join(f"U+{ord(character):04X}" for character in unique)


def _is_odd(character: str) -> bool:
    if character in "\n\r\t":
        return False
    if ord(character) < 32 or character in ("\x7f", "\ufffd") or unicodedata.category(character) in _ODD_CATEGORIES:
        return True
    name = unicodedata.name(character, "")
    return not character.isascii() and any(part in name for part in _ODD_NAMES)


def _odd_characters(card: str) -> list[str]:
    odd = [character for character in card if _is_odd(character)]
    return [f"suspicious characters: {_list(odd)}"] if odd else []


def _other_scripts(card: str) -> list[str]:
    other = [c for c in card if not c.isascii() and unicodedata.category(c)[0] not in "SPZ" and not _is_odd(c)]
    return [f"letters or digits that are not English: {_list(other)}"] if other else []


def _repetition(card: str) -> list[str]:
    found: list[str] = []
    if match := _SAME_CHARACTER.search(card):
        found.append(f"the character {match[1]!r} stands eight times in a row or more")
    tokens = card.split()
    if chunk := _repeated_chunk(tokens):
        found.append(f"'{chunk}' is repeated in a row")
    lines = [line.strip() for line in card.splitlines() if line.strip()]
    if lines:
        line, count = Counter(lines).most_common(1)[0]
        if len(line) >= 12 and count >= 3 and 2 * count >= len(lines):
            found.append(f"the line '{line[:60]}' makes up half of the text")
    return found


def _repeated_chunk(tokens: list[str]) -> str | None:
    """One token eight times in a row, or 2–4 tokens (≥ 8 characters) four times in a row."""
    for size, times in ((1, 8), (2, 4), (3, 4), (4, 4)):
        run = 0
        for i in range(size, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - size] else 0
            if run >= size * (times - 1):
                chunk = " ".join(tokens[i - size + 1 : i + 1])
                if size == 1 or len(chunk) >= 8:
                    return chunk[:60]
    return None
