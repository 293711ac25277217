"""Plays episodes while workers are killed and replies get lost, and compares with an undisturbed run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from env_servers.bench.client import Connection
from env_servers.bench.serving import Served, flags, serving

_TRIES = 50
_SETTLE = 0.01
_PLACE = re.compile(rb'cope_worker_(sessions|calls|alone)\{.*worker="[^"]*-(\d+)"\} ([\d.]+)')
Transcript = list[tuple[Any, str, float, bool, bool]]


@dataclass
class Chaos:
    """What happened.

    Attributes:
        env: Benchmark.
        episodes: Episodes played in each run.
        steps: Steps of the disturbed run.
        kills: Workers killed while they held sessions.
        kills_in_step: Of these, killed while they owed a reply.
        dropped: Replies that got lost.
        lost: Episodes that ended with an error, with its type.
        doubled: Episodes with more steps than actions sent.
        different: Episodes that came out differently.
    """

    env: str
    episodes: int
    steps: int = 0
    kills: int = 0
    kills_in_step: int = 0
    dropped: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: int = 0
    different: int = 0

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, doubled or changed."""
        return not (self.lost or self.doubled or self.different)

    def sentence(self) -> str:
        """Returns the outcome as one line."""
        return (
            f"{self.env}: {self.episodes} episodes, {self.steps} steps; {self.kills} workers killed on live sessions, "
            f"{self.kills_in_step} of them in mid-step; {self.dropped} replies lost -> {len(self.lost)} episodes lost "
            f"{self.lost or ''}, {self.doubled} doubled, {self.different} different"
        )


@dataclass(frozen=True)
class _Place:
    """What a worker does."""

    sessions: int
    calls: int
    alone: int

    @property
    def fair(self) -> bool:
        """Whether its death must cost no episode: by rule, that of a worker at a step's second try does."""
        return self.sessions > 0 and not self.alone


@dataclass
class _Run:
    """One of the two runs."""

    served: Served
    result: Chaos
    drop: float
    steps: int
    chance: random.Random
    gold: dict[str, list[Any]]
    done: int = 0

    async def episode(self, task_id: str, seed: int) -> Transcript:
        """Plays a gold path; returns the transcript as the service tells it."""
        connection = _Lossy(self.served, self.chance, self.drop, self.result)
        try:
            actions = await self._solution(connection, task_id)
            body = {"env": self.result.env, "task_id": task_id, "seed": seed, "max_steps": self.steps}
            session = await connection.request("POST", "/v1/sessions", body, key=f"episode-{seed}")
            sent = await self._play(connection, session, actions)
            told = await connection.request("POST", f"/v1/sessions/{session['session_id']}/attach", {})
            await connection.request("DELETE", f"/v1/sessions/{session['session_id']}")
            self.result.doubled += told["step_index"] != sent
            return [
                (turn["action"], turn["observation"], turn["reward"], turn["terminated"], turn["truncated"])
                for turn in told["transcript"]
            ]
        finally:
            self.done += 1
            connection.close()

    async def _solution(self, connection: _Lossy, task_id: str) -> list[Any]:
        if task_id not in self.gold:
            path = f"/v1/envs/{self.result.env}/gold?task_id={quote(task_id, safe='')}"
            self.gold[task_id] = (await connection.request("GET", path))["actions"] or []
        return self.gold[task_id][: self.steps]

    async def _play(self, connection: _Lossy, session: dict[str, Any], actions: list[Any]) -> int:
        path = f"/v1/sessions/{session['session_id']}/step"
        for index, action in enumerate(actions):
            reply = await connection.request("POST", path, {"step_index": index, "action": action})
            self.result.steps += 1
            if reply["terminated"] or reply["truncated"]:
                return index + 1
        return len(actions)

    async def kill_some(self, number: int, episodes: int) -> None:
        """Kills workers that hold sessions, spread over the run."""
        connection = Connection(self.served.url, self.served.token)
        try:
            for kill in range(number):
                while self.done < episodes * (kill + 0.5) / (number + 1):
                    await asyncio.sleep(0.01)
                while not await self._kill_one(connection):
                    await asyncio.sleep(0.05)
        finally:
            connection.close()

    async def _kill_one(self, connection: Connection) -> bool:
        """Kills a worker at a moment of chance; returns whether there was one with sessions."""
        holding = [pid for pid, place in (await self._places(connection)).items() if place.fair]
        if not holding:
            return False
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        pid = self.chance.choice(holding)
        with contextlib.suppress(ProcessLookupError):
            # Stopped first: what the service then says of it is true at its death.
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(_SETTLE)
            place = (await self._places(connection)).get(pid)
            if place is None or not place.fair:
                os.kill(pid, signal.SIGCONT)
                return False
            os.kill(pid, signal.SIGKILL)
            self.result.kills += 1
            self.result.kills_in_step += place.calls > 0
            return True
        return False

    async def _places(self, connection: Connection) -> dict[int, _Place]:
        """Returns what every worker that is up does (others have no process id yet)."""
        found: dict[int, dict[str, int]] = {}
        for name, pid, value in _PLACE.findall(await connection.text("/metrics")):
            found.setdefault(int(pid), {})[name.decode()] = int(float(value))
        return {pid: _Place(**counts) for pid, counts in found.items() if pid}


class _Lossy:
    """A client that loses replies and asks again, as the protocol lets it."""

    def __init__(self, served: Served, chance: random.Random, drop: float, result: Chaos) -> None:
        self._served, self._chance, self._drop, self._result = served, chance, drop, result
        self._connection = Connection(served.url, served.token)

    async def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Returns the reply.

        Raises:
            RuntimeError: The service refused; the message has the problem's type and detail.
        """
        for _ in range(_TRIES):
            status, document = await self._connection.request(method, path, body, key)
            if self._chance.random() < self._drop and status < 300:
                self._result.dropped += 1
                self.close()
                self._connection = Connection(self._served.url, self._served.token)
                continue
            if status < 300:
                return document
            if not document["retryable"]:
                raise RuntimeError(f"{document['type']}: {document['detail']}")
            await asyncio.sleep(0.5)
        raise RuntimeError("retries used up")

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def run(env: str, episodes: int, kills: int, drop: float, steps: int, parallel: int, tasks: int) -> Chaos:
    """Plays both runs.

    Raises:
        RuntimeError: The service did not start.
    """
    name, arguments = flags(env)
    arguments += ["--max-sessions", str(4 * parallel)]
    gold: dict[str, list[Any]] = {}
    calm, wild = Chaos(name, episodes), Chaos(name, episodes)
    with serving(arguments) as served:
        expected = asyncio.run(_run(_Run(served, calm, 0.0, steps, random.Random(0), gold), parallel, 0, tasks))
    with serving(arguments) as served:
        found = asyncio.run(_run(_Run(served, wild, drop, steps, random.Random(0), gold), parallel, kills, tasks))
    wild.lost += calm.lost
    wild.different = sum(a != b for a, b in zip(expected, found, strict=True))
    return wild


async def _run(run: _Run, parallel: int, kills: int, number_of_tasks: int) -> list[Transcript | None]:
    result = run.result
    connection = Connection(run.served.url, run.served.token)
    _, listed = await connection.request("GET", f"/v1/envs/{result.env}/tasks?limit=100000")
    connection.close()
    stride = max(1, len(listed["tasks"]) // min(number_of_tasks, result.episodes))
    tasks = [task["id"] for task in listed["tasks"][::stride]]
    room = asyncio.Semaphore(parallel)

    async def one(number: int) -> Transcript | None:
        async with room:
            try:
                return await run.episode(tasks[number % len(tasks)], number)
            except RuntimeError as error:
                result.lost.append(str(error))
                return None

    killer = asyncio.create_task(run.kill_some(kills, result.episodes))
    transcripts = await asyncio.gather(*(one(number) for number in range(result.episodes)))
    killer.cancel()
    await asyncio.gather(killer, return_exceptions=True)
    return transcripts


def total(results: list[Chaos]) -> Chaos:
    """Returns the sum over benchmarks."""
    whole = Chaos("all", sum(result.episodes for result in results))
    for result in results:
        for name in ("steps", "kills", "kills_in_step", "dropped", "lost", "doubled", "different"):
            setattr(whole, name, getattr(whole, name) + getattr(result, name))
    return whole
