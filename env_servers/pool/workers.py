"""What a managed pool keeps of a worker, wherever its process runs."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any

from env_servers.pool.base import Hello, WorkerDiedError, WorkerSpec


class PoolWorker(ABC):
    """One worker process.

    Attributes:
        spec: What it was started with.
        hello: What it said of itself; `None` until it is up.
        sessions: Ids of the sessions that have a place here.
        affinities: What those sessions are put together by.
        served: How many sessions it has had.
        retiring: Takes no more sessions and ends after its last.
        alone: Reserved for one session whose action may be poison.
        idle_since: When its last session left, on the monotonic clock.
        pid: Process id on its machine, 0 until it runs.
        rss: Resident bytes with children, as last looked at.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.hello: Hello | None = None
        self.sessions: set[str] = set()
        self.affinities: set[str] = set()
        self.served = 0
        self.retiring = False
        self.alone = False
        self.idle_since = time.monotonic()
        self.pid = 0
        self.rss = 0
        self._dead = asyncio.Event()

    @property
    def id(self) -> str:
        """Name for logs."""
        return f"{self.spec.name}-{self.pid}"

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        return self.pid != 0 and not self._dead.is_set()

    @property
    def takes_sessions(self) -> bool:
        """Whether a session may be put here, now or when it is up."""
        return not (self._dead.is_set() or self.retiring or self.alone)

    @property
    @abstractmethod
    def calls(self) -> int:
        """Number of calls that wait for their reply."""

    @abstractmethod
    async def start(self, timeout: float) -> None:
        """Starts the process and waits until its adapter is up.

        Raises:
            ServiceError: The adapter refused its settings.
            WorkerDiedError: It did not come up.
        """

    @abstractmethod
    async def call(self, op: str, timeout: float, **arguments: Any) -> Any:
        """Has an operation executed; see `Worker.call`."""

    @abstractmethod
    def kill(self, others: WorkerDiedError | None = None) -> None:
        """Kills the process and its children, now. Calls in flight fail with `others`, or as if it had died itself."""

    @abstractmethod
    async def close(self) -> None:
        """Lets the adapter close its engine, then kills what is left."""

    @abstractmethod
    def last_words(self) -> str:
        """Returns the last line that the process printed."""

    async def wait_dead(self) -> None:
        """Returns when the worker is gone."""
        await self._dead.wait()
