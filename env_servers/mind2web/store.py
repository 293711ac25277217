"""Recordings in one SQLite file: of each step the page as elements, and apart from it what was done.

A task of the data set has some 6 MB of HTML; here it has some 20 kB, compressed. Readers open the file read-only; a
writer makes a new one aside and renames it into place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_servers.mind2web.metrics import Gold
from env_servers.mind2web.official import Recording, RowError, Step
from env_servers.mind2web.page import Element, elements

FORMAT = 1
_TASK = "split TEXT, id TEXT, website TEXT, domain TEXT, subdomain TEXT, text TEXT"
_SCHEMA = f"""
CREATE TABLE task (position INTEGER PRIMARY KEY, {_TASK}, UNIQUE (id));
CREATE TABLE step (id TEXT, number INTEGER, page BLOB, gold BLOB, PRIMARY KEY (id, number));
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT);
"""


class StoreError(Exception):
    """A file that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        id: `annotation_id`.
        split: The split that it is in.
        website: Where it was recorded.
        domain: E.g. `Travel`.
        subdomain: E.g. `Airlines`.
        text: What is to be done.
    """

    id: str
    split: str
    website: str
    domain: str
    subdomain: str
    text: str

    @property
    def category(self) -> str:
        """What results are grouped by."""
        return f"{self.domain}/{self.subdomain}"


@dataclass(frozen=True)
class Recorded:
    """What was done on a page.

    Attributes:
        gold: The action.
        revealing: The page as the original shows it where that differs: with the recorded element among the lines
            even if nothing shows that it can be used.
    """

    gold: Gold
    revealing: tuple[Element, ...] | None


class Store:
    """Recordings, for reading.

    Args:
        database: An opened file; `open_file` and `in_memory` make it.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def splits(self) -> list[str]:
        """Returns the splits that are there, in the order of their tasks."""
        return [
            split
            for (split,) in self._database.execute("SELECT split FROM task GROUP BY split ORDER BY MIN(position)")
        ]

    def tasks(self, split: str) -> list[TaskRow]:
        """Returns the tasks of a split in published order."""
        query = "SELECT id, split, website, domain, subdomain, text FROM task WHERE split = ? ORDER BY position"
        return [TaskRow(*row) for row in self._database.execute(query, (split,))]

    def task(self, id: str) -> TaskRow | None:
        """Returns a task by its id."""
        query = "SELECT id, split, website, domain, subdomain, text FROM task WHERE id = ?"
        row = self._database.execute(query, (id,)).fetchone()
        return None if row is None else TaskRow(*row)

    def numbers(self, id: str) -> list[int]:
        """Returns the numbers of a task's steps, in order."""
        query = "SELECT number FROM step WHERE id = ? ORDER BY number"
        return [number for (number,) in self._database.execute(query, (id,))]

    def page(self, id: str, number: int) -> list[Element]:
        """Returns the page before a step. Made without knowing what was done on it."""
        return [_element(one) for one in self._read("page", id, number)]

    def recorded(self, id: str, number: int) -> Recorded:
        """Returns what was done on it."""
        body = self._read("gold", id, number)
        revealing = body.pop("revealing", None)
        return Recorded(Gold(**body), None if revealing is None else tuple(_element(one) for one in revealing))

    def digest(self) -> str:
        """Returns a sha256 over tasks, pages and actions."""
        digests = sorted((split, counts["digest"]) for split, counts in self.facts().items())
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Returns what the writer counted, by split."""
        return {name: json.loads(value) for name, value in self._database.execute("SELECT name, value FROM fact")}

    def _read(self, column: str, id: str, number: int) -> Any:
        query = f"SELECT {column} FROM step WHERE id = ? AND number = ?"
        (body,) = self._database.execute(query, (id, number)).fetchone()
        return json.loads(zlib.decompress(body).decode("utf-8", "surrogatepass"))


def open_file(path: Path) -> Store:
    """Opens a file that `write` made.

    Raises:
        StoreError: It is of another format.
    """
    # `immutable`: no locks and no journal beside it, so that a folder of another user's can be read.
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found != FORMAT:
        database.close()
        raise StoreError(f"{path.name} has format {found}, not {FORMAT}: run `cope data import mind2web` again.")
    return Store(database)


def in_memory(recordings: Iterable[tuple[str, Recording]]) -> Store:
    """Makes a store of recordings, each with its split, that lives as long as the process."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    _Writer(database).run(recordings)
    return Store(database)


def write(path: Path, recordings: Iterable[tuple[str, Recording]]) -> dict[str, Any]:
    """Puts recordings into a file: their splits are replaced as a whole, its other splits stay.

    Args:
        path: The file, made with its folder where absent.
        recordings: Pairs of split and recording in published order; the steps of a task may come one by one.

    Returns:
        What was counted, by split.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=".importing-", dir=path.parent)
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(aside)) as database:
            facts = _Writer(database).run(recordings)
            if path.is_file():
                _keep(database, path, facts)
        if facts:
            os.chmod(aside, 0o644)
            os.replace(aside, path)
            return facts
        os.unlink(aside)
        return facts
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise


class _Writer:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._database.executescript(f"{_SCHEMA} PRAGMA user_version = {FORMAT};")
        self._counts: dict[str, Counter[str]] = {}
        # Over the content, not over the compressed bytes: those depend on the version of zlib.
        self._digests: dict[str, Any] = {}

    def run(self, recordings: Iterable[tuple[str, Recording]]) -> dict[str, Any]:
        for split, recording in recordings:
            counts = self._counts.setdefault(split, Counter())
            self._digests.setdefault(split, hashlib.sha256())
            if recording.steps:
                self._task(split, recording, counts)
            else:
                counts["without_steps"] += 1
        facts: dict[str, Any] = {
            split: {**counts, "digest": self._digests[split].hexdigest()}
            for split, counts in self._counts.items()
            if counts["tasks"]
        }
        for split, counts in facts.items():
            self._database.execute("INSERT INTO fact VALUES (?, ?)", (split, json.dumps(counts)))
        self._database.commit()
        return facts

    def _task(self, split: str, recording: Recording, counts: Counter[str]) -> None:
        row = (split, recording.id, recording.website, recording.domain, recording.subdomain, recording.text)
        known = self._database.execute("SELECT split FROM task WHERE id = ?", (recording.id,)).fetchone()
        if known is None:
            self._database.execute(f"INSERT INTO task VALUES (NULL, {', '.join('?' * len(row))})", row)
            counts["tasks"] += 1
            self._digests[split].update(_json(row))
        elif known[0] != split:
            raise RowError(f"{recording.id} is in {known[0]} and in {split}: import the splits of one data set only")
        for step in recording.steps:
            page, body, reached = _digested(recording, step)
            values = (recording.id, step.number, zlib.compress(page, 9), zlib.compress(body, 9))
            new = self._database.execute("INSERT OR IGNORE INTO step VALUES (?, ?, ?, ?)", values).rowcount
            if new:  # the same row twice counts once
                self._digests[split].update(page + body)
                counts.update(steps=1, without_element=not step.nodes, unreachable=not reached)


def _digested(recording: Recording, step: Step) -> tuple[bytes, bytes, bool]:
    """Returns the page, what was done, and whether the page shows the element that it was done to."""
    page = elements(step.pages[0])
    source = step.pages[0]
    if not page:  # the cleaned page may be empty; which of the two is used must not depend on what was done
        source = step.pages[1]
        page = elements(source)
    reached = any(element.node in step.nodes for element in page if element.node)
    body: dict[str, Any] = {"op": step.op, "value": step.value, "nodes": list(step.nodes)}
    body["text"] = recording.reprs[step.number] if step.number < len(recording.reprs) else ""
    if step.nodes and not reached:
        body["revealing"] = [_fields(one) for one in elements(source, also=step.nodes)]
    return _json([_fields(one) for one in page]), _json(body), reached


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _fields(element: Element) -> list[Any]:
    return [element.node, element.role, element.name, element.details]


def _element(fields: list[Any]) -> Element:
    node, role, name, details = fields
    return Element(node, role, name, tuple(details))


def _keep(database: sqlite3.Connection, path: Path, facts: dict[str, Any]) -> None:
    """Copies the splits of an older file that are not replaced."""
    with contextlib.closing(open_file(path)) as old:
        kept = [split for split in old.splits() if split not in facts]
        counted = old.facts()
    database.execute("ATTACH ? AS old", (str(path),))
    for split in kept:
        where = "FROM old.task WHERE split = ? ORDER BY position"
        database.execute(
            f"INSERT OR IGNORE INTO task SELECT NULL, split, id, website, domain, subdomain, text {where}", (split,)
        )
        database.execute(
            "INSERT OR IGNORE INTO step SELECT step.* FROM old.step JOIN old.task USING (id) WHERE split = ?", (split,)
        )
        database.execute("INSERT INTO fact VALUES (?, ?)", (split, json.dumps(counted[split])))
    database.commit()
