"""A real server for every test, and the check that it leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "COPE_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Returns the processes that descend from a marked server (zombies have no environment and do not count)."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
    """Returns the condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what or condition}"
        time.sleep(0.02)


class Server:
    """`python -m env_servers.front` (or a script that wraps it) as a child process, with a client for it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        script: Path | None = None,
        environ: dict[str, str] | None = None,
        seconds: float = 60,
    ):
        self.mark = uuid.uuid4().hex
        self.patience = seconds / 2
        self.folder = folder
        self.port_file = folder / f"port-{self.mark[:8]}"
        self.log = folder / f"log-{self.mark[:8]}"
        program = ["-m", "env_servers.front"] if script is None else [str(script)]
        command = [sys.executable, *program, "--port", "0", "--port-file", str(self.port_file), *arguments]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {}), MARK: self.mark}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=self.log.open("wb"))
        wait_for(lambda: self.port_file.exists() or self.process.poll() is not None, seconds, "the server")
        assert self.process.poll() is None, self.log.read_text()
        self.url = f"http://127.0.0.1:{int(self.port_file.read_text())}"
        token = environ.get("COPE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=self.url, timeout=60, headers=headers)

    def create(self, env: str = "counter", key: str | None = None, **body: Any) -> dict[str, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        reply = self.http.post("/v1/sessions", json={"env": env, **body}, headers=headers)
        assert reply.status_code == 201, reply.text
        return reply.json()

    def step(self, session: str, index: int, action: Any, epoch: int = 1) -> httpx.Response:
        body = {"step_index": index, "action": action, "epoch": epoch}
        return self.http.post(f"/v1/sessions/{session}/step", json=body)

    def workers(self) -> list[int]:
        """Returns the process ids of the workers, control worker included."""
        return [pid for pid in marked(self.mark) if b"worker/main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """Ends the server and asserts that nothing of it remains."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        wait_for(lambda: not marked(self.mark), 10, f"the processes {marked(self.mark)} to end")


Start = Callable[..., Server]


def adapter(name: str) -> list[str]:
    return ["--adapter", f"tests.service.adapters:{name}"]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Starts servers that end, completely, with the test."""
    servers: list[Server] = []

    def begin(*arguments: str, adapters: tuple[str, ...] = ("CounterAdapter",), **options: Any) -> Server:
        flags = [part for name in adapters for part in adapter(name)]
        servers.append(Server(tmp_path, *flags, *arguments, **options))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One server for the tests of a module that do it no harm."""
    folder = tmp_path_factory.mktemp("server")
    running = Server(
        folder, *adapter("CounterAdapter"), *adapter("ThreadedAdapter"), "--set", f"counter.log={folder}/actions"
    )
    yield running
    running.stop()
