"""Retrieval over HTTP, so that the ranks of a run share one index: `cope retrieval serve`, and its client.

Three requests: `GET /health`, `GET /v1/documents` (all documents, encoder and digest) and `POST /v1/search` with the
arguments of `TaskIndex.search`. The standard library serves them; a search takes milliseconds, one at a time.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, cast

import requests

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.skills.retrieval import Document, Hit, TaskIndex

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MAX_BODY = 2**20
_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "query": (str,),
    "k": (int,),
    "exclude": (str, type(None)),
    "category": (str, type(None)),
    "max_similarity": (int, float),
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RetrievalServer(ThreadingHTTPServer):
    """Serves an index; `serve_forever` runs it.

    Args:
        index: What is searched.
        host: Address to listen on.
        port: Port, 0 for any free one.
        token: Bearer token.

    Raises:
        InputError: The address can be reached from other machines and there is no token.
    """

    daemon_threads = True

    def __init__(self, index: TaskIndex, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        if token is None and not is_loopback(host):
            raise InputError(
                f"{host} can be reached from other machines: set COPE_TOKEN or --token-file, or keep 127.0.0.1.",
                type="bad_option",
            )
        self.index = index
        self.token = token
        self.searching = threading.Lock()  # encoders are not made for several threads
        super().__init__((host, port), _Handler)


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802, the name is http.server's
        index = self._server.index
        if self.path == "/health":
            self._reply(200, {"status": "ok", "documents": len(index.documents)})
        elif self.path == "/v1/documents":
            documents = [asdict(document) for document in index.documents]
            self._guarded(lambda: {"encoder": index.encoder, "digest": index.digest, "documents": documents})
        else:
            self._reply(404, {"detail": f"There is no {self.path}."})

    def do_POST(self) -> None:  # noqa: N802
        if self.path == "/v1/search":
            self._guarded(self._search)
        else:
            self.close_connection = True  # the body is left unread
            self._reply(404, {"detail": f"There is no {self.path}."})

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet: every episode of a run asks once."""

    @property
    def _server(self) -> RetrievalServer:
        return cast("RetrievalServer", self.server)

    def _guarded(self, answer: Any) -> None:
        try:
            self._check()
            reply = answer()
        except _Refused as refused:
            self.close_connection = True
            self._reply(refused.status, {"detail": refused.detail})
        else:
            self._reply(200, reply)

    def _check(self) -> None:
        token = self._server.token
        if token is None:
            # A web page in a browser on this machine must not be able to ask (DNS rebinding).
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in _LOCAL_NAMES:
                raise _Refused(403, f"The host {host!r} is not served; use one of: {', '.join(sorted(_LOCAL_NAMES))}.")
            return
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise _Refused(401, "The bearer token is missing or wrong; set COPE_TOKEN to the server's.")

    def _search(self) -> dict[str, Any]:
        arguments = self._arguments()
        with self._server.searching:
            hits = self._server.index.search(**arguments)
        return {"hits": [asdict(hit) for hit in hits]}

    def _arguments(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            raise _Refused(413, f"The body needs a Content-Length of at most {_MAX_BODY} bytes.")
        try:
            given = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise _Refused(400, "The body is no JSON.") from error
        if not isinstance(given, dict):
            raise _Refused(400, "The body is no JSON object.")
        arguments = cast("dict[str, Any]", given)
        for name, value in arguments.items():
            kinds = _ARGUMENTS.get(name)
            if kinds is None or not isinstance(value, kinds) or isinstance(value, bool):
                raise _Refused(400, f"{name!r} is none of {', '.join(_ARGUMENTS)}, or of another type.")
        if "query" not in arguments or arguments.get("k", 0) < 1:
            raise _Refused(400, "A search needs a query and k of at least 1.")
        return arguments

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


class RemoteIndex:
    """An index behind `cope retrieval serve`; searches as `TaskIndex` does.

    Args:
        url: E.g. `http://node0:8421`.
        token: Bearer token; by default `$COPE_TOKEN`.
        attempts: How often a request is tried.

    Attributes:
        documents: All documents, fetched once.
        digest: The index's digest.

    Raises:
        InfrastructureError: The server cannot be reached.
        InputError: It refuses the token.
    """

    def __init__(self, url: str, token: str | None = None, attempts: int = 5) -> None:
        self.url = url.rstrip("/")
        self._attempts = attempts
        token = token if token is not None else os.environ.get("COPE_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        found = self._ask("GET", "/v1/documents")
        self.documents = [Document(**document) for document in found["documents"]]
        self.digest: str = found["digest"]

    def search(self, query: str, k: int, exclude: str | None = None, category: str | None = None) -> list[Hit]:
        """See `TaskIndex.search`."""
        wanted = {"query": query, "k": k, "exclude": exclude, "category": category}
        hits = self._ask("POST", "/v1/search", wanted)["hits"]
        return [Hit(Document(**hit["document"]), hit["score"]) for hit in hits]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        fault = ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(min(0.25 * 2**attempt, 10.0))
            try:
                reply = requests.request(method, self.url + path, json=body, headers=self._headers, timeout=60)
            except (requests.ConnectionError, requests.Timeout) as error:
                fault = str(error)
                continue
            if reply.status_code == 200:
                return reply.json()
            fault = f"{reply.status_code}: {_detail(reply)}"
            if reply.status_code < 500:
                raise InputError(f"The retrieval server {self.url} refuses: {_detail(reply)}", type="bad_request")
        raise InfrastructureError(
            f"The retrieval server {self.url} does not answer ({fault}); start it with `cope retrieval serve`.",
            type="retrieval",
            retryable=True,
        )


def _detail(reply: requests.Response) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]
