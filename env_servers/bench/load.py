"""Drives many sessions at once and times what they wait for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from env_servers.bench.client import Connection

_CREATING = 64


@dataclass(frozen=True)
class Plan:
    """What one session plays.

    Attributes:
        actions: Its actions; an episode that ends early starts no other.
        task_id: Its task; `None` lets the service pick.
    """

    actions: Sequence[Any]
    task_id: str | None = None


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
    plans: Sequence[Plan],
    look: Callable[[], None] = lambda: None,
    together: bool = False,
) -> Load:
    """Plays many sessions at once, all of them started before the first step.

    Args:
        url: The service.
        token: Its token.
        env: Benchmark.
        sessions: How many.
        plans: What they play, one a session in turn.
        look: Called before the first and after the last step, while all sessions are open.
        together: Step all sessions in one request, round by round, instead of each by requests of its own.
    """
    load = Load(sessions)
    creating = asyncio.Semaphore(_CREATING)
    ready, looked, ended = asyncio.Barrier(sessions + 1), asyncio.Event(), asyncio.Event()
    running: dict[str, Plan] = {}

    async def run(number: int) -> None:
        connection, plan = Connection(url, token), plans[number % len(plans)]
        try:
            async with creating:
                name = await _create(connection, load, env, plan.task_id)
            if name is not None:
                running[name] = plan
            await ready.wait()
            await looked.wait()
            if name is not None and not together:
                await _play(connection, load, name, plan.actions)
            await ready.wait()
            await ended.wait()
            if name is not None:
                await connection.request("DELETE", f"/v1/sessions/{name}")
        finally:
            connection.close()

    runs = [asyncio.create_task(run(number)) for number in range(sessions)]
    await ready.wait()
    look()
    looked.set()
    began = time.perf_counter()
    if together:
        await _play_together(Connection(url, token), load, running)
    await ready.wait()
    load.seconds = time.perf_counter() - began
    look()
    ended.set()
    await asyncio.gather(*runs)
    return load


async def gold_plans(url: str, token: str | None, env: str, tasks: int, steps: int) -> list[Plan]:
    """Returns the beginnings of solutions, of tasks of different categories as far as there are any.

    Raises:
        ValueError: No task has a solution.
    """
    connection = Connection(url, token)
    _, listed = await connection.request("GET", f"/v1/envs/{env}/tasks?limit=100000")
    first: dict[str, str] = {}
    for task in listed["tasks"]:
        first.setdefault(task["category"], task["id"])
    ids = list(dict.fromkeys([*first.values(), *(task["id"] for task in listed["tasks"])]))
    plans: list[Plan] = []
    for task_id in ids[: 4 * tasks]:
        _, found = await connection.request("GET", f"/v1/envs/{env}/gold?task_id={quote(task_id, safe='')}")
        if found.get("actions"):
            plans.append(Plan(found["actions"][:steps], task_id))
        if len(plans) == tasks:
            break
    connection.close()
    if not plans:
        raise ValueError(f"{env} has no solutions to play; name an action with --action.")
    return plans


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


async def _play_together(connection: Connection, load: Load, running: dict[str, Plan]) -> None:
    left = {name: list(reversed(plan.actions)) for name, plan in running.items()}
    index = 0
    while left := {name: actions for name, actions in left.items() if actions}:
        steps = [{"session_id": name, "step_index": index, "action": left[name].pop()} for name in left]
        began = time.perf_counter()
        _, document = await connection.request("POST", "/v1/step_many", {"steps": steps})
        taken = time.perf_counter() - began
        for name, result in zip(list(left), document["results"], strict=True):
            if "error" in result:
                load.failed(f"step: {result['error']['type']}")
                del left[name]
                continue
            load.step.append(taken)
            if result["terminated"] or result["truncated"]:
                del left[name]
        index += 1
    connection.close()
