"""The journal: intent before an action is executed, the full reply before it is sent.

The records in memory (`Session.turns`, `intent`) are enough to rebuild an episode after a worker's death. On disk
`FileJournal` keeps the same, one JSON Lines file a session, so that sessions outlive the service. Each record is one
`write`; the kernel keeps it when this process is killed (a crash of the machine is not covered). Where the disk fails,
the session goes on without a file: it can then not outlive the service, but nothing runs twice.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from env_servers.errors import ServiceError
from env_servers.front.session import Origin, Session, Turn
from env_servers.worker.framing import to_json

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")


Key = tuple[str, str]
"""An idempotency key and the fingerprint of its request."""


class Journal(Protocol):
    """What is recorded of a session."""

    def created(self, session: Session, key: Key | None) -> None:
        """Records a session with everything that has happened in it (a fork has a past), and its idempotency key."""
        ...

    def intent(self, session: Session, action: str) -> None:
        """Records that an action is about to be executed."""
        ...

    def turn(self, session: Session, turn: Turn) -> None:
        """Records that it was executed."""
        ...

    def rejected(self, session: Session) -> None:
        """Records that it was refused: nothing was executed."""
        ...

    def epoch(self, session: Session) -> None:
        """Records a new attachment."""
        ...

    def failed(self, session: Session) -> None:
        """Records why there are no further steps."""
        ...

    def removed(self, session: str) -> None:
        """Forgets a session."""
        ...

    def load(self) -> Iterator[tuple[Session, Key | None]]:
        """Yields the recorded sessions with their idempotency keys."""
        ...


class MemoryJournal:
    """Keeps nothing beyond the sessions themselves."""

    def created(self, session: Session, key: Key | None) -> None:
        """See `Journal`."""

    def intent(self, session: Session, action: str) -> None:
        """See `Journal`."""

    def turn(self, session: Session, turn: Turn) -> None:
        """See `Journal`."""

    def rejected(self, session: Session) -> None:
        """See `Journal`."""

    def epoch(self, session: Session) -> None:
        """See `Journal`."""

    def failed(self, session: Session) -> None:
        """See `Journal`."""

    def removed(self, session: str) -> None:
        """See `Journal`."""

    def load(self) -> Iterator[tuple[Session, Key | None]]:
        """See `Journal`."""
        return iter(())


class FileJournal:
    """One file a session.

    Args:
        folder: Created, readable by its owner only, if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sessions"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def created(self, session: Session, key: Key | None) -> None:
        """See `Journal`. Written aside and renamed, so that a file always begins whole."""
        head = {
            "session": session.id,
            "origin": asdict(session.origin),
            "client_id": session.client_id,
            "replayable": session.replayable,
            "born": session.born,
            "key": key,
        }
        aside = self._path(session.id).with_suffix(".new")
        try:
            aside.write_bytes(b"".join([to_json(head) + b"\n", *map(_line, session.turns)]))
            aside.rename(self._path(session.id))
        except OSError as error:
            self._give_up(session.id, error)

    def intent(self, session: Session, action: str) -> None:
        """See `Journal`."""
        self._append(session.id, to_json({"intent": action}) + b"\n")

    def turn(self, session: Session, turn: Turn) -> None:
        """See `Journal`."""
        self._append(session.id, _line(turn))

    def rejected(self, session: Session) -> None:
        """See `Journal`."""
        self._append(session.id, to_json({"intent": None}) + b"\n")

    def epoch(self, session: Session) -> None:
        """See `Journal`."""
        self._append(session.id, to_json({"epoch": session.epoch}) + b"\n")

    def failed(self, session: Session) -> None:
        """See `Journal`."""
        assert session.failure is not None
        self._append(session.id, to_json({"failure": session.failure.problem()}) + b"\n")

    def removed(self, session: str) -> None:
        """See `Journal`."""
        self._path(session).unlink(missing_ok=True)

    def load(self) -> Iterator[tuple[Session, Key | None]]:
        """See `Journal`. A file that cannot be read is reported and left where it is."""
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                yield _read(path)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                log.error("journal unreadable", extra={"session": path.stem, "error": repr(error)})

    def _append(self, session: str, line: bytes) -> None:
        try:
            handle = os.open(self._path(session), os.O_WRONLY | os.O_APPEND)
            try:
                written = os.write(handle, line)
            finally:
                os.close(handle)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except FileNotFoundError:
            return  # closed while its step ran, or given up before
        except OSError as error:
            self._give_up(session, error)

    def _give_up(self, session: str, error: OSError) -> None:
        log.error("journal cannot be written", extra={"session": session, "error": str(error)})
        with contextlib.suppress(OSError):
            self._path(session).unlink(missing_ok=True)

    def _path(self, session: str) -> Path:
        if not _ID.fullmatch(session):
            raise ValueError("not a session id")
        return self._folder / f"{session}.jsonl"


def _line(turn: Turn) -> bytes:
    # The parts are JSON already.
    return b'{"action":%s,"reply":%s,"record":%s}\n' % (to_json(turn.action), turn.reply, turn.record)


def _read(path: Path) -> tuple[Session, Key | None]:
    # A last line without its newline is a record that was being written when the service was killed.
    lines = path.read_bytes().split(b"\n")[:-1]
    head = json.loads(lines[0])
    session = Session(
        head["session"],
        Origin(**head["origin"]),
        head["client_id"],
        replayable=head["replayable"],
        born=head["born"],
    )
    for line in lines[1:]:
        _apply(session, json.loads(line))
    if session.steps < session.born:
        raise ValueError("the start is missing")
    return session, None if head["key"] is None else (head["key"][0], head["key"][1])


def _apply(session: Session, record: dict[str, Any]) -> None:
    if "reply" in record:
        session.add(record["action"], record["reply"], record["record"])
    elif "intent" in record:
        session.intent = record["intent"]
    elif "epoch" in record:
        session.epoch = record["epoch"]
    elif "failure" in record:
        session.failure = ServiceError.from_problem(record["failure"])
