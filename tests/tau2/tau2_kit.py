"""An endpoint for the customer, and ways to play."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from adapter_kit import AdapterWorker


class Customer(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint that gives the answers put into `answers`, and notes what it was asked.

    An answer is text, a number (the status of a failure) or a message object.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> Customer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Customer

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = self.server.answers.pop(0) if self.server.answers else "Thank you. ###STOP###"
        if isinstance(answer, int):
            self._send(answer, {"error": {"message": "out of order", "type": "server_error"}})
            return
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        kept = {"id": "x", "object": "chat.completion", "created": 1, "model": "someone"}
        self._send(200, {**kept, "choices": [choice], "usage": usage})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def play(worker: AdapterWorker, session: str, task: str, *actions: Any, **options: Any) -> dict[str, Any]:
    """Plays a whole conversation and returns its last reply."""
    reply = worker.start(session, task, {"instructions": False, **options})
    for action in actions:
        reply = worker.step(session, action)
    worker.end(session)
    return reply


def gold(worker: AdapterWorker, task: str) -> list[Any]:
    return worker.call("gold", task_id=task, options={})
