"""Builds a file of recordings from published data. Runs in Mind2Web's own environment; `data.py` starts it.

Standard input: one line with the order, then rows, one a line. Standard output: one JSON object a line.
"""

# ijson is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import ijson

from env_servers.mind2web import store
from env_servers.mind2web.official import Recording, RowError, in_order, read, split_of

_EVERY = 100  # tasks between two reports
_UNZIP = "unzip it with a program that can (`7z x test.zip`), then import the folder"


class SourceError(Exception):
    """Files that cannot be read; the message says which and what to do."""


def main() -> None:
    """Builds what standard input says and prints what was counted; on failure prints why and exits with 1."""
    source = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogatepass")
    try:
        _say(facts=build(json.loads(source.readline()), source))
    except (SourceError, store.StoreError, RowError, OSError) as error:
        _say(error=str(error))
        sys.exit(1)


def build(order: Mapping[str, Any], lines: Iterator[str]) -> dict[str, Any]:
    """Builds a file.

    Args:
        order: `target`, `files` (split and path of each), `password` and `limit`.
        lines: Further rows, each JSON of split and row.

    Raises:
        SourceError: A file cannot be read, or nothing in it is a task.
    """
    reader = _Reader(order["limit"], order["password"])
    facts = store.write(Path(order["target"]), reader.recordings(order["files"], lines))
    if not facts:
        raise SourceError(f"Nothing there is a task of Mind2Web{reader.why()}.")
    for split, count in reader.malformed.items():
        if split in facts:
            facts[split]["malformed"] = count
    return facts


class _Reader:
    def __init__(self, limit: int | None, password: str) -> None:
        self._limit = limit
        self._password = password.encode()
        self._seen: dict[str, set[str]] = defaultdict(set)
        self.malformed: Counter[str] = Counter()
        self._problem = ""

    def why(self) -> str:
        return f"; the last row: {self._problem}" if self._problem else ""

    def recordings(self, files: list[tuple[str, str]], lines: Iterator[str]) -> Iterator[tuple[str, Recording]]:
        for split, row in self._rows(files, lines):
            try:
                recording = read(row)
            except RowError as error:
                self.malformed[split] += 1
                self._problem = str(error)
                continue
            seen = self._seen[split]
            if self._limit is not None and recording.id not in seen and len(seen) >= self._limit:
                continue
            if recording.id not in seen and len(seen) % _EVERY == 0:
                _say(say=f"{split}: {len(seen)} tasks read")
            seen.add(recording.id)
            yield split, recording

    def _rows(self, files: list[tuple[str, str]], lines: Iterator[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for split, path in files:
            _say(say=f"reading {Path(path).name}")
            if zipfile.is_zipfile(path):
                yield from self._zipped(path, split)
            else:
                with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
                    yield from ((split, row) for row in _objects(cast("IO[bytes]", file), path))
        for line in lines:
            split, row = json.loads(line)
            yield split, row

    def _zipped(self, path: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Reads an archive member by member; nothing is unpacked onto the disk."""
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist(), key=in_order):
                part = split or split_of(name)
                if not name.endswith(".json") or part is None:
                    continue
                _say(say=f"reading {name}")
                try:
                    with archive.open(name, pwd=self._password) as file:
                        yield from ((part, row) for row in _objects(file, name))
                except NotImplementedError as error:
                    raise SourceError(
                        f"{Path(path).name} is encrypted in a way that Python cannot read: {_UNZIP}."
                    ) from error
                except RuntimeError as error:
                    raise SourceError(f"{Path(path).name} cannot be opened ({error}): name its --password.") from error
                except zipfile.BadZipFile as error:
                    raise SourceError(f"{Path(path).name} is damaged or its --password is wrong ({error}).") from error


def _objects(file: IO[bytes], name: str) -> Iterator[Mapping[str, Any]]:
    """Yields the objects of a JSON array, or of JSON lines, one at a time: a file has 600 MB."""
    buffered = io.BufferedReader(cast("Any", file))
    start = buffered.peek(64).lstrip()[:1]
    try:
        values = ijson.items(buffered, "item" if start == b"[" else "", use_float=True, multiple_values=start != b"[")
        for value in values:
            if not isinstance(value, dict):
                raise SourceError(f"{Path(name).name} holds something that is no task.")
            yield value
    except ijson.JSONError as error:
        why = str(error).strip().partition("\n")[0]  # the rest quotes the file
        raise SourceError(f"{Path(name).name} ends early or is damaged ({why}): download it again.") from error
    finally:
        buffered.detach()


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
