"""Drives many sessions at once and times what they wait for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from env_servers.bench.client import Connection

_CREATING = 64


@dataclass
class Load:
    """What was measured.

    Attributes:
        sessions: Sessions driven at once.
        seconds: Wall time of the steps.
        create: Seconds of every creation.
        step: Seconds of every step.
        failures: Kinds of failure with their numbers.
    """

    sessions: int
    seconds: float = 0.0
    create: list[float] = field(default_factory=list[float])
    step: list[float] = field(default_factory=list[float])
    failures: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def success(self) -> float:
        """Share of requests that succeeded."""
        failed = sum(self.failures.values())
        return 1.0 - failed / max(1, len(self.step) + failed)

    @property
    def steps_per_second(self) -> float:
        """Executed steps by wall time."""
        return len(self.step) / self.seconds if self.seconds else 0.0

    def failed(self, kind: str) -> None:
        """Counts a failure."""
        self.failures[kind] = self.failures.get(kind, 0) + 1


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that is not exceeded by `share` of the values (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


async def drive(
    url: str,
    token: str | None,
    env: str,
    sessions: int,
    actions: Sequence[Any],
    task_ids: Sequence[str] = (),
    look: Callable[[], None] = lambda: None,
) -> Load:
    """Plays the actions in many sessions at once, all of them started before the first step.

    Args:
        url: The service.
        token: Its token.
        env: Benchmark.
        sessions: How many.
        actions: What each plays; an episode that ends early starts no other.
        task_ids: Tasks, one a session in turn; by default the service picks.
        look: Called after the last step, while all sessions are still open.
    """
    load = Load(sessions)
    creating = asyncio.Semaphore(_CREATING)
    ready, looked = asyncio.Barrier(sessions + 1), asyncio.Event()

    async def run(number: int) -> None:
        connection = Connection(url, token)
        try:
            async with creating:
                name = await _create(connection, load, env, task_ids[number % len(task_ids)] if task_ids else None)
            await ready.wait()
            if name is not None:
                await _play(connection, load, name, actions)
            await ready.wait()
            await looked.wait()
            if name is not None:
                await connection.request("DELETE", f"/v1/sessions/{name}")
        finally:
            connection.close()

    runs = [asyncio.create_task(run(number)) for number in range(sessions)]
    await ready.wait()
    began = time.perf_counter()
    await ready.wait()
    load.seconds = time.perf_counter() - began
    look()
    looked.set()
    await asyncio.gather(*runs)
    return load


async def _create(connection: Connection, load: Load, env: str, task_id: str | None) -> str | None:
    began = time.perf_counter()
    body = {"env": env} if task_id is None else {"env": env, "task_id": task_id}
    try:
        status, document = await connection.request("POST", "/v1/sessions", body)
    except OSError as error:
        load.failed(f"create: {error}")
        return None
    if status != 201:
        load.failed(f"create: {document['type']}")
        return None
    load.create.append(time.perf_counter() - began)
    return document["session_id"]


async def _play(connection: Connection, load: Load, name: str, actions: Sequence[Any]) -> None:
    for index, action in enumerate(actions):
        began = time.perf_counter()
        try:
            body = {"step_index": index, "action": action}
            status, document = await connection.request("POST", f"/v1/sessions/{name}/step", body)
        except OSError as error:
            load.failed(f"step: {error}")
            return
        if status != 200:
            load.failed(f"step: {document['type']}")
            return
        load.step.append(time.perf_counter() - began)
        if document["terminated"] or document["truncated"]:
            return
