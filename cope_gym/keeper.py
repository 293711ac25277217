"""Keeps a client's sessions alive, and frees those that were dropped without being closed.

One daemon thread a client. It holds sessions weakly: an environment that is garbage-collected loses its session.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakValueDictionary, finalize

from cope_gym.errors import CopeError
from cope_gym.transport import QUICK, Patience, Transport

if TYPE_CHECKING:
    from cope_gym.session import Session

logger = logging.getLogger(__name__)

IDLE_INTERVAL = 20.0
_BATCH = 4096


class Keeper:
    """The thread's state.

    Args:
        transport: Makes its calls.
        warm: Seconds between calls to servers that hold no session of ours, `None` for no such calls. An automatically
            started server stays for as long as somebody calls.
    """

    def __init__(self, transport: Transport, warm: float | None = None) -> None:
        self._transport = transport
        self._warm = warm
        self._bases: set[str] = set()
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._finalizers: dict[str, finalize[..., Session]] = {}
        # What was dropped, or `None` to wake up. A finalizer may interrupt any code, and this queue alone may be
        # interrupted by itself.
        self._inbox: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        self._stopped = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, session: Session) -> None:
        """Takes charge of a session."""
        self._sessions[session.id] = session
        drop = finalize(session, self._drop, session.base_url, session.id)
        drop.atexit = False  # the client's own exit handler frees what is left
        self._finalizers[session.id] = drop
        self._start(session.base_url)

    def keep_warm(self, base: str) -> None:
        """Keeps calling a server that holds no session."""
        self._start(base)

    def forget(self, session_id: str) -> None:
        """Lets go of a session that its owner has closed or lost."""
        drop = self._finalizers.pop(session_id, None)
        if drop is not None:
            drop.detach()
        self._sessions.pop(session_id, None)

    def load(self, base: str) -> int:
        """Returns how many sessions live on a server."""
        return sum(session.base_url == base for session in self.sessions())

    def sessions(self) -> list[Session]:
        """Returns the sessions in charge."""
        # `valuerefs` copies at once; other threads add sessions meanwhile.
        return [session for ref in self._sessions.valuerefs() if (session := ref()) is not None]

    def stop(self) -> None:
        """Ends the thread; dropped sessions are freed first."""
        self._stopped = True
        self._inbox.put(None)

    def join(self, timeout: float) -> None:
        """Waits for the thread's end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def after_fork(self) -> None:
        """The child owns no session of its parent's and has no thread yet."""
        for drop in self._finalizers.values():
            drop.detach()
        self._finalizers = {}
        self._sessions = WeakValueDictionary()
        self._bases = set()
        self._inbox = SimpleQueue()
        self._starting = threading.Lock()
        self._thread = None

    def _start(self, base: str) -> None:
        self._bases.add(base)
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stopped = False
                self._thread = threading.Thread(target=self._run, name="cope-keeper", daemon=True)
                self._thread.start()
            else:
                self._inbox.put(None)  # a new session may have a shorter lease

    def _drop(self, base: str, session_id: str) -> None:
        # Runs wherever the collector runs, so it makes no call itself.
        self._finalizers.pop(session_id, None)
        self._inbox.put((base, session_id))

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopped:
            with contextlib.suppress(Empty):
                self._free(self._inbox.get(timeout=max(0.0, self._interval() - (time.monotonic() - last))))
            if not self._stopped and time.monotonic() - last >= self._interval():
                last = time.monotonic()
                self._beat()
        with contextlib.suppress(Empty):
            while True:
                self._free(self._inbox.get_nowait())

    def _interval(self) -> float:
        leases = [session.lease_seconds / 3 for session in self.sessions()]
        return min([*leases, IDLE_INTERVAL if self._warm is None else self._warm])

    def _beat(self) -> None:
        held: dict[str, list[str]] = {base: [] for base in list(self._bases)} if self._warm is not None else {}
        for session in self.sessions():
            held.setdefault(session.base_url, []).append(session.id)
        for base, ids in held.items():
            try:
                for start in range(0, len(ids) or 1, _BATCH):
                    body = {"session_ids": ids[start : start + _BATCH]}
                    self._transport.call("POST", base, "/v1/heartbeat", body, patience=Patience(2, 10, 5))
            except CopeError as error:
                if ids:
                    logger.warning("heartbeat: %s", error)
                self._bases.discard(base)

    def _free(self, dropped: tuple[str, str] | None) -> None:
        if dropped is not None:
            base, session_id = dropped
            with contextlib.suppress(CopeError):  # its lease runs out by itself
                self._transport.call("DELETE", base, f"/v1/sessions/{session_id}", key=uuid4().hex, patience=QUICK)
