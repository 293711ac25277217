"""The part of the `ray` engine that runs on a node: an actor with one worker process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import Any

from env_servers.adapter import Facts
from env_servers.catalog import CATALOG
from env_servers.errors import ServiceError
from env_servers.install import InstallError, install, worker_env
from env_servers.pool import memory
from env_servers.pool.base import BystanderError, EpisodeFaultError, WorkerDiedError, WorkerSpec, WorkerTimeoutError
from env_servers.pool.process import WorkerProcess
from env_servers.pool.reaper import Reaper

Outcome = tuple[str, Any]
"""What came of a call: `ok` with its value, `error` with a problem document, else a fault with its sentence."""

FAULTS: dict[str, type[Exception]] = {
    "fault": EpisodeFaultError,
    "timeout": WorkerTimeoutError,
    "bystander": BystanderError,
    "died": WorkerDiedError,
}
_LOOK = 0.5
_LAST_REPLIES = 1.0


class NodeWorker:
    """Starts a worker process on its node and passes calls on.

    When the node's raylet dies, it says so to whoever waits, kills the process and ends: Ray itself takes a quarter of
    a minute to notice, and longer to end what ran there.
    """

    def __init__(self) -> None:
        self._raylet = os.getppid()
        self._reaper = Reaper()
        self._process: WorkerProcess | None = None

    async def start(self, spec: WorkerSpec, timeout: float) -> Outcome:
        """Starts the process; returns what it says of itself and of its versions and data."""
        try:
            spec = await asyncio.to_thread(_on_this_node, spec)
            self._process = WorkerProcess(spec, self._reaper)
            await self._process.start(timeout)
            metadata = await self._process.call("metadata", timeout)
        except Exception as error:
            return _outcome(error)
        hello = self._process.hello
        assert hello is not None
        said: dict[str, Any] = {"facts": _fields(hello.facts), "splits": hello.splits, "python": hello.python}
        return "ok", {**said, "pid": self._process.pid, "node": socket.gethostname(), "metadata": metadata}

    async def call(self, op: str, timeout: float, arguments: dict[str, Any]) -> Outcome:
        """Has an operation executed."""
        assert self._process is not None
        try:
            return "ok", await self._process.call(op, timeout, **arguments)
        except Exception as error:
            return _outcome(error)

    async def wait_dead(self) -> str:
        """Returns, when the process is gone, the last line that it printed."""
        assert self._process is not None
        dead = asyncio.ensure_future(self._process.wait_dead())
        while not dead.done():
            await asyncio.wait({dead}, timeout=_LOOK)
            if os.getppid() != self._raylet:
                self._process.kill(WorkerDiedError("the Ray node of its worker died"))
                self._reaper.close()
                asyncio.get_running_loop().call_later(_LAST_REPLIES, os._exit, 1)
                return "the Ray node died"
        return self._process.last_words()

    async def rss(self) -> int:
        """Returns the resident bytes of the process with its children."""
        return memory.tree_rss(self._process.pid) if self._process is not None else 0

    async def close(self) -> None:
        """Ends the process and its children."""
        if self._process is not None:
            await self._process.close()
        self._reaper.close()


def _on_this_node(spec: WorkerSpec) -> WorkerSpec:
    """Makes the benchmark's environment here unless it is there, and names its interpreter."""
    if spec.name not in CATALOG or spec.adapter != CATALOG[spec.name].adapter:
        return spec
    try:
        return replace(spec, python=str(install(spec.name)), environ=worker_env(spec.name))
    except InstallError as error:
        detail = f"{spec.name} cannot be installed on {socket.gethostname()}: {error}"
        raise ServiceError("not_installed", detail) from error


def _outcome(error: Exception) -> Outcome:
    if isinstance(error, ServiceError):
        return "error", error.problem()
    for name, fault in FAULTS.items():
        if isinstance(error, fault):
            return name, str(error)
    raise error


def _fields(facts: Facts) -> dict[str, Any]:
    return dict(vars(facts))
