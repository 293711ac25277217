"""Starts a service of its own for a measurement, and ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from env_servers.pool import memory

_START = 180.0


@dataclass(frozen=True)
class Served:
    """A running service.

    Attributes:
        url: Its address.
        token: Its token.
        pid: Its process.
    """

    url: str
    token: str
    pid: int

    def workers(self) -> list[int]:
        """Returns the process ids of its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if _is_worker(int(pid))]

    def memory(self) -> tuple[int, int]:
        """Returns the resident bytes of the front and of all workers with their children."""
        groups = memory.group_rss()
        return memory.process_rss(self.pid), sum(groups.get(pid, 0) for pid in self.workers())

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the processor time that the front and that all workers with their children have used."""
        workers = set(self.workers())
        front = busy = 0.0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            # Fields count from the state; children that have ended count with the parent that waited for them.
            seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            if int(fields[2]) in workers:
                busy += seconds
            elif path.parent.name == str(self.pid):
                front = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return front, busy


def flags(env: str) -> tuple[str, list[str]]:
    """Returns the name of `NAME` or `NAME=MODULE:CLASS` and what `cope serve` needs to serve it."""
    name, third_party, _ = env.partition("=")
    return name, ["--adapter", env] if third_party else ["--env", env]


@contextlib.contextmanager
def serving(arguments: Sequence[str]) -> Generator[Served]:
    """Runs `cope serve` with these arguments on a free port.

    Raises:
        RuntimeError: It did not start; the message is its own.
    """
    _raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        token, port_file, log = secrets.token_urlsafe(), Path(folder, "port"), Path(folder, "log")
        command = [sys.executable, "-m", "env_servers.front", *arguments, "--port", "0", "--port-file", str(port_file)]
        command += ["--log-level", "warning", "--idle-exit", "60"]  # leaves by itself if this process is killed
        with log.open("wb") as output:
            process = subprocess.Popen(command, stderr=output, env={**os.environ, "COPE_TOKEN": token})
        try:
            deadline = time.monotonic() + _START
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text().strip() or "the service did not start in time")
                time.sleep(0.05)
            yield Served(f"http://127.0.0.1:{int(port_file.read_text())}", token, process.pid)
        finally:
            process.terminate()
            process.wait()


def _is_worker(pid: int) -> bool:
    try:
        return b"worker/main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
