"""A page as text: one line an element, each with a reference that an action can name. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from env_servers.mind2web.page import Element

EMPTY = "(nothing on this page can be used)"


@dataclass(frozen=True)
class Snapshot:
    """What an agent sees of a page.

    Attributes:
        text: The lines.
        shown: The elements that have a line, by reference.
    """

    text: str
    shown: Mapping[str, Element]


def take(page: Sequence[Element], task: str, max_chars: int) -> Snapshot:
    """Writes a page; what does not fit is chosen by the words of the task.

    References count all elements in the order of the document, so they do not depend on what is shown.

    Args:
        page: The elements.
        task: The task's text.
        max_chars: Upper bound on the lines' characters; 0 for the whole page.
    """
    lines = [_line(number, element) for number, element in enumerate(page, 1)]
    kept = range(len(lines)) if not max_chars else _fitting(lines, task, max_chars)
    shown = {_ref(i + 1): page[i] for i in kept}
    text = [lines[i] for i in kept] or [EMPTY]
    if len(kept) < len(lines):
        text.append(f"({len(lines) - len(kept)} elements are not shown)")
    return Snapshot("\n".join(text), shown)


def label(element: Element) -> str:
    """Returns an element as earlier actions name it."""
    return f'{element.role} "{element.name}"'


def _ref(number: int) -> str:
    return f"e{number}"


def _line(number: int, element: Element) -> str:
    return " ".join([f"- {label(element)} [ref={_ref(number)}]", *element.details])


def _fitting(lines: Sequence[str], task: str, max_chars: int) -> Sequence[int]:
    """Returns which lines to show: those that share most words with the task, then the first ones."""
    if sum(len(line) + 1 for line in lines) <= max_chars:
        return range(len(lines))
    wanted = _words(task)
    order = sorted(range(len(lines)), key=lambda i: (-len(wanted & _words(lines[i])), i))
    kept: list[int] = []
    left = max_chars
    for i in order:
        left -= len(lines[i]) + 1
        if left < 0:
            break
        kept.append(i)
    return sorted(kept)


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 2}
