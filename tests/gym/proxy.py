"""A proxy between client and server that loses replies, so that tests can ask what happened behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

Rule = Callable[[str, str], str]
"""Told method and path, says `pass`, `refuse` (503 with Retry-After), `drop` (executed, reply lost) or `garble`."""


class Proxy:
    """Listens on a port of its own; `rule` may be replaced at any time."""

    def __init__(self, upstream: str) -> None:
        self.rule: Rule = lambda method, path: "pass"
        self.seen: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.seen.append((self.command, self.path))
                what = proxy.rule(self.command, self.path)
                if what == "refuse":
                    self.answer(
                        503, b'{"type": "draining", "detail": "Wait.", "retryable": true}', {"Retry-After": "1"}
                    )
                    return
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                reply = requests.request(self.command, upstream + self.path, data=body, headers=headers, timeout=60)
                if what == "drop":
                    self.close_connection = True
                    self.connection.close()
                elif what == "garble":
                    self.answer(200, b"<html>hello</html>", {"Content-Type": "text/html"})
                else:
                    self.answer(
                        reply.status_code, reply.content, {"Content-Type": reply.headers.get("Content-Type", "")}
                    )

            do_GET = do_POST = do_DELETE = handle_any

            def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
