"""Drives an adapter as the service does: a worker process in the benchmark's own environment, spoken to in frames."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import env_servers
from env_servers.install import worker_env
from env_servers.worker import framing

PACKAGE = Path(env_servers.__file__).parent


class AdapterFault(Exception):
    """The adapter raised; `type` is that of an `AdapterError`, or `fault` for anything else."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type
        self.detail = detail


class AdapterWorker:
    """One worker process with blocking calls.

    Args:
        python: The benchmark's interpreter.
        name: The benchmark.
        module: `adapter`, or `stock` for the package's own environment.
        settings: Settings of its adapter.
    """

    def __init__(self, python: Path, name: str = "sciworld", module: str = "adapter", **settings: Any) -> None:
        self._ids = itertools.count()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python, "-I", PACKAGE / "worker" / "main.py", "--adapter", f"env_servers.{name}.{module}:ADAPTER"]
                + ["--fd", str(theirs.fileno()), "--parent", str(os.getpid()), "--settings", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **worker_env(name)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def call(self, op: str, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.receive()

    def together(self, op: str, arguments: Sequence[dict[str, Any]]) -> list[Any]:
        """Makes several calls at once and returns what came of them, in order; faults raise when all are done."""
        numbers = [self.send(op, **one) for one in arguments]
        replies = {reply["id"]: reply for reply in (self._read() for _ in numbers)}
        return [self._unpack(replies[number]) for number in numbers]

    def send(self, op: str, **arguments: Any) -> int:
        number = next(self._ids)
        self._socket.sendall(framing.encode({"id": number, "op": op, "args": arguments}))
        return number

    def receive(self) -> Any:
        return self._unpack(self._read())

    def _read(self) -> dict[str, Any]:
        reply = framing.read(self._socket)
        if reply is None:
            raise EOFError("the worker is gone")
        return reply

    @staticmethod
    def _unpack(reply: dict[str, Any]) -> Any:
        if "error" in reply:
            raise AdapterFault(reply["error"]["type"], reply["error"]["detail"])
        if "fault" in reply:
            raise AdapterFault("fault", reply["fault"])
        return reply["ok"]

    def start(self, session: str, task_id: Any, options: Any = None, seed: int | None = None) -> dict[str, Any]:
        return self.call("start", session=session, task_id=task_id, seed=seed, options=options or {})["first"]

    def step(self, session: str, action: Any) -> dict[str, Any]:
        return self.call("step", session=session, action=action)

    def end(self, session: str) -> None:
        self.call("close", session=session)

    def jvms(self) -> list[int]:
        return [pid for pid, parent, name in processes() if parent == self.process.pid and name == "java"]

    def close(self) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):  # one that was killed may not have been reaped yet
                self.call("shutdown")
        finally:
            self.process.kill()
            self.process.wait()
            self._socket.close()

    def __enter__(self) -> AdapterWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.close()


def processes() -> list[tuple[int, int, str]]:
    """Returns (pid, parent, name) of everything that runs; zombies are left out."""
    found: list[tuple[int, int, str]] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            found.append((int(entry.name), int(parent), name))
    return found


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Waits until none of the processes runs any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not {pid for pid, _, _ in processes()} & set(pids):
            return True
        time.sleep(0.05)
    return False


def tree(pid: int) -> list[int]:
    """Returns a process with all that it has started, directly or not."""
    found = [pid]
    for one in found:
        found += [child for child, parent, _ in processes() if parent == one and child not in found]
    return found


def usage(pid: int, folder: Path) -> dict[str, float]:
    """Returns what a process and all below it use, and the number of files in a folder for temporary ones."""
    pids = tree(pid)
    return {
        "processes": len(pids),
        "MB": sum(map(rss_mb, pids)),
        "maps": sum(Path(f"/proc/{one}/maps").read_bytes().count(b"\n") for one in pids),
        "descriptors": sum(len(os.listdir(f"/proc/{one}/fd")) for one in pids),
        "threads": sum(len(os.listdir(f"/proc/{one}/task")) for one in pids),
        "files": sum(1 for _ in folder.rglob("*")),
    }


def assert_flat(worker: AdapterWorker, folder: Path, play: Callable[[int], None]) -> None:
    """Plays 200 episodes or COPE_SOAK_RESETS; what is used after a quarter may not have grown by 3 % at the end.

    Args:
        worker: Whose process tree is watched.
        folder: Where it puts its temporary files.
        play: Plays one whole episode; gets its number, from 1.
    """
    resets = int(os.environ.get("COPE_SOAK_RESETS", "200"))
    seen: dict[int, dict[str, float]] = {}
    for number in range(1, resets + 1):
        play(number)
        if number in (resets // 4, resets):
            time.sleep(1)  # a session's thread or process may end a moment after the reply that closes it
            seen[number] = usage(worker.process.pid, folder)
            print(f"\nafter {number} resets {seen[number]}")
    first, last = seen[resets // 4], seen[resets]
    grown = {what: (before, last[what]) for what, before in first.items() if last[what] > 1.03 * before}
    assert not grown


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no memory figure for {pid}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
