"""A catalogue on disk: products, search index and goals, prepared once, opened read-only by any number of processes.

`build` writes a folder; `Catalogue` opens it. Prices and price ceilings are drawn in `build` and stored, so that the
same goal means the same on every machine and in every process; the original draws them anew at each start.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from env_servers.webshop import bm25
from env_servers.webshop.analysis import tokenize
from env_servers.webshop.goals import Goal, Source, human_goals, synthetic_goals
from env_servers.webshop.products import MalformedProduct, Product, parse, usable_id
from env_servers.webshop.reward import best_selection

FORMAT = 1
RESULTS = 50
KINDS = ("human", "synthetic")
_CACHED_PRODUCTS = 256
_CACHED_SEARCHES = 64


@dataclass(frozen=True)
class Record:
    """What is known of one product before it is normalised.

    Attributes:
        raw: The published product record.
        notes: Its entry of the attribute file: `attributes`, `instruction`, `instruction_attributes`.
        crowd: Its crowd-written instructions.
    """

    raw: Mapping[str, Any]
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    crowd: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class StoreError(Exception):
    """A catalogue folder that cannot be used; the message says what to do."""


class Catalogue:
    """An opened catalogue. Immutable, shared by all sessions of a process; its arrays are memory-mapped.

    Args:
        folder: A folder that `build` wrote.

    Raises:
        StoreError: The folder holds no catalogue, or one of another format.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest: dict[str, Any] = {**_manifest(folder), "name": folder.name}
        self._folder = folder
        self._database = sqlite3.connect(f"{(folder / 'products.sqlite').as_uri()}?mode=ro&immutable=1", uri=True)
        self._asins = np.load(folder / "asins.npy", mmap_mode="r")
        self._index = bm25.Index(folder / "index")
        self.product: Callable[[str], Product] = functools.lru_cache(maxsize=_CACHED_PRODUCTS)(self._read_product)
        self._found = functools.lru_cache(maxsize=_CACHED_SEARCHES)(self._search)
        self._goals: dict[str, list[Goal]] = {}

    def search(self, text: str) -> list[str]:
        """Returns the ids of the 50 best products. No query is special, unlike the original's `<r>` or `<q>`."""
        return list(self._found(text))

    def goals(self, kind: str) -> list[Goal]:
        """Returns the `human` or `synthetic` goals in published order."""
        if kind not in self._goals:
            path = self._folder / f"goals-{kind}.jsonl"
            with path.open(encoding="utf-8") as lines:
                self._goals[kind] = [Goal(**json.loads(line)) for line in lines]
        return self._goals[kind]

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def _search(self, text: str) -> tuple[str, ...]:
        hits = self._index.search(tokenize(text), RESULTS)
        return tuple(self._asins[hit].decode("ascii") for hit in hits)

    def _read_product(self, asin: str) -> Product:
        row = self._database.execute("SELECT body FROM product WHERE asin = ?", (asin,)).fetchone()
        if row is None:
            raise KeyError(f"no product {asin} in {self._folder.name}")
        return _unpack(row[0])


def build(
    folder: Path,
    records: Iterable[Record],
    nouns: Callable[[str], list[str]],
    *,
    seed: int,
    kinds: Iterable[str] = KINDS,
    strict: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Prepares a catalogue and puts it at `folder` in one move, replacing what is there.

    Args:
        folder: Where to.
        records: The products in published order.
        nouns: Gives the nouns of a product's name.
        seed: Of prices and price ceilings. They equal those of the original started after `random.seed(seed)`.
        kinds: Which goals to prepare.
        strict: Whether a malformed record is an error in place of being skipped and counted.
        provenance: Anything to note in the manifest.

    Returns:
        The manifest.

    Raises:
        MalformedProduct: With `strict`, the first malformed record.
    """
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        manifest = _Builder(draft, nouns, seed, strict).run(records, list(kinds))
        manifest.update(provenance or {})
        (draft / "manifest.json").write_text(
            json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


class _Builder:
    """The steps of `build`, with the state that they share."""

    def __init__(self, folder: Path, nouns: Callable[[str], list[str]], seed: int, strict: bool) -> None:
        self._folder = folder
        self._nouns = nouns
        self._seed = seed
        self._strict = strict
        self._rng = Random(seed)
        self._digest = hashlib.sha256()
        self._dropped = {"duplicate_or_bad_id": 0, "malformed": 0}
        self._sources: list[Source] = []
        self._database = sqlite3.connect(folder / "products.sqlite")
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE product (asin TEXT NOT NULL, body BLOB NOT NULL)")

    def run(self, records: Iterable[Record], kinds: list[str]) -> dict[str, Any]:
        rows = self._rows(records, kinds)
        self._database.executemany("INSERT INTO product VALUES (?, ?)", rows)
        # Afterwards: with the index in place, a million rows in another order take many times as long.
        self._database.execute("CREATE UNIQUE INDEX by_asin ON product (asin)")
        self._database.commit()
        asins = [row[0] for row in self._database.execute("SELECT asin FROM product ORDER BY asin")]
        np.save(self._folder / "asins.npy", np.array(asins, dtype="S10"))
        bm25.build(self._folder / "index", (tokenize(product.search_text) for product in self._products()))
        counts = {kind: self._goals(kind) if kind in kinds else self._write_goals(kind, []) for kind in KINDS}
        self._database.close()
        return {
            "format": FORMAT,
            "seed": self._seed,
            "products": len(asins),
            "dropped": self._dropped,
            "goals": {kind: counts[kind] for kind in KINDS},
            "digest": self._digest.hexdigest(),
        }

    def _rows(self, records: Iterable[Record], kinds: list[str]) -> Iterator[tuple[str, bytes]]:
        seen: set[str] = set()
        for record in records:
            asin = record.raw.get("asin")
            if not usable_id(record.raw) or asin in seen:
                self._dropped["duplicate_or_bad_id"] += 1
                continue
            try:
                nouns = self._nouns(record.raw.get("name", ""))
                product = parse(record.raw, list(record.notes.get("attributes", [])), nouns, self._rng)
            except MalformedProduct:
                if self._strict:
                    raise
                self._dropped["malformed"] += 1
                continue
            seen.add(product.asin)
            self._keep_source(product, record, kinds)
            body = json.dumps(product.as_json(), ensure_ascii=False).encode("utf-8", "surrogatepass")
            self._digest.update(body)
            yield product.asin, zlib.compress(body, 1)

    def _keep_source(self, product: Product, record: Record, kinds: list[str]) -> None:
        crowd = record.crowd if "human" in kinds else ()
        instruction = record.notes.get("instruction") or "" if "synthetic" in kinds else ""
        if crowd or instruction:
            wanted = list(record.notes.get("instruction_attributes", []))
            self._sources.append(Source(product, crowd, instruction, wanted))

    def _products(self) -> Iterator[Product]:
        for (body,) in self._database.execute("SELECT body FROM product ORDER BY asin"):
            yield _unpack(body)

    def _goals(self, kind: str) -> dict[str, int]:
        """Draws the goals of a kind; each kind starts from the state that the prices left, as in the original."""
        rng = Random()
        rng.setstate(self._rng.getstate())
        goals = (human_goals if kind == "human" else synthetic_goals)(self._sources, rng)
        products = {source.product.asin: source.product for source in self._sources}
        return self._write_goals(
            kind, [replace(goal, reachable=best_selection(goal, products[goal.asin])[1]) for goal in goals]
        )

    def _write_goals(self, kind: str, goals: list[Goal]) -> dict[str, int]:
        with (self._folder / f"goals-{kind}.jsonl").open("w", encoding="utf-8") as out:
            for goal in goals:
                line = json.dumps(goal.as_json(), ensure_ascii=False)
                self._digest.update(line.encode("utf-8", "surrogatepass"))
                out.write(line + "\n")
        return {"total": len(goals), "unreachable": sum(not goal.reachable for goal in goals)}


def _unpack(body: bytes) -> Product:
    return Product(**json.loads(zlib.decompress(body).decode("utf-8", "surrogatepass")))


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        raise StoreError(f"no WebShop catalogue in {folder}; make one with `cope data import webshop PATH`")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if manifest.get("format") != FORMAT:
        raise StoreError(
            f"the catalogue in {folder} has format {manifest.get('format')}, not {FORMAT}: import it again"
        )
    return manifest
