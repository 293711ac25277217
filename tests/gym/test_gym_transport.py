"""Connections follow the environment's proxy, but for servers on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import certifi
import pytest

from cope_gym.transport import Transport


@pytest.fixture
def seen() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that notes what is asked of it: paths and tokens."""
    calls: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", calls
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_proxy_of_the_environment_is_used(
    seen: tuple[str, list[tuple[str, str | None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, calls = seen
    monkeypatch.setenv("HTTP_PROXY", address)
    monkeypatch.setenv("http_proxy", address)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    transport = Transport("secret")
    assert transport.call("GET", "http://cope.invalid:8420", "/v1/tasks", params={"env": "a b", "split": None}) == {}
    assert calls == [("http://cope.invalid:8420/v1/tasks?env=a+b", "Bearer secret")]
    transport.close()


def test_certificates_are_those_that_requests_would_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    pool, _ = Transport()._route("https://cope.invalid")
    assert (pool.ca_certs, pool.cert_reqs) == (certifi.where(), "CERT_REQUIRED")  # type: ignore[attr-defined]
    own = tmp_path / "own.pem"
    own.write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(own))
    pool, _ = Transport()._route("https://cope.invalid")
    assert pool.ca_certs == str(own)  # type: ignore[attr-defined]


def test_a_server_on_this_machine_is_asked_directly(
    seen: tuple[str, list[tuple[str, str | None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, calls = seen
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    transport = Transport()
    assert transport.call("GET", address + "/below", "/v1/health") == {}
    transport.close()
    assert transport.call("GET", address, "/v1/health") == {}  # closed means idle, not unusable
    assert calls == [("/below/v1/health", None), ("/v1/health", None)]
