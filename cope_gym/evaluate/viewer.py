"""One self-contained HTML file from recorded episodes: data, style and script inside, nothing loaded from elsewhere.

Episodes are embedded as compressed blocks, so that a page of thousands opens at once and reads a block when it is
looked at. Model text never becomes markup: it is base64 in the file and a text node on the page, whose own policy
admits no other script.
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from cope_gym.evaluate.drift import FLAGS, turn_flags
from cope_gym.evaluate.store import replace
from cope_gym.trajectory import Trajectory, Turn, protected

OUTCOMES = ("solved", "truncated", "failed", "error")
_BLOCK_CHARS = 400_000  # of text in a block: some 10 ms to unpack
_WITHHELD = "The messages of this episode are left out: its benchmark asks not to publish them in plain text."


@dataclass
class Run:
    """One run on the page.

    Attributes:
        label: Its name there.
        episodes: Its episodes.
        result: Content of its `result.json`, where it is an evaluation.
    """

    label: str
    episodes: Sequence[Trajectory]
    result: Mapping[str, Any] | None = None


@dataclass
class Page:
    """What a page shows.

    Attributes:
        title: Of the window and the page.
        headline: One sentence: what came out.
        subtitle: One line under it.
        runs: The runs.
        tiles: `{"label", "value", "note"}` each, and `change`, `since`, `direction` where there is a reference.
        curves: `{"group", "name", "lines": [{"run", "points": [[step, value]]}]}` each.
        comparisons: `{"a", "b", "measure", …}` with indices into `runs` and the fields of `statistics.Paired`.
        skills: Rows of a skill bank's table, see `skills.bank_rows`.
        facts: Name → text, for the last section.
        show_protected: Also embed messages that their benchmark wants kept out of plain text.
    """

    title: str
    headline: str = ""
    subtitle: str = ""
    runs: Sequence[Run] = ()
    tiles: Sequence[Mapping[str, str]] = ()
    curves: Sequence[Mapping[str, Any]] = ()
    comparisons: Sequence[Mapping[str, Any]] = ()
    skills: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    show_protected: bool = False


def write(page: Page, path: Path) -> Path:
    """Writes the page and returns its path. Equal input gives an equal file."""
    replace(path, render(page))
    return path


def render(page: Page) -> str:
    """Returns the page as HTML."""
    script = _script()
    parts = {
        "TITLE": html.escape(page.title),
        "STYLE": _asset("viewer.css"),
        "SCRIPT": script,
        "SCRIPT_HASH": f"'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'",
        "DATA": "\n".join(_data(page)),
    }
    document = _asset("viewer.html")
    pieces = document.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return (files("cope_gym.evaluate") / "assets" / name).read_text(encoding="utf-8")


def _script() -> str:
    folder = files("cope_gym.evaluate") / "assets"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".js"))
    return '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in names) + "\n})();"


def _data(page: Page) -> Iterator[str]:
    categories = sorted({episode.category for run in page.runs for episode in run.episodes})
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    errors: list[dict[str, Any]] = []
    block: list[dict[str, Any]] = []
    chars = number = 0
    for index, run in enumerate(page.runs):
        for episode in run.episodes:
            flags = turn_flags(episode)
            body = _body(episode, flags, page.show_protected)
            row = (index, categories.index(episode.category), flags, number, len(block))
            for name, value in zip(_COLUMNS, _row(episode, *row), strict=True):
                columns[name].append(value)
            if episode.error:
                errors.append({"run": index, "task_id": episode.task_id, "sample": episode.sample, **episode.error})
            block.append(body)
            chars += sum(len(text) for _, text in body["messages"]) + 40 * len((episode.tokens or {}).get("ids", []))
            if chars > _BLOCK_CHARS:
                yield _embed(f"block-{number}", block)
                block, chars, number = [], 0, number + 1
    if block:
        yield _embed(f"block-{number}", block)
    yield _embed("index", _index(page, categories, columns, errors))


_COLUMNS = ("run", "category", "flags", "block", "offset", "task", "sample", "step", "outcome", "score", "turns")


def _row(episode: Trajectory, run: int, category: int, flags: list[list[str]], block: int, offset: int) -> list[Any]:
    bits = sum(1 << bit for bit, name in enumerate(FLAGS) if any(name in turn for turn in flags))
    outcome = OUTCOMES.index(outcome_of(episode))
    place = [run, category, bits, block, offset, episode.task_id, episode.sample, episode.step]
    return [*place, outcome, _finite(episode.score), len(episode.turns)]


def outcome_of(episode: Trajectory) -> str:
    """Returns one of `OUTCOMES`."""
    if episode.error:
        return "error"
    if episode.success:
        return "solved"
    return "truncated" if episode.truncated else "failed"


def _body(episode: Trajectory, flags: list[list[str]], show_protected: bool) -> dict[str, Any]:
    withheld = protected(episode.env, episode.split) and not show_protected
    return {
        "task_id": episode.task_id,
        "policy": episode.policy,
        "sample": episode.sample,
        "seed": episode.seed,
        "score": _finite(episode.score),
        "reward": _finite(episode.reward),
        "error": episode.error,
        "messages": [] if withheld else [[message["role"], message["content"]] for message in episode.messages],
        "turns": [_turn(episode, turn, withheld) for turn in episode.turns],
        "flags": flags,
        "options": episode.options,
        "extra": {} if withheld else episode.extra,
        "tokens": None if withheld else _tokens(episode),
        "withheld": _WITHHELD if withheld else None,
    }


def _turn(episode: Trajectory, turn: Turn, withheld: bool) -> dict[str, Any]:
    span = None if withheld else turn.action_span
    text = episode.messages[turn.message]["content"] if span else ""
    return {
        "index": turn.index,
        "message": turn.message,
        "action": "" if withheld else turn.action,
        "span": span and [_utf16(text, position) for position in span],
        "valid": turn.valid,
        "reward": _finite(turn.reward),
        "score": _finite(turn.score),
        "tokens": turn.tokens,
    }


def _utf16(text: str, position: int) -> int:
    """JavaScript counts UTF-16 units, Python counts characters."""
    return position if text.isascii() else position + sum(ord(character) > 0xFFFF for character in text[:position])


def _tokens(episode: Trajectory) -> dict[str, list[Any]] | None:
    if not episode.tokens:
        return None
    kept = ("ids", "mask", "text", "logprobs", "advantages", "forecast")
    rounded = {
        key: [round(v, 4) if isinstance(v, float) else v for v in episode.tokens[key]]
        for key in kept
        if key in episode.tokens
    }
    return {key: [_finite(v) if isinstance(v, float) else v for v in column] for key, column in rounded.items()}


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def _index(
    page: Page, categories: list[str], columns: Mapping[str, list[Any]], errors: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "title": page.title,
        "headline": page.headline or page.title,
        "subtitle": page.subtitle,
        "hasOverview": bool(page.headline or page.tiles or page.curves),
        "runs": [_run(run) for run in page.runs],
        "categories": categories,
        "flags": list(FLAGS.items()),
        "tiles": list(page.tiles),
        "curves": list(page.curves),
        "comparisons": list(page.comparisons),
        "skills": list(page.skills),
        "errors": errors,
        "facts": dict(page.facts),
        "episodes": columns,
    }


def _run(run: Run) -> dict[str, Any]:
    if run.result is None:
        return {"label": run.label, "metrics": None}
    result = run.result
    return {
        "label": run.label,
        "metrics": result["metrics"] or None,
        "categories": result["categories"],
        "complete": result["complete"],
        "planned": result["planned"],
        "played": result["episodes"],
        "errors": len(result["errors"]),
    }


def _embed(name: str, data: Any) -> str:
    packed = zlib.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), 6)
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>'
