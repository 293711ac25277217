"""Reads the published files, and the re-publication on the Hugging Face Hub, as records. Standard library only."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

_CHUNK = 1 << 20


class SourceError(Exception):
    """Files that are not there or not what they should be; the message says which."""


def find(folder: Path) -> dict[str, Path]:
    """Finds the published files in a folder, gzipped or not: `products`, `notes` and, if any, `crowd` and `nouns`.

    Raises:
        SourceError: There are no products or no attributes, or several of a kind.
    """
    patterns = {
        "products": "items_shuffle*.json*",
        "notes": "items_ins_v2*.json*",
        "crowd": "items_human_ins*.json*",
        "nouns": "title_nouns*.json*",
    }
    found = {kind: sorted(folder.glob(pattern)) for kind, pattern in patterns.items()}
    for kind in ("products", "notes"):
        if not found[kind]:
            raise SourceError(
                f"{folder} has no {patterns[kind].replace('*', '')}; download WebShop's data with its setup.sh, "
                "or use `cope data import webshop hub:axon-rl/webshop`"
            )
    for kind in ("products", "notes", "crowd"):
        if len(found[kind]) > 1:
            names = ", ".join(path.name for path in found[kind])
            raise SourceError(f"{folder} has several files of one kind: {names}; keep those of one catalogue size")
    return {kind: paths[0] for kind, paths in found.items() if paths}


def read_json(path: Path) -> Any:
    """Reads a small file.

    Raises:
        SourceError: It is no JSON.
    """
    try:
        with _open(path) as file:
            return json.load(file)
    except ValueError as error:
        raise SourceError(f"{path.name} is damaged: {error}; download it again") from error


def read_array(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON array of any size (the full catalogue has several gigabytes).

    Raises:
        SourceError: The file is no array of objects, or ends early.
    """
    decoder = json.JSONDecoder()
    with _open(path) as file:
        text, at = file.read(_CHUNK).lstrip(), 1
        if not text.startswith("["):
            raise SourceError(f"{path.name} is no JSON array")
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(text, at)
            except ValueError:
                value, end = None, len(text)
            if value is None or end == len(text):
                more = file.read(_CHUNK)
                if not more:
                    raise SourceError(f"{path.name} ends early or is damaged; download it again")
                text, at = text[at:] + more, 0
                continue
            if not isinstance(value, dict):
                raise SourceError(f"{path.name} holds something that is no product")
            yield cast("dict[str, Any]", value)
            text, at = (text[end:], 0) if end > _CHUNK else (text, end)


def from_hub_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a row of `axon-rl/webshop`, whose cells are JSON in text, into a published record."""
    cells = {key: cell(value) for key, value in row.items()}
    record = {key: cells.get(key) for key in ("asin", "name", "full_description", "small_description", "category")}
    record.update({key: cells.get(key) for key in ("product_category", "query")})
    record["pricing"] = "".join(f"${price}" for price in _list(cells.get("pricing")))
    options = cells.get("options")
    groups = cast("dict[str, list[str]]", options) if isinstance(options, dict) else {}
    record["customization_options"] = {
        name: [{"value": value.replace(" | ", "/")} for value in values] for name, values in groups.items()
    }
    return record


def notes_of_hub_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns attributes and synthetic instruction of such a row."""
    cells = {key: cell(row.get(key)) for key in ("Attributes", "instruction_text", "instruction_attributes")}
    attributes = _list(cells["Attributes"])
    return {
        "attributes": [] if attributes == ["DUMMY_ATTR"] else attributes,
        "instruction": cells["instruction_text"] or "",
        "instruction_attributes": _list(cells["instruction_attributes"]),
    }


def cell(value: Any) -> Any:
    """Reads a cell, which is a value or its JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _list(value: Any | None) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t", ","):
        at += 1
    return at


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
