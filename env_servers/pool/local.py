"""Workers on this machine, as children of the service."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from env_servers.pool import memory
from env_servers.pool.base import WorkerSpec
from env_servers.pool.process import WorkerProcess
from env_servers.pool.reaper import Reaper
from env_servers.pool.workers import PoolWorker

# From here on it matters whether pages that processes share were counted more than once. The kernel walks all pages to
# tell, so it is asked now and then, or when a worker has grown by a quarter since.
_EXACT_FROM = 512 * 2**20
_EXACT_EVERY = 10.0
_GROWN = 1.25


class LocalLauncher:
    """See `managed.Launcher`."""

    look_seconds = 1.0

    def __init__(self) -> None:
        self._reaper = Reaper()
        self._exact: dict[int, tuple[float, int, int]] = {}

    async def start(self) -> None:
        """Nothing needs to be ready."""

    def make(self, spec: WorkerSpec, memory: float) -> PoolWorker:
        """See `managed.Launcher.make`."""
        return WorkerProcess(spec, self._reaper)

    def cores(self) -> int:
        """See `managed.Launcher.cores`."""
        # Those that this process may use: fewer than the machine's under taskset or in a job of a cluster.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def available(self) -> float:
        """See `managed.Launcher.available`."""
        return memory.available()

    async def look(self, workers: Sequence[PoolWorker]) -> None:
        """See `managed.Launcher.look`."""
        groups = [worker.pid for worker in workers]  # noted now: a worker that comes up meanwhile gets its number
        sizes = await asyncio.to_thread(self._sizes, groups)
        for worker, group in zip(workers, groups, strict=True):
            worker.rss = sizes[group]

    def close(self) -> None:
        """Kills whatever is left."""
        self._reaper.close()

    def _sizes(self, groups: Sequence[int]) -> dict[int, int]:
        """Returns the bytes of process groups. Copies of a process (AppWorld's sessions) share most of theirs."""
        resident = memory.group_rss()
        self._exact = {group: known for group, known in self._exact.items() if group in groups}
        return {group: self._size(group, resident.get(group, 0)) for group in groups}

    def _size(self, group: int, resident: int) -> int:
        if resident < _EXACT_FROM:
            return resident
        looked, then, exact = self._exact.get(group, (0.0, 0, 0))
        if time.monotonic() - looked > _EXACT_EVERY or resident > _GROWN * then:
            looked, then, exact = time.monotonic(), resident, memory.group_pss(group)
            self._exact[group] = looked, then, exact
        return exact + max(0, resident - then)
