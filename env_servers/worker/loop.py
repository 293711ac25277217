"""Which thread runs what: the main thread, or for `threads` adapters one thread a session."""

from __future__ import annotations

import queue
import select
import socket
import sys
import threading
from typing import Any, Dict, Optional

from env_servers.worker import framing
from env_servers.worker.host import Host
from env_servers.worker.parent import die

Request = Dict[str, Any]


class Loop:
    """Reads requests and has them answered.

    The end of the connection means that the service is gone: everything here is killed, even in mid-step.
    """

    def __init__(self, connection: socket.socket, host: Host) -> None:
        self._connection = connection
        self._host = host
        self._sending = threading.Lock()
        self._sessions: Dict[str, "queue.Queue[Request]"] = {}

    def run(self) -> None:
        """Serves until it is told to shut down."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        while True:
            request = self._next()
            if request["op"] == "shutdown":
                self._host.close()
                self._send({"id": request["id"], "ok": None})
                return
            session = self._own_thread(request)
            if session is None:
                self._send(self._host.answer(request))
            else:
                session.put(request)

    def _next(self) -> Request:
        # In this thread: handing a request over from another one takes longer than reading it.
        try:
            request = framing.read(self._connection)
        except (OSError, framing.FrameError) as error:
            print(f"worker: the connection broke: {error}", file=sys.stderr)  # noqa: T201
            request = None
        return request or die()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._connection, 0)  # its end is reported unasked; requests would be only if asked for
        poll.poll()
        die()

    def _own_thread(self, request: Request) -> "Optional[queue.Queue[Request]]":
        session = request["args"].get("session")
        if session is None or self._host.adapter.facts.concurrency != "threads":
            return None
        if session not in self._sessions:
            self._sessions[session] = queue.Queue()
            work = threading.Thread(target=self._serve_session, args=(session, self._sessions[session]), daemon=True)
            work.start()
        inbox = self._sessions[session]
        if request["op"] == "close":
            del self._sessions[session]
        return inbox

    def _serve_session(self, session: str, inbox: "queue.Queue[Request]") -> None:
        while True:
            request = inbox.get()
            self._send(self._host.answer(request))
            if request["op"] == "close":
                return

    def _send(self, reply: Dict[str, Any]) -> None:
        try:
            frame = framing.encode(reply)
        except framing.FrameError as error:
            frame = framing.encode({"id": reply["id"], "fault": f"the adapter's reply cannot be sent: {error}"})
        with self._sending:
            self._connection.sendall(frame)
