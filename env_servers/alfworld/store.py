"""Imported games in one compact file: SQLite, texts compressed, domain and grammar kept once. Standard library only.

Readers open it read-only and keep no game in memory; a writer makes a new file aside and renames it into place, so
what a reader has open stays whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from env_servers.alfworld.game import Game

SPLITS: tuple[str, ...] = ("train", "valid_seen", "valid_unseen", "valid_train")
"""ALFWorld's own splits. `valid_train` is a leftover that its authors do not report on, and AgentGym's test set."""

OFFICIAL_COUNTS: dict[str, int] = {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}

_COLUMNS = """folder TEXT, trial TEXT, sentence TEXT, walkthrough TEXT, domain INTEGER, grammar INTEGER,
    problem BLOB, digest TEXT"""
_SCHEMA = f"""
CREATE TABLE text (id INTEGER PRIMARY KEY, sha TEXT UNIQUE, body BLOB);
CREATE TABLE game (split TEXT, position INTEGER, {_COLUMNS}, PRIMARY KEY (split, position));
CREATE TEMP TABLE incoming (split TEXT, {_COLUMNS}, PRIMARY KEY (split, folder, trial));
"""
_ORDER = """
INSERT INTO game SELECT split, ROW_NUMBER() OVER (PARTITION BY split ORDER BY folder, trial) - 1,
    folder, trial, sentence, walkthrough, domain, grammar, problem, digest FROM incoming;
CREATE UNIQUE INDEX by_name ON game (split, folder, trial);
"""


class Store:
    """The imported games, for reading.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(path)
        # `immutable`: no locks and no journal beside it, so that a folder of another user's can be read.
        self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._texts: dict[int, str] = {}

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def counts(self) -> dict[str, int]:
        """Returns the number of games of each split that is there, in ALFWorld's order of splits."""
        found = dict(self._db.execute("SELECT split, COUNT(*) FROM game GROUP BY split"))
        return {split: found[split] for split in SPLITS if split in found}

    def folders(self, split: str) -> list[str]:
        """Returns the folder of each game of a split, by position."""
        rows = self._db.execute("SELECT folder FROM game WHERE split = ? ORDER BY position", (split,))
        return [folder for (folder,) in rows]

    def names(self, split: str) -> list[tuple[str, str]]:
        """Returns folder and trial of each game of a split, by position."""
        return list(self._db.execute("SELECT folder, trial FROM game WHERE split = ? ORDER BY position", (split,)))

    def position(self, split: str, folder: str, trial: str) -> int | None:
        """Returns the position of a game in its split."""
        query = "SELECT position FROM game WHERE split = ? AND folder = ? AND trial = ?"
        row = self._db.execute(query, (split, folder, trial)).fetchone()
        return None if row is None else int(row[0])

    def game(self, split: str, position: int) -> Game:
        """Returns a game.

        Raises:
            KeyError: There is none.
        """
        columns = "folder, trial, sentence, problem, walkthrough, domain, grammar"
        query = f"SELECT {columns} FROM game WHERE split = ? AND position = ?"
        row = self._db.execute(query, (split, position)).fetchone()
        if row is None:
            raise KeyError((split, position))
        folder, trial, sentence, problem, walkthrough, domain, grammar = row
        commands = tuple(json.loads(walkthrough))
        body = zlib.decompress(problem).decode()
        return Game(folder, trial, sentence, body, commands, self._text(domain), self._text(grammar))

    def digest(self) -> str:
        """Returns a sha256 over all games and their order."""
        total = hashlib.sha256()
        for row in self._db.execute("SELECT split, position, digest FROM game ORDER BY split, position"):
            total.update(json.dumps(row).encode())
        return total.hexdigest()

    def _text(self, number: int) -> str:
        if number not in self._texts:
            (body,) = self._db.execute("SELECT body FROM text WHERE id = ?", (number,)).fetchone()
            self._texts[number] = zlib.decompress(body).decode()
        return self._texts[number]


def write(path: Path, games: Iterable[tuple[str, Game]]) -> dict[str, int]:
    """Puts games into a file: their splits are replaced as a whole, its other splits stay.

    Args:
        path: The file, made with its folder where absent.
        games: Pairs of split and game, in any order; within a split they are kept in the order of folder and trial.

    Returns:
        How many games of each split came in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=".importing-", dir=path.parent)
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(aside)) as db:
            db.executescript(_SCHEMA)
            for split, game in games:
                _insert(db, split, game)
            counts = dict(db.execute("SELECT split, COUNT(*) FROM incoming GROUP BY split"))
            for split, game in _kept(path, counts):
                _insert(db, split, game)
            db.executescript(_ORDER)
        if counts:
            os.chmod(aside, 0o644)
            os.replace(aside, path)
        else:
            os.unlink(aside)
    except BaseException:
        os.unlink(aside)
        raise
    return {split: counts[split] for split in SPLITS if split in counts}


def _kept(path: Path, replaced: Container[str]) -> Iterator[tuple[str, Game]]:
    if not path.is_file():
        return
    with contextlib.closing(Store(path)) as store:
        for split, count in store.counts().items():
            if split not in replaced:
                yield from ((split, store.game(split, position)) for position in range(count))


def _insert(db: sqlite3.Connection, split: str, game: Game) -> None:
    values = (split, game.folder, game.trial, game.sentence, json.dumps(game.walkthrough))
    texts = (_text_id(db, game.domain), _text_id(db, game.grammar), zlib.compress(game.problem.encode(), 9))
    # The same game twice (a tree inside a tree) counts once.
    db.execute("INSERT OR REPLACE INTO incoming VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *texts, game.digest()))


def _text_id(db: sqlite3.Connection, text: str) -> int:
    sha = hashlib.sha256(text.encode()).hexdigest()
    db.execute("INSERT OR IGNORE INTO text (sha, body) VALUES (?, ?)", (sha, zlib.compress(text.encode(), 9)))
    return int(db.execute("SELECT id FROM text WHERE sha = ?", (sha,)).fetchone()[0])
