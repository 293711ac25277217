"""Workers on this machine, as children of the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from env_servers.pool import memory
from env_servers.pool.base import WorkerSpec
from env_servers.pool.process import WorkerProcess
from env_servers.pool.reaper import Reaper
from env_servers.pool.workers import PoolWorker


class LocalLauncher:
    """See `managed.Launcher`."""

    look_seconds = 1.0

    def __init__(self) -> None:
        self._reaper = Reaper()

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
        sizes = await asyncio.to_thread(memory.group_rss)
        for worker in workers:
            worker.rss = sizes.get(worker.pid, 0)

    def close(self) -> None:
        """Kills whatever is left."""
        self._reaper.close()
