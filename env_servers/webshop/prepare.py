"""Builds a catalogue from published files. Runs in WebShop's own environment; `data.py` starts it."""

from __future__ import annotations

import argparse
import itertools
import json
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from env_servers.webshop import official, store
from env_servers.webshop.catalogues import kinds_for


class UnknownNouns(Exception):
    """A product's name has no noun list."""


def main(arguments: list[str] | None = None) -> None:
    """Builds the catalogue and prints its manifest; on failure prints one line to standard error and exits with 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--nouns", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--provenance", type=json.loads, required=True)
    chosen = parser.parse_args(arguments)
    try:
        manifest = _build(chosen)
    except (official.SourceError, store.MalformedProduct, UnknownNouns) as error:
        sys.exit(str(error))
    print(json.dumps(manifest))  # noqa: T201 - the caller reads it


def _build(chosen: argparse.Namespace) -> dict[str, Any]:
    files = official.find(chosen.source)
    notes: Mapping[str, Any] = official.read_json(files["notes"])
    crowd: Mapping[str, Any] = official.read_json(files["crowd"]) if "crowd" in files else {}
    records = itertools.islice(official.read_array(files["products"]), chosen.limit)
    return store.build(
        chosen.target,
        (_record(raw, notes, crowd) for raw in records),
        noun_lists(chosen.nouns),
        seed=chosen.seed,
        kinds=kinds_for(len(notes) if chosen.limit is None else chosen.limit),
        strict=chosen.strict,
        provenance=chosen.provenance,
    )


def _record(raw: dict[str, Any], notes: Mapping[str, Any], crowd: Mapping[str, Any]) -> store.Record:
    asin = str(raw.get("asin"))
    return store.Record(raw, notes.get(asin, {}), crowd.get(asin, []))


def noun_lists(path: Path) -> Callable[[str], list[str]]:
    """Returns a look-up in a file of noun lists: a JSON object, gzipped or not, or what `tagger.py` writes."""
    look_up = _in_database(path) if path.suffix == ".sqlite" else official.read_json(path).get

    def nouns(name: str) -> list[str]:
        found = look_up(name)
        if found is None:
            raise UnknownNouns(f"{path.name} has no nouns for {name[:80]!r}; leave --nouns out to have them tagged")
        return list(found)

    return nouns


def _in_database(path: Path) -> Callable[[str], list[str] | None]:
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)

    def look_up(name: str) -> list[str] | None:
        row = database.execute("SELECT nouns FROM title WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    return look_up
