"""Which thread runs what: the main thread, or for `threads` adapters one thread a session."""

from __future__ import annotations

import queue
import socket
import sys
import threading
from typing import Any, Dict, Optional

from env_servers.worker import framing
from env_servers.worker.host import Host
from env_servers.worker.parent import die

Request = Dict[str, Any]


class Loop:
    """Reads requests in a thread of its own and has them answered.

    End of file means that the service is gone: everything here is killed, even in mid-step.
    """

    def __init__(self, connection: socket.socket, host: Host) -> None:
        self._connection = connection
        self._host = host
        self._inbox: "queue.Queue[Request]" = queue.Queue()
        self._sending = threading.Lock()
        self._sessions: Dict[str, "queue.Queue[Request]"] = {}

    def run(self) -> None:
        """Serves until it is told to shut down."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        while True:
            request = self._inbox.get()
            if request["op"] == "shutdown":
                self._host.close()
                self._send({"id": request["id"], "ok": None})
                return
            session = self._own_thread(request)
            if session is None:
                self._send(self._host.answer(request))
            else:
                session.put(request)

    def _read(self) -> None:
        try:
            while True:
                request = framing.read(self._connection)
                if request is None:
                    break
                self._inbox.put(request)
        except (OSError, framing.FrameError) as error:
            print(f"worker: the connection broke: {error}", file=sys.stderr)  # noqa: T201
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
