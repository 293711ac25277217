"""The pool: places sessions in workers, and starts, warms, watches and ends those. A launcher says where they run."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from env_servers.adapter import Facts
from env_servers.errors import ServiceError
from env_servers.pool.base import EpisodeFaultError, Hello, NoRoomError, Worker, WorkerDiedError, WorkerSpec
from env_servers.pool.workers import PoolWorker

log = logging.getLogger(__name__)

_GUESSED_WORKER_BYTES = 150 * 2**20


@dataclass(frozen=True)
class PoolLimits:
    """Limits of a pool.

    Attributes:
        max_workers: Worker processes of one benchmark, `None` for as many as memory and sessions allow.
        warm: Workers of each benchmark that are started ahead of need.
        recycle_after: Sessions after which a worker is replaced (engines leak).
        worker_memory: Resident bytes, children included, at which a worker is killed; its sessions are rebuilt
            elsewhere. From half of it on it takes no new session.
        reserve_memory: Bytes of the machine that are left alone.
        start_timeout: Seconds that a worker may take to come up.
        idle_seconds: How long a worker beyond the warm ones is kept without a session.
    """

    max_workers: int | None = None
    warm: int = 1
    recycle_after: int = 1000
    worker_memory: float = 4 * 2**30
    reserve_memory: float = 512 * 2**20
    start_timeout: float = 120.0
    idle_seconds: float = 120.0


@dataclass
class _Desk:
    """A worker that answers questions and holds no session."""

    worker: PoolWorker | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _Group:
    """The workers of one benchmark. Long questions have their own desk: who starts an episode asks short ones."""

    spec: WorkerSpec
    workers: list[PoolWorker] = field(default_factory=list[PoolWorker])
    starting: dict[PoolWorker, asyncio.Task[None]] = field(default_factory=dict[PoolWorker, "asyncio.Task[None]"])
    control: _Desk = field(default_factory=_Desk)
    research: _Desk = field(default_factory=_Desk)
    hello: Hello | None = None
    bytes_per_worker: float = _GUESSED_WORKER_BYTES

    @property
    def facts(self) -> Facts:
        assert self.hello is not None
        return self.hello.facts

    def all_workers(self) -> list[PoolWorker]:
        asked = [desk.worker for desk in (self.control, self.research) if desk.worker is not None]
        return [*self.workers, *asked]


class Launcher(Protocol):
    """Where worker processes run.

    Attributes:
        look_seconds: How often to look at memory.
    """

    look_seconds: float

    async def start(self) -> None:
        """Gets ready to make workers."""
        ...

    def make(self, spec: WorkerSpec, memory: float) -> PoolWorker:
        """Returns a worker, not yet started, that is expected to use so many bytes."""
        ...

    def cores(self) -> int:
        """Returns the number of processor cores there are."""
        ...

    def available(self) -> float:
        """Returns the bytes of memory that more workers may use."""
        ...

    async def look(self, workers: Sequence[PoolWorker]) -> None:
        """Brings `rss` of the workers up to date."""
        ...

    def close(self) -> None:
        """Ends whatever is left."""
        ...


class ManagedPool:
    """Starts, warms, watches and kills worker processes. See `base.Pool`.

    Args:
        specs: The benchmarks.
        limits: The pool's limits.
        launcher: Where the workers run.
    """

    def __init__(self, specs: Sequence[WorkerSpec], limits: PoolLimits, launcher: Launcher) -> None:
        self.limits = limits
        self._launcher = launcher
        self._groups = {spec.name: _Group(spec) for spec in specs}
        self._background: set[asyncio.Task[Any]] = set()
        self._spawning = asyncio.Semaphore(2)
        self._closing = False
        self.deaths = 0

    async def start(self) -> None:
        """Learns each benchmark's facts and warms the first workers."""
        await self._launcher.start()
        self._spawning = asyncio.Semaphore(max(2, self._launcher.cores()))
        await asyncio.gather(*(self.control(env) for env in self._groups))
        for group in self._groups.values():
            self._warm(group)
        self._spawn_task(self._watch_memory())

    def hello(self, env: str) -> Hello:
        """See `base.Pool.hello`."""
        hello = self._groups[env].hello
        assert hello is not None, "the pool has not been started"
        return hello

    async def control(self, env: str, long: bool = False) -> Worker:
        """See `base.Pool.control`."""
        group = self._groups[env]
        desk = group.research if long else group.control
        async with desk.lock:
            if desk.worker is None or not desk.worker.alive:
                if long and not self._room_for_one(group, counted=False):
                    raise NoRoomError(f"no memory is left for questions about {group.spec.name}")
                desk.worker = self._launcher.make(group.spec, group.bytes_per_worker)
                await desk.worker.start(self.limits.start_timeout)
                group.hello = desk.worker.hello
            desk.worker.idle_since = time.monotonic()
            return desk.worker

    async def acquire(self, env: str, session: str, affinity: str | None = None, alone: bool = False) -> Worker:
        """See `base.Pool.acquire`."""
        group = self._groups[env]
        worker = self._spawn(group) if alone else self._choose(group, affinity if group.facts.affinity else None)
        worker.alone = worker.alone or alone
        worker.sessions.add(session)
        worker.served += 1
        if affinity is not None:
            worker.affinities.add(affinity)
        worker.retiring = worker.retiring or worker.served >= self.limits.recycle_after
        self._warm(group)
        try:
            if worker in group.starting:
                await asyncio.shield(group.starting[worker])
        except BaseException:
            self.release(worker, session)
            raise
        return worker

    def release(self, worker: Worker, session: str) -> None:
        """See `base.Pool.release`."""
        process = cast("PoolWorker", worker)
        process.sessions.discard(session)
        process.idle_since = time.monotonic()
        if process.retiring and not process.sessions and process.alive:
            self._spawn_task(process.close())

    def share(self, worker: Worker) -> None:
        """See `base.Pool.share`."""
        cast("PoolWorker", worker).alone = False

    def kill(self, worker: Worker) -> None:
        """See `base.Pool.kill`."""
        cast("PoolWorker", worker).kill()

    def stats(self) -> list[dict[str, Any]]:
        """See `base.Pool.stats`."""
        return [
            {
                "env": name,
                "worker": worker.id,
                "pid": worker.pid,
                "sessions": len(worker.sessions),
                "calls": worker.calls,
                "alone": worker.alone,
                "rss": worker.rss,
            }
            for name, group in self._groups.items()
            for worker in group.all_workers()
        ]

    async def close(self) -> None:
        """See `base.Pool.close`."""
        self._closing = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        everyone = [worker for group in self._groups.values() for worker in group.all_workers()]
        await asyncio.gather(*(worker.close() for worker in everyone), return_exceptions=True)
        self._launcher.close()

    def _choose(self, group: _Group, affinity: str | None) -> PoolWorker:
        places = group.facts.sessions_per_worker
        open_workers = [w for w in group.workers if w.takes_sessions and len(w.sessions) < places]
        friends = [worker for worker in open_workers if affinity in worker.affinities]
        if friends:
            # A cache is worth a queue only up to a point: bounded load, a quarter over the mean.
            sessions = 1 + sum(len(worker.sessions) for worker in group.workers)
            bound = math.ceil(1.25 * sessions / max(len(group.workers), self._launcher.cores()))
            friend = min(friends, key=_load)
            if len(friend.sessions) < bound:
                return friend
        least = min(open_workers, key=_load, default=None)
        spread = len(group.workers) >= self._launcher.cores() or not self._room_for_one(group)
        if least is not None and (spread or not least.sessions):
            return least
        return self._spawn(group)

    def _room_for_one(self, group: _Group, counted: bool = True) -> bool:
        if counted and self.limits.max_workers is not None and len(group.workers) >= self.limits.max_workers:
            return False
        starting = sum(len(g.starting) * g.bytes_per_worker for g in self._groups.values())
        return self._launcher.available() - starting - group.bytes_per_worker > self.limits.reserve_memory

    def _spawn(self, group: _Group) -> PoolWorker:
        if self._closing or not self._room_for_one(group):
            raise NoRoomError(f"no memory or worker is left for another session of {group.spec.name}")
        worker = self._launcher.make(group.spec, group.bytes_per_worker)
        group.workers.append(worker)
        group.starting[worker] = self._spawn_task(self._bring_up(group, worker))
        return worker

    async def _bring_up(self, group: _Group, worker: PoolWorker) -> None:
        try:
            async with self._spawning:
                await worker.start(self.limits.start_timeout)
            log.info("worker started", extra={"worker": worker.id})
            self._spawn_task(self._watch(group, worker))
            self._spawn_task(self._warm_up(worker))
        except BaseException:
            group.workers.remove(worker)
            await worker.close()
            raise
        finally:
            del group.starting[worker]

    async def _warm_up(self, worker: PoolWorker) -> None:
        try:
            await worker.call("warm", self.limits.start_timeout)
        except (WorkerDiedError, EpisodeFaultError, ServiceError) as error:
            # The first session of this worker meets the same fault and tells its client.
            log.warning("worker could not be warmed", extra={"worker": worker.id, "error": str(error)})

    async def _watch(self, group: _Group, worker: PoolWorker) -> None:
        await worker.wait_dead()
        group.workers.remove(worker)
        expected = worker.retiring and not worker.sessions
        if not expected:
            self.deaths += 1
        log.log(
            logging.INFO if expected else logging.WARNING,
            "worker ended",
            extra={"worker": worker.id, "sessions": len(worker.sessions), "last_words": worker.last_words()},
        )
        await worker.close()
        if not self._closing:
            self._warm(group)

    def _warm(self, group: _Group) -> None:
        places = group.facts.sessions_per_worker
        free = sum(w.takes_sessions and len(w.sessions) < places for w in group.workers)
        if free < self.limits.warm and not self._closing and self._room_for_one(group):
            self._spawn(group)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(self._launcher.look_seconds)
            await self._launcher.look([worker for group in self._groups.values() for worker in group.all_workers()])
            for group in self._groups.values():
                for worker in list(group.workers):
                    self._check_memory(worker)
                self._shrink(group)
                group.bytes_per_worker = max((w.rss for w in group.workers if w.rss), default=group.bytes_per_worker)

    def _shrink(self, group: _Group) -> None:
        """Ends workers that a rush has left behind."""
        idle = [worker for worker in group.workers if worker.alive and worker.takes_sessions and not worker.sessions]
        for worker in idle[self.limits.warm :]:
            if time.monotonic() - worker.idle_since > self.limits.idle_seconds:
                worker.retiring = True
                self._spawn_task(worker.close())
        asked = group.research.worker
        if asked is not None and not asked.calls and time.monotonic() - asked.idle_since > self.limits.idle_seconds:
            group.research.worker = None
            self._spawn_task(asked.close())

    def _check_memory(self, worker: PoolWorker) -> None:
        if worker.rss > self.limits.worker_memory:
            log.warning("worker over its memory limit", extra={"worker": worker.id, "rss": worker.rss})
            worker.kill()
        elif worker.rss > self.limits.worker_memory / 2 and not worker.retiring:
            worker.retiring = True
            if not worker.sessions:
                self._spawn_task(worker.close())

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, (WorkerDiedError, ServiceError, OSError)):
            log.warning("worker could not be started", extra={"error": str(error)})
        else:
            log.error("defect of the pool", exc_info=error)


def _load(worker: PoolWorker) -> int:
    return len(worker.sessions)
