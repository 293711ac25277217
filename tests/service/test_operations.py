"""Running the service: start-up refusals, tokens, capacity, leases, drain, idle exit, logs."""

from __future__ import annotations

import json
import logging
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from env_servers.cli_serve import serve
from tests.service.conftest import Start, adapter, wait_for
from tests.service.test_protocol import problem


def refused(*arguments: str) -> str:
    """Returns what the command says when it refuses to start."""
    app = typer.Typer()
    app.command()(serve)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        root.handlers[:], root.level = handlers, level
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    return [line for line in result.stderr.splitlines() if not line.startswith("{")][-1]


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "is in use; choose another with --port" in refused(*adapter("CounterAdapter"), "--port", port)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*adapter("CounterAdapter"), "--host", "0.0.0.0"), "COPE_TOKEN"),
        ((*adapter("CounterAdapter"), "--workers", "2"), "one process"),
        ((*adapter("CounterAdapter"), "--set", "counter.lgo=x"), "there are: log, version"),
        ((*adapter("CounterAdapter"), "--set", "conuter.log=x"), "'conuter', which is not served"),
        ((*adapter("CounterAdapter"), "--set", "log"), "ENV.KEY=VALUE"),
        ((*adapter("CounterAdapter"), "--token-file", "missing"), "cannot be read"),
        ((*adapter("CounterAdapter"), "--host", "256.1.1.1"), "--host"),
        (adapter("MissingAdapter"), "cannot be loaded"),
        (("--adapter", "no colon"), "MODULE:CLASS"),
        ((*adapter("CounterAdapter"), *adapter("CounterAdapter")), "given 2 times"),
        (("--env", "scienceworld"), "there are:"),
    ],
)
def test_refusals_to_start_are_one_sentence(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COPE_TOKEN", raising=False)
    if "256.1.1.1" in arguments:
        monkeypatch.setenv("COPE_TOKEN", "secret")
    assert sentence in refused(*arguments)


def test_token(start: Start) -> None:
    server = start(environ={"COPE_TOKEN": "secret"})
    assert server.create()["step_index"] == 0
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer s\u00e9cret".encode("latin-1")}):
        with httpx.Client(base_url=server.url, headers=headers) as stranger:  # type: ignore[arg-type]
            reply = stranger.get("/v1/envs")
            assert "COPE_TOKEN" in problem(reply, "unauthorized", 401)["detail"]
            assert reply.headers["www-authenticate"] == "Bearer"
            problem(stranger.get("/metrics"), "unauthorized", 401)
            problem(stranger.get("/docs"), "unauthorized", 401)
            assert stranger.get("/health").status_code == 200
            assert stranger.get("/ready").status_code == 200


def test_full_means_429_and_never_an_old_session(start: Start) -> None:
    server = start("--max-sessions", "2")
    names = [server.create()["session_id"] for _ in range(2)]
    reply = server.http.post("/v1/sessions", json={"env": "counter"})
    assert problem(reply, "capacity", 429)["retryable"] and int(reply.headers["retry-after"]) >= 1
    problem(server.http.post(f"/v1/sessions/{names[0]}/fork"), "capacity", 429)
    assert server.http.get("/ready").status_code == 503
    assert server.step(names[0], 0, "add 5").json()["terminated"]
    third = server.create()["session_id"]  # an episode that is over takes no place
    assert server.step(names[0], 0, "add 5").status_code == 200
    server.http.delete(f"/v1/sessions/{third}")
    assert server.create()["step_index"] == 0


def test_no_place_in_the_pool_means_429(start: Start) -> None:
    server = start("--max-workers", "1", adapters=("SingleAdapter",))
    name = server.create("single")["session_id"]
    problem(server.http.post("/v1/sessions", json={"env": "single"}), "capacity", 429)
    server.http.delete(f"/v1/sessions/{name}")
    assert server.create("single")["step_index"] == 0


def test_leases(start: Start) -> None:
    server = start("--lease", "1.5")
    kept, forgotten, busy = (server.create()["session_id"] for _ in range(3))
    server.http.delete(f"/v1/sessions/{busy}")
    for _ in range(6):
        server.http.post("/v1/heartbeat", json={"session_ids": [kept]})
        time.sleep(0.4)
    problem(server.step(forgotten, 0, "say"), "session_expired", 410)
    assert server.http.post("/v1/heartbeat", json={"session_ids": [forgotten]}).json()["gone"] == [forgotten]
    assert server.step(kept, 0, "say").status_code == 200
    assert "cope_sessions_live 1.0" in server.http.get("/metrics").text


def test_a_step_longer_than_the_lease_keeps_its_session(start: Start) -> None:
    server = start("--lease", "0.4")
    name = server.create()["session_id"]
    assert server.step(name, 0, "sleep 1.2").status_code == 200
    assert server.step(name, 1, "say").status_code == 200


def test_sigterm_finishes_the_step_in_execution(start: Start, tmp_path: Path) -> None:
    log, go = tmp_path / "actions", tmp_path / "go"
    server = start("--set", f"counter.log={log}")
    name = server.create()["session_id"]
    replies: list[Any] = []
    stepping = threading.Thread(target=lambda: replies.append(server.step(name, 0, f"await {go}")))
    stepping.start()
    wait_for(lambda: log.exists() and "await" in log.read_text())
    server.process.send_signal(signal.SIGTERM)
    with httpx.Client(base_url=server.url, timeout=60) as late:
        wait_for(lambda: late.get("/ready").status_code == 503)
        problem(late.post("/v1/sessions", json={"env": "counter"}), "draining", 503)
    go.touch()
    stepping.join()
    assert replies[0].status_code == 200
    assert server.process.wait(20) == 0
    assert not server.port_file.exists()


def test_drain_lets_live_sessions_go_on(start: Start) -> None:
    server = start("--drain-seconds", "20")
    name = server.create()["session_id"]
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.http.get("/ready").status_code == 503)
    for index in range(5):
        assert server.step(name, index, "add 1").status_code == 200
    assert server.process.wait(20) == 0


def test_ends_when_nobody_is_left(start: Start) -> None:
    server = start("--idle-exit", "4", "--lease", "6")
    server.create()
    ended = time.monotonic() + 6
    time.sleep(4.5)
    assert server.process.poll() is None, "a session keeps it"
    assert server.process.wait(30) == 0
    assert time.monotonic() > ended + 3, "it waits for the next client"


def test_logs_are_json_with_session_ids(start: Start) -> None:
    server = start("--log-level", "debug")
    name = server.create()["session_id"]
    server.step(name, 0, "print 5")
    server.http.delete(f"/v1/sessions/{name}")
    server.stop()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"session opened", "session ended"} <= {line["event"] for line in lines if line.get("session") == name}
    assert any(line["event"] == "worker says" and line["text"] == "xxxxx" for line in lines)


def test_rate_limit(start: Start) -> None:
    server = start("--rate-limit", "5")
    statuses = [server.http.get("/v1/envs").status_code for _ in range(30)]
    assert statuses.count(200) >= 10 and 429 in statuses
    assert server.http.get("/health").status_code == 200


def test_tls(start: Start, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    server = start("--tls-certificate", str(certificate), "--tls-key", str(key))
    port = server.port_file.read_text().strip()
    context = ssl.create_default_context(cafile=str(certificate))
    assert httpx.get(f"https://localhost:{port}/health", verify=context).json()["status"] == "ok"


def test_workers_are_recycled_and_memory_stays_flat(start: Start) -> None:
    server = start("--recycle-after", "10", "--warm", "0", "--max-workers", "2")
    seen = set(server.workers())
    for _ in range(60):
        name = server.create()["session_id"]
        server.step(name, 0, "add 5")
        server.http.delete(f"/v1/sessions/{name}")
        seen |= set(server.workers())
    assert len(seen) >= 5 and len(server.workers()) <= 3


def test_a_server_that_ends_removes_no_other_servers_port_file(start: Start) -> None:
    """One that took its time to end made clients believe that its successor had gone, and so on."""
    first, second = start(), start()
    second.port_file.write_text(first.port_file.read_text())
    second.stop()
    assert second.port_file.exists()
    first.stop()
    assert not first.port_file.exists()
