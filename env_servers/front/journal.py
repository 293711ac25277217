"""The journal: intent before an action is executed, the full reply before it is sent.

The records in memory (`Session.actions`, `replies`, `intent`) are enough to rebuild an episode after a worker's death.
`FileJournal` keeps the same records on disk, one JSON Lines file a session, so that sessions outlive the service. Each
record is one `write`; the kernel keeps it when this process is killed (a crash of the machine is not covered).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from env_servers.errors import ServiceError
from env_servers.front.session import Origin, Reply, Session
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

    def reply(self, session: Session, action: str, reply: Reply) -> None:
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

    def reply(self, session: Session, action: str, reply: Reply) -> None:
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
            "key": key,
            "first": session.replies[0],
        }
        past = zip(session.actions, session.replies[1:], strict=True)
        records = [head, *({"action": action, "reply": reply} for action, reply in past)]
        aside = self._path(session.id).with_suffix(".new")
        aside.write_bytes(b"".join(to_json(record) + b"\n" for record in records))
        aside.rename(self._path(session.id))

    def intent(self, session: Session, action: str) -> None:
        """See `Journal`."""
        self._append(session.id, {"intent": action})

    def reply(self, session: Session, action: str, reply: Reply) -> None:
        """See `Journal`."""
        self._append(session.id, {"action": action, "reply": reply})

    def rejected(self, session: Session) -> None:
        """See `Journal`."""
        self._append(session.id, {"intent": None})

    def epoch(self, session: Session) -> None:
        """See `Journal`."""
        self._append(session.id, {"epoch": session.epoch})

    def failed(self, session: Session) -> None:
        """See `Journal`."""
        assert session.failure is not None
        self._append(session.id, {"failure": session.failure.problem()})

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

    def _append(self, session: str, record: dict[str, Any]) -> None:
        try:
            handle = os.open(self._path(session), os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:  # the session was closed while its step ran
            return
        try:
            os.write(handle, to_json(record) + b"\n")
        finally:
            os.close(handle)

    def _path(self, session: str) -> Path:
        if not _ID.fullmatch(session):
            raise ValueError("not a session id")
        return self._folder / f"{session}.jsonl"


def _read(path: Path) -> tuple[Session, Key | None]:
    # A last line without its newline is a record that was being written when the service was killed.
    lines = path.read_bytes().split(b"\n")[:-1]
    head = json.loads(lines[0])
    session = Session(head["session"], Origin(**head["origin"]), head["client_id"], replayable=head["replayable"])
    session.replies.append(head["first"])
    for line in lines[1:]:
        _apply(session, json.loads(line))
    return session, None if head["key"] is None else (head["key"][0], head["key"][1])


def _apply(session: Session, record: dict[str, Any]) -> None:
    if "reply" in record:
        session.actions.append(record["action"])
        session.replies.append(record["reply"])
        session.intent = None
    elif "intent" in record:
        session.intent = record["intent"]
    elif "epoch" in record:
        session.epoch = record["epoch"]
    elif "failure" in record:
        session.failure = ServiceError.from_problem(record["failure"])
