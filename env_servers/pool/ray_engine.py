"""The `ray` engine: worker processes on the nodes of a Ray cluster, behind the same pool.

Every node needs this package (`pip install 'cope-gym[ray]'`); a benchmark is installed there at its first use. Ray
places an actor for each worker and reserves the memory that the worker is expected to need.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import ray as untyped_ray
from ray.exceptions import RayError

from env_servers.adapter import Facts
from env_servers.errors import ServiceError
from env_servers.pool.base import BystanderError, EpisodeFaultError, Hello, WorkerDiedError, WorkerSpec
from env_servers.pool.ray_node import FAULTS, NodeWorker, Outcome
from env_servers.pool.workers import PoolWorker

log = logging.getLogger(__name__)

ray: Any = untyped_ray  # its annotations are partial

_ACTOR_BYTES = 100 * 2**20
_CONNECTING = 10.0
_PLACING = 60.0
_SILENT = 60.0
_CLOSING = 5.0
_CALLS = 10_000


class RayLauncher:
    """See `managed.Launcher`.

    Args:
        address: The cluster; `None` for the one of this machine or of RAY_ADDRESS.
    """

    look_seconds = 5.0

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._cores = 1
        self._available = 0.0
        # What the first worker of each benchmark says of its versions and data: all others must say the same.
        self.metadata: dict[str, Any] = {}

    async def start(self) -> None:
        """Connects to the cluster.

        Raises:
            ServiceError: There is none.
        """
        address = self._address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            if ":" in address:  # Ray itself would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), _CONNECTING).close()
            # In this thread: Ray handles signals until the server does.
            ray.init(address, log_to_driver=False, configure_logging=False, namespace="cope-gym")
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            detail = (
                f"No Ray cluster can be reached ({error}): run `ray start --head`, or name one with --ray-address."
            )
            raise ServiceError("worker_failed", detail) from error
        await self._ask_cluster()

    def make(self, spec: WorkerSpec, memory: float) -> PoolWorker:
        """See `managed.Launcher.make`."""
        return RayWorker(spec, int(memory) + _ACTOR_BYTES, self.metadata)

    def cores(self) -> int:
        """See `managed.Launcher.cores`."""
        return self._cores

    def available(self) -> float:
        """Returns the bytes that Ray has not promised to anybody."""
        return self._available

    async def look(self, workers: Sequence[PoolWorker]) -> None:
        """See `managed.Launcher.look`; a worker whose node does not answer counts as dead."""
        await asyncio.gather(self._ask_cluster(), *(w.look() for w in workers if isinstance(w, RayWorker) and w.alive))

    def close(self) -> None:
        """Leaves the cluster; Ray ends whatever is left of ours."""
        ray.shutdown()

    async def _ask_cluster(self) -> None:
        total: dict[str, float] = await asyncio.to_thread(ray.cluster_resources)
        free: dict[str, float] = await asyncio.to_thread(ray.available_resources)
        self._cores = max(1, int(total.get("CPU", 1)))
        self._available = free.get("memory", 0.0) if "memory" in total else float("inf")


class RayWorker(PoolWorker):
    """A worker process on some node."""

    def __init__(self, spec: WorkerSpec, memory: int, metadata: dict[str, Any]) -> None:
        super().__init__(spec)
        self._metadata = metadata
        self._memory = memory
        self._actor: Any = None
        self._node = ""
        self._calls = 0
        self._words = ""
        self._killed: asyncio.Future[WorkerDiedError] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Name for logs, with the node's."""
        return f"{self.spec.name}-{self._node}-{self.pid}"

    @property
    def calls(self) -> int:
        """See `PoolWorker.calls`."""
        return self._calls

    async def start(self, timeout: float) -> None:
        """See `PoolWorker.start`."""
        actor: Any = ray.remote(NodeWorker)
        options = {"num_cpus": 0, "memory": self._memory, "scheduling_strategy": "SPREAD", "max_concurrency": _CALLS}
        self._actor = actor.options(**options).remote()
        try:
            async with asyncio.timeout(timeout + _PLACING):
                said = await self._ask(self._actor.start.remote(self.spec, timeout))
        except TimeoutError:
            self.kill()
            raise WorkerDiedError(f"Ray found no place for a worker of {self.spec.name} in time") from None
        except EpisodeFaultError as error:
            self.kill()
            raise WorkerDiedError(f"the adapter of {self.spec.name} failed to start: {error}") from error
        except BaseException:
            self.kill()
            raise
        self.pid, self._node = said["pid"], said["node"]
        if self._metadata.setdefault(self.spec.name, said["metadata"]) != said["metadata"]:
            self.kill()
            raise WorkerDiedError(f"{self._node} has another version of {self.spec.name} or of its data")
        self.hello = Hello(Facts(**said["facts"]), tuple(said["splits"]), said["python"])
        self._watching = asyncio.create_task(self._watch())

    async def call(self, op: str, timeout: float, **arguments: Any) -> Any:
        """See `Worker.call`; the deadline is watched on the node."""
        if not self.alive:
            raise BystanderError(self._obituary())
        return await self._ask(self._actor.call.remote(op, timeout, arguments))

    async def look(self) -> None:
        """Brings `rss` up to date."""
        try:
            async with asyncio.timeout(_SILENT):
                self.rss = await self._actor.rss.remote()
        except TimeoutError:
            log.error("Ray node is silent", extra={"worker": self.id})
            self.kill()
        except RayError as error:
            self._end(str(error))

    def kill(self, others: WorkerDiedError | None = None) -> None:
        """See `PoolWorker.kill`."""
        self._dead.set()
        if not self._killed.done():
            self._killed.set_result(others or WorkerDiedError(self._obituary()))
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None

    async def close(self) -> None:
        """See `PoolWorker.close`."""
        if self.alive and not self._calls:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(2 * _CLOSING):
                    await self._actor.close.remote()
        self.kill()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def last_words(self) -> str:
        """See `PoolWorker.last_words`."""
        return self._words

    async def _ask(self, reference: Any) -> Any:
        """Waits for an outcome, or for the end of the worker."""
        asked = asyncio.ensure_future(reference)
        self._calls += 1
        try:
            await asyncio.wait({asked, self._killed}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                asked.add_done_callback(_forget)
                asked.cancel()
                raise self._killed.result()
            outcome: Outcome = asked.result()
        except RayError as error:
            self._end(str(error))
            raise WorkerDiedError(self._obituary()) from error
        finally:
            self._calls -= 1
        return self._value(*outcome)

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "ok":
            return value
        if kind == "error":
            raise ServiceError.from_problem(value)
        error = FAULTS[kind](value)
        if isinstance(error, WorkerDiedError):
            self._end(value)
        raise error

    async def _watch(self) -> None:
        try:
            words = await self._actor.wait_dead.remote()
        except RayError as error:
            words = str(error)
        self._end(words)

    def _end(self, words: str) -> None:
        """Takes note that the process is gone."""
        lines = words.strip().splitlines()
        self._words = self._words or (lines[-1] if lines else "")
        self._dead.set()

    def _obituary(self) -> str:
        return f"the worker of {self.spec.name} on {self._node or 'Ray'} died" + (
            f" ({self._words[:300]})" if self._words else ""
        )


def _forget(asked: asyncio.Future[Any]) -> None:
    """Takes note of how a call ended that nobody waits for any more."""
    if not asked.cancelled():
        asked.exception()
