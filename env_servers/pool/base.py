"""What the front may ask of a pool, whichever engine (local processes, a Ray cluster) stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from env_servers.adapter import Facts


@dataclass(frozen=True)
class WorkerSpec:
    """How a benchmark's worker process is started.

    Attributes:
        name: Name of the benchmark.
        python: Interpreter.
        adapter: `module:Class`.
        settings: Settings of the adapter.
        environ: Environment variables beside the inherited ones.
        paths: Folders to import a third-party adapter from.
    """

    name: str
    python: str
    adapter: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hello:
    """What a worker says of itself when it is up."""

    facts: Facts
    splits: tuple[str, ...]
    python: str


class WorkerDiedError(Exception):
    """The worker is gone, with all of its episodes."""


class WorkerTimeoutError(WorkerDiedError):
    """A call missed its deadline, so the worker was killed."""


class BystanderError(WorkerDiedError):
    """The worker was killed for another session's call, or died before this one was sent: no reason for suspicion."""


class EpisodeFaultError(Exception):
    """The benchmark broke inside one episode; the worker and its other episodes live on."""


class NoRoomError(Exception):
    """No worker can take another session now."""


class Worker(Protocol):
    """One running worker process."""

    @property
    def id(self) -> str:
        """Name for logs."""
        ...

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        ...

    async def call(self, op: str, timeout: float, **arguments: Any) -> Any:
        """Has an operation executed.

        Raises:
            ServiceError: The adapter named what is wrong; nothing has changed.
            EpisodeFaultError: The benchmark broke; the episode is gone.
            WorkerDiedError: The worker died, or was killed because the deadline passed.
            BystanderError: It died, but not of this call.
        """
        ...


class Pool(Protocol):
    """All workers of a service.

    Attributes:
        deaths: Workers that ended unasked.
    """

    deaths: int

    async def start(self) -> None:
        """Starts what must be ready beforehand and learns each benchmark's facts."""
        ...

    def hello(self, env: str) -> Hello:
        """Returns what a benchmark's workers said of themselves."""
        ...

    async def control(self, env: str, long: bool = False) -> Worker:
        """Returns a worker that answers questions (tasks, metadata) and holds no session.

        Args:
            env: The benchmark.
            long: For questions that may take minutes (gold): another such worker, started when it is first needed.

        Raises:
            NoRoomError: There is no memory for it.
            WorkerDiedError: It could not be started.
        """
        ...

    async def acquire(self, env: str, session: str, affinity: str | None = None, alone: bool = False) -> Worker:
        """Reserves a place for a session.

        Args:
            env: The benchmark.
            session: Whose place it is.
            affinity: Sessions of equal affinity are put together where the load allows it.
            alone: Start a worker that nobody else shares.

        Raises:
            NoRoomError: The limits are reached.
            WorkerDiedError: No worker could be started.
        """
        ...

    def release(self, worker: Worker, session: str) -> None:
        """Gives a session's place back."""
        ...

    def share(self, worker: Worker) -> None:
        """Opens a worker that was started for one session alone to others."""
        ...

    def kill(self, worker: Worker) -> None:
        """Kills a worker and all of its children at once."""
        ...

    def stats(self) -> list[dict[str, Any]]:
        """Returns `env`, `worker`, `sessions`, `calls` (in execution), `alone`, `rss` and `pid` of every worker."""
        ...

    async def close(self) -> None:
        """Ends every worker; nothing is left running."""
        ...
