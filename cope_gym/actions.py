"""From model text to the action that runs, and back. Shared by environments, trainer and evaluator.

One rule stands above the formats: **the label is what ran**. `parse` returns the literal substring and its character
range, so `action == text[start:end]` always holds, and the same range selects the tokens that were sampled.

Which action counts when a text holds several (the text after it was written without seeing its observation):

| format | an action is | which one runs |
|---|---|---|
| `react` | the first non-empty line after `Action:` (starting a line; anywhere, where no line starts so) | the first |
| `tag` | what stands between `<action>` and `</action>`, several lines allowed | the first |
| `json` | a JSON object with `"name"` and an object `"arguments"`, tagged, fenced or bare | the first |
| `tool_call` | the same, inside `<tool_call>` and `</tool_call>` only | the first |
| `code` | a fenced block without a language or in Python, several lines | the last, as AppWorld agents run it |
| `plain` | the whole text | the last stretch outside reasoning |

Reasoning is never part of a span: what stands inside `<think>…</think>` is not read, nor is what precedes a lone
`</think>` (chat templates may open the block in the prompt), nor what follows a `<think>` that was never closed.

Nothing here knows whether a benchmark accepts an action, and nothing raises on any text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

Span = tuple[int, int]


@dataclass(frozen=True)
class ParsedAction:
    """What a text says to do.

    Attributes:
        action: The literal substring that is to run; "" where there is none.
        start: First character of the action in the text.
        end: One past its last character; `action == text[start:end]`.
        error: One sentence that says what is missing, or `None`.
        count: How many actions the text holds. More than 1 means that the model went on without an observation.
    """

    action: str
    start: int
    end: int
    error: str | None = None
    count: int = 1


def parse(text: str, format: str) -> ParsedAction:
    """Finds the action in a model's text.

    Args:
        text: The model's turn, reasoning included.
        format: One of `FORMATS`.

    Raises:
        ValueError: There is no such format.
    """
    chosen = _format(format)
    spans = [
        (low + start, low + end)
        for low, high in _outside_reasoning(text)
        for start, end in chosen.find(text[low:high])
        if start < end
    ]
    if not spans:
        return ParsedAction("", len(text), len(text), chosen.missing, 0)
    start, end = spans[chosen.runs]
    return ParsedAction(text[start:end], start, end, None, len(spans))


def render(action: str, format: str, thought: str = "") -> str:
    """Writes an action as a model's turn, so that `parse(render(a, f), f).action == a` for a well-formed action.

    Args:
        action: The environment command, without reasoning tags: one line for `react`, JSON for `json` and `tool_call`.
        format: One of `FORMATS`.
        thought: Reasoning to stand before the action; `plain` has no place for it.

    Raises:
        ValueError: There is no such format.
    """
    template = _format(format).template
    head = {"react": f"Thought: {thought}\n", "plain": ""}.get(format, f"{thought}\n") if thought else ""
    return head + template.replace("{action}", action)


_REASONING = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)


def _outside_reasoning(text: str) -> list[Span]:
    """Returns the stretches that are not reasoning, in order."""
    spans: list[Span] = []
    low: int | None = 0  # where the current visible stretch began; None inside reasoning
    for tag in _REASONING.finditer(text):
        if tag[1]:
            if low is not None:  # closes a block that the prompt opened: all before it was reasoning
                spans.clear()
            low = tag.end()
        elif low is not None:
            spans.append((low, tag.start()))
            low = None
    if low is not None:
        spans.append((low, len(text)))
    return spans


def _strip(text: str, start: int, end: int) -> Span:
    inner = text[start:end]
    start += len(inner) - len(inner.lstrip())
    return start, start + len(inner.strip())


# Bold or code marks around the word are tolerated: small models write `**Action:** look`.
_MARKER_AT_LINE_START = re.compile(r"^[ \t]*[*_`#>]*[ \t]*action[ \t]*[*_`]*:[*_`]*", re.IGNORECASE | re.MULTILINE)
_MARKER = re.compile(r"\baction[*_`]*:[*_`]*", re.IGNORECASE)
_OTHER_MARKER = re.compile(r"[*_`#>]*[ \t]*(?:thought|observation|action)[ \t]*[*_`]*:", re.IGNORECASE)
_SPACE = re.compile(r"\s*")


def _react(text: str) -> Iterator[Span]:
    anchored = [marker.end() for marker in _MARKER_AT_LINE_START.finditer(text)]
    for position in anchored or [marker.end() for marker in _MARKER.finditer(text)]:
        start = _SPACE.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess]
        newline = text.find("\n", start)
        span = _strip(text, start, len(text) if newline < 0 else newline)
        if not _OTHER_MARKER.match(text, span[0]):
            yield span


_TAG = re.compile(r"<action>((?:(?!<action>).)*?)</action>", re.IGNORECASE | re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)


def _tag(text: str) -> Iterator[Span]:
    return (_strip(text, *match.span(1)) for match in _TAG.finditer(text))


def _tool_call(text: str) -> Iterator[Span]:
    for match in _TOOL_CALL.finditer(text):
        low, high = match.span(1)
        for start, end in _json(text[low:high]):
            yield low + start, low + end


def _json(text: str) -> Iterator[Span]:
    decoder = json.JSONDecoder(strict=False)
    position = text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            end = max(error.pos, position + 1)
        except (ValueError, RecursionError):  # a number of thousands of digits; nesting beyond reason
            return
        else:
            if _is_call(value):
                yield position, end
        position = text.find("{", end)


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    call = cast("dict[str, Any]", value)
    return isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)


_FENCE = re.compile(r"^[ \t]*(`{3,})[ \t]*([^`\n]*)$", re.MULTILINE)


def _code(text: str) -> Iterator[Span]:
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        language = fence[2].strip().lower()
        if opened is None:
            opened = fence
        elif not language and len(fence[1]) >= len(opened[1]):
            if opened[2].strip().lower() in ("", "python", "py", "python3"):
                yield _without_blank_edges(text, opened.end(), fence.start())
            opened = None


def _without_blank_edges(text: str, start: int, end: int) -> Span:
    """Drops blank first lines and trailing space, and keeps the indentation of the first line of code."""
    inner = text[start:end]
    end = start + len(inner.rstrip())
    blank = re.match(r"(?:[^\S\n]*\n)*", inner)
    return (start + blank.end() if blank else start), end


def _plain(text: str) -> Iterator[Span]:
    yield _strip(text, 0, len(text))


@dataclass(frozen=True)
class _Format:
    find: Callable[[str], Iterator[Span]]
    template: str
    missing: str
    runs: int = 0  # index of the action that runs


_FORMATS = {
    "react": _Format(
        _react, "Action: {action}", "No action was found: write a line `Action:` with the action after it."
    ),
    "tag": _Format(
        _tag, "<action>{action}</action>", "No action was found: write it between `<action>` and `</action>`."
    ),
    "code": _Format(
        _code, "```python\n{action}\n```", "No code was found: write one closed fenced block of Python.", runs=-1
    ),
    "json": _Format(
        _json, "{action}", 'No tool call was found: write one JSON object with "name" and an object "arguments".'
    ),
    "tool_call": _Format(
        _tool_call,
        "<tool_call>\n{action}\n</tool_call>",
        "No tool call was found: write a JSON object between `<tool_call>` and `</tool_call>`.",
    ),
    "plain": _Format(_plain, "{action}", "The text is empty outside its reasoning.", runs=-1),
}

FORMATS = tuple(_FORMATS)


def _format(name: str) -> _Format:
    try:
        return _FORMATS[name]
    except KeyError:
        raise ValueError(f"Unknown action format '{name}'; there are: {', '.join(FORMATS)}.") from None
