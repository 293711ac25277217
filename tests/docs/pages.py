"""The code blocks of README and docs, and what the HTML comment above each says of it.

<!-- run -->                  executed by a test; `run: slow, engine, train` add marks, `continues` puts the page's
                              Python before it into the same program
<!-- server -->               `cope serve …`, left running until the end of the page
<!-- file: NAME -->           saved as NAME where the page's commands run
<!-- output -->               these lines are in what the block before printed, in this order; … stands for anything
<!-- not run: REASON -->      only its commands, options and configuration keys are checked
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = ("bash", "python")
WORDS = ("run", "server", "file", "output", "not run")

# The README is also the package's page elsewhere, where comments would show: a phrase in a block, and what would stand
# above it. The first that fits counts.
UNCOMMENTED = {
    "make quickstart": "not run: installs everything and trains for a quarter of an hour",
    "make test": "not run: the tests would run themselves",
    "import cope_gym": "run: engine, sciworld",
    "cope train": "not run: trains; the tutorial's is run",
    "cope serve": "not run: serves until it is told to stop",
}

_FENCE = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: File.
        line: Line of its fence.
        language: As the fence says, "" without one.
        text: What it holds.
        word: The comment's first part, one of `WORDS`, or "" without a comment.
        rest: What follows the comment's colon.
    """

    page: Path
    line: int
    language: str
    text: str
    word: str = ""
    rest: str = ""

    @property
    def marks(self) -> set[str]:
        """Marks of a block that is run."""
        return set(filter(None, re.split(r"[,\s]+", self.rest))) if self.word == "run" else set()

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [_block(page, text, match) for match in _FENCE.finditer(text)]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    comment, language, body = match[1] or "", match[2], match[3]
    if page.parent == ROOT and not comment and language in CODE:
        comment = next((said for phrase, said in UNCOMMENTED.items() if phrase in body), "")
    word, _, rest = comment.partition(":")
    line = text.count("\n", 0, match.start(2)) + 1
    return Block(page, line, language, body, word.strip(), rest.strip())


def commands(block: Block) -> Iterator[list[str]]:
    """Yields the commands of a bash block as words, without comments, variables and what the shell adds."""
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                if words:
                    yield words
                words = []
            elif words or not re.fullmatch(r"\w+=.*", word):
                words.append(word)
