"""Why sessions are gone: the latest endings, in memory and, where there is a state folder, on disk."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from pathlib import Path

from env_servers.worker.framing import to_json

log = logging.getLogger(__name__)

_KEPT = 100_000


class Tombstones:
    """The reasons of the latest endings, oldest first.

    Args:
        file: JSON Lines; read now, then appended to. `None` keeps them in memory only.
        kept: How many are remembered.
    """

    def __init__(self, file: Path | None, kept: int = _KEPT) -> None:
        self._file = file
        self._kept = kept
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self._lines = 0
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._load(file)

    def __contains__(self, session: str) -> bool:
        return session in self._reasons

    def add(self, session: str, reason: str) -> None:
        """Remembers an ending, and forgets the oldest where there are too many."""
        self._remember(session, reason)
        if self._file is not None:
            self._append(self._file, _line(session, reason))

    def reason(self, session: str) -> str | None:
        """Returns why a session ended, `None` for one that is not known."""
        return self._reasons.get(session)

    def _remember(self, session: str, reason: str) -> None:
        self._reasons[session] = reason
        while len(self._reasons) > self._kept:
            self._reasons.popitem(last=False)

    def _load(self, file: Path) -> None:
        # A last line without its newline was being written when the service was killed.
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
                self._remember(record["session"], record["reason"])
            except (ValueError, KeyError, TypeError) as error:
                log.error("tombstone unreadable", extra={"file": str(file), "error": repr(error)})
        self._rewrite(file)

    def _append(self, file: Path, line: bytes) -> None:
        try:
            with file.open("ab") as handle:
                handle.write(line)
        except OSError as error:
            log.error("tombstone cannot be written", extra={"file": str(file), "error": str(error)})
        self._lines += 1
        if self._lines > 2 * self._kept:
            self._rewrite(file)

    def _rewrite(self, file: Path) -> None:
        """Leaves in the file what is remembered; written aside and renamed, so that it is always whole."""
        aside = file.with_suffix(".new")
        try:
            aside.write_bytes(b"".join(_line(*item) for item in self._reasons.items()))
            aside.rename(file)
        except OSError as error:
            log.error("tombstones cannot be written", extra={"file": str(file), "error": str(error)})
        self._lines = len(self._reasons)


def _line(session: str, reason: str) -> bytes:
    return to_json({"session": session, "reason": reason}) + b"\n"
