"""What so many concurrent episodes need, computed from measured costs, and a simulation that checks the result.

An agent thinks (its model generates), then its step passes one front and one worker. Each front and each worker does
one thing at a time; workers share the cores. `docs/scaling.md` explains the model.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from env_servers.bench.load import percentile

Begin = Callable[[int], None]


@dataclass(frozen=True)
class Cost:
    """What `cope bench service` measured of a benchmark.

    Attributes:
        name: Benchmark.
        step: Seconds of processor time that a worker needs for a step.
        create: Seconds of processor time that a worker needs for the start of an episode.
        worker: Bytes of a worker without sessions, engine included.
        session: Bytes of a session in it.
        places: Sessions of a worker.
    """

    name: str
    step: float
    create: float
    worker: float
    session: float
    places: int


@dataclass(frozen=True)
class Front:
    """What was measured of the front.

    Attributes:
        request: Seconds of processor time of a request.
        memory: Bytes without sessions.
        session: Bytes of a session with the journal of an episode.
    """

    request: float
    memory: float
    session: float


_MB = 2.0**20

# Measured 2026-11-30, see `docs/scaling.md`.
FRONT = Front(request=0.0006, memory=57 * _MB, session=0.5 * _MB)
COSTS = (
    Cost("sciworld", step=0.034, create=0.43, worker=352 * _MB, session=13 * _MB, places=32),
    Cost("alfworld", step=0.0053, create=0.32, worker=70 * _MB, session=3.8 * _MB, places=32),
    Cost("webshop", step=0.0011, create=0.002, worker=45 * _MB, session=0.05 * _MB, places=512),
    Cost("appworld", step=0.22, create=0.15, worker=242 * _MB, session=94 * _MB, places=8),
    Cost("tau2", step=0.34, create=0.39, worker=314 * _MB, session=14 * _MB, places=32),
)


@dataclass(frozen=True)
class Agents:
    """What uses the service.

    Attributes:
        sessions: Episodes at a time.
        think: Seconds between a reply and the next action, on average.
        steps: Steps of an episode.
    """

    sessions: int
    think: float
    steps: int


@dataclass(frozen=True)
class Need:
    """What it takes; cores are those of workers, each front has one besides."""

    fronts: int
    workers: int
    cores: int
    memory: float


@dataclass
class Outcome:
    """What a simulation saw.

    Attributes:
        throughput: Steps a second.
        ideal: Steps a second if nobody ever waited.
        waits: Seconds of every step beyond the thinking.
        busy: Share of time that the cores were in use.
    """

    throughput: float
    ideal: float
    waits: list[float]
    busy: float

    def wait(self, share: float) -> float:
        """Returns a percentile of the seconds from action to reply."""
        return percentile(self.waits, share)


def plan(cost: Cost, front: Front, agents: Agents, load: float = 0.6) -> Need:
    """Returns what keeps every part at most so busy.

    Args:
        cost: The benchmark.
        front: The front.
        agents: What uses it.
        load: Share of time that fronts and cores may be in use; waiting grows steeply beyond 0.8.
    """
    rate = agents.sessions / (agents.think + front.request + cost.step)
    # An episode's start and end are requests, too.
    fronts = math.ceil(rate * (1 + 2 / agents.steps) * front.request / load)
    cores = math.ceil(rate * (cost.step + cost.create / agents.steps) / load)
    workers = max(math.ceil(agents.sessions / cost.places), cores)
    memory = workers * cost.worker + agents.sessions * (cost.session + front.session) + fronts * front.memory
    return Need(fronts, workers, cores, memory)


@dataclass
class _Server:
    """One front or worker: one job at a time, the others wait in order."""

    waiting: deque[int] = field(default_factory=deque[int])
    busy: bool = False


class _Simulation:
    """Events are (time, number, kind, session); the number keeps equal times in order."""

    def __init__(self, cost: Cost, front: Front, agents: Agents, need: Need, seed: int) -> None:
        self.cost, self.front, self.agents, self.need = cost, front, agents, need
        self.random = random.Random(seed)
        self.fronts = [_Server() for _ in range(need.fronts)]
        self.workers = [_Server() for _ in range(need.workers)]
        self.free_cores = need.cores
        self.for_core: deque[int] = deque()
        self.sent = [0.0] * agents.sessions
        self.events: list[tuple[float, int, str, int]] = []
        self.number = 0
        self.now = 0.0
        self.waits: list[tuple[float, float]] = []
        self.worked = 0.0

    def run(self, seconds: float) -> None:
        for session in range(self.agents.sessions):
            self.at(self.random.expovariate(1 / self.agents.think), "send", session)
        while self.events and self.events[0][0] <= seconds:
            self.now, _, kind, session = heapq.heappop(self.events)
            getattr(self, kind)(session)

    def at(self, seconds: float, kind: str, session: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, kind, session))

    def send(self, session: int) -> None:
        self.sent[session] = self.now
        self._enter(self.fronts[session % len(self.fronts)], session, self._serve)

    def served(self, session: int) -> None:
        self._leave(self.fronts[session % len(self.fronts)], self._serve)
        self._enter(self.workers[session % len(self.workers)], session, self._want_core)

    def worked_off(self, session: int) -> None:
        self.free_cores += 1
        if self.for_core:
            self._work(self.for_core.popleft())
        self._leave(self.workers[session % len(self.workers)], self._want_core)
        self.waits.append((self.now, self.now - self.sent[session]))
        self.at(self.random.expovariate(1 / self.agents.think), "send", session)

    def _enter(self, server: _Server, session: int, begin: Begin) -> None:
        if server.busy:
            server.waiting.append(session)
        else:
            server.busy = True
            begin(session)

    def _leave(self, server: _Server, begin: Begin) -> None:
        if server.waiting:
            begin(server.waiting.popleft())
        else:
            server.busy = False

    def _serve(self, session: int) -> None:
        self.at(self._time(self.front.request), "served", session)

    def _want_core(self, session: int) -> None:
        if self.free_cores:
            self._work(session)
        else:
            self.for_core.append(session)

    def _work(self, session: int) -> None:
        self.free_cores -= 1
        # The start of an episode comes once in so many steps.
        starts = self.random.random() < 1 / self.agents.steps
        seconds = self._time(self.cost.step) + (self._time(self.cost.create) if starts else 0.0)
        self.worked += seconds
        self.at(seconds, "worked_off", session)

    def _time(self, mean: float) -> float:
        return self.random.expovariate(1 / mean) if mean else 0.0


def simulate(cost: Cost, front: Front, agents: Agents, need: Need, rounds: float = 4.0, seed: int = 0) -> Outcome:
    """Plays so many rounds of thinking and stepping, of which the first quarter does not count."""
    seconds = rounds * agents.think
    simulation = _Simulation(cost, front, agents, need, seed)
    simulation.run(seconds)
    begin = seconds / 4
    waits = [wait for time, wait in simulation.waits if time > begin]
    mean = front.request + cost.step + cost.create / agents.steps
    return Outcome(
        throughput=len(waits) / (seconds - begin),
        ideal=agents.sessions / (agents.think + mean),
        waits=waits,
        busy=simulation.worked / (need.cores * seconds),
    )
