"""Reads published rows: one a task (`osunlp/Mind2Web`) or one an action (`osunlp/Multimodal-Mind2Web`).

Standard library only. Nothing is read of a row but what is named here; screenshots and negative candidates stay out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

SPLITS: tuple[str, ...] = ("train", "test_task", "test_website", "test_domain")

OFFICIAL_COUNTS: dict[str, tuple[int, ...]] = {
    "train": (1009,),
    "test_task": (252, 177),
    "test_website": (177, 142),
    "test_domain": (912, 694),
}
"""Tasks of each split: as first published, and as verified for Multimodal-Mind2Web."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SPLIT_IN_NAME = re.compile(r"(?:^|[/\\_-])(train|test[_-]?task|test[_-]?website|test[_-]?domain)(?=[/\\._-]|$)")
_OPS = {"CLICK": "CLICK", "TYPE": "TYPE", "SELECT": "SELECT", "HOVER": "CLICK", "ENTER": "CLICK"}


class RowError(Exception):
    """A row that is no task and no action of Mind2Web; the message says why."""


@dataclass(frozen=True)
class Step:
    """One recorded step.

    Attributes:
        number: Its place in the recording.
        pages: The page before the action, as cleaned and as raw HTML.
        op: `CLICK`, `TYPE` or `SELECT`.
        value: What was typed or selected.
        nodes: Nodes of its positive candidates.
    """

    number: int
    pages: tuple[str, str]
    op: str
    value: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """One task, with all of its steps or with one.

    Attributes:
        id: `annotation_id`.
        website: Where it was recorded.
        domain: E.g. `Travel`.
        subdomain: E.g. `Airlines`.
        text: What is to be done.
        reprs: All actions in words.
        steps: The steps of the row.
    """

    id: str
    website: str
    domain: str
    subdomain: str
    text: str
    reprs: tuple[str, ...]
    steps: tuple[Step, ...]


def split_of(name: str) -> str | None:
    """Returns the split that a published file belongs to by its name or folder, e.g. `data/train/train_10.json`.

    A file that is called `test` and no more is in none: a folder's name shall not make training data of it.
    """
    found = _SPLIT_IN_NAME.findall(name.lower())
    if not found or (found[-1] == "train" and "test" in re.split(r"[/\\]", name.lower())[-1]):
        return None
    return re.sub(r"test[_-]?", "test_", found[-1])


def in_order(name: str) -> tuple[str | int, ...]:
    """Sorts file names so that `train_10` comes after `train_9`."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def read(row: Mapping[str, Any]) -> Recording:
    """Reads a row.

    Raises:
        RowError: A part is missing or of a kind that was never published.
    """
    id = row.get("annotation_id")
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise RowError(f"annotation_id {str(id)[:60]!r} is no id")
    words = [row.get(name) for name in ("website", "domain", "subdomain", "confirmed_task")]
    if not all(isinstance(word, str) for word in words):
        raise RowError(f"{id} lacks a website, domain, subdomain or confirmed_task")
    website, domain, subdomain, text = cast("list[str]", words)
    if "actions" in row:
        steps = tuple(_step(id, n, one) for n, one in enumerate(_list(id, row["actions"], "actions")))
    elif "action_uid" in row:
        number = str(row.get("target_action_index"))
        if not number.isdigit():
            raise RowError(f"{id} has an action without target_action_index")
        steps = (_step(id, int(number), row),)
    else:
        raise RowError(f"{id} has neither actions nor an action_uid")
    reprs = tuple(str(one) for one in _list(id, row.get("action_reprs") or [], "action_reprs"))
    return Recording(id, website, domain, subdomain, " ".join(text.split()), reprs, steps)


def _step(id: str, number: int, action: Any) -> Step:
    if not isinstance(action, Mapping):
        raise RowError(f"{id}, action {number} is no object")
    fields = cast("Mapping[str, Any]", action)
    operation = _object(id, fields.get("operation"))
    op = _OPS.get(str(operation.get("op")).upper())
    if op is None:
        raise RowError(f"{id}, action {number} has the operation {str(operation.get('op'))[:20]!r}")
    candidates = _list(id, fields.get("pos_candidates") or [], "pos_candidates")
    nodes = (_object(id, one).get("backend_node_id") for one in candidates)
    pages = (fields.get("cleaned_html") or "", fields.get("raw_html") or "")
    value = operation.get("value") or ""
    return Step(number, pages, op, str(value), tuple(str(node) for node in nodes if node is not None))


def _object(id: str, value: Any) -> Mapping[str, Any]:
    """Objects come as such, or as JSON in text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise RowError(f"{id} has an action without operation, or a candidate that is no object")
    return cast("Mapping[str, Any]", value)


def _list(id: str, value: Any, name: str) -> Iterator[Any]:
    if not isinstance(value, list):
        raise RowError(f"{id}: {name} is no list")
    return iter(cast("list[Any]", value))
