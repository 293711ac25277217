"""The capacity model: its simulation against queueing theory, its plans against its simulation."""

from __future__ import annotations

import math

import pytest

from env_servers.bench.capacity import COSTS, FRONT, Agents, Cost, Front, Need, plan, simulate

FREE = Front(request=0.0, memory=0.0, session=0.0)


def repaired(sessions: int, think: float, step: float, cores: int) -> float:
    """Returns the throughput of the machine repair model (M/M/c with a finite source), in closed form."""
    weights = [1.0]
    for number in range(sessions):
        weights.append(weights[-1] * (sessions - number) / think * step / min(number + 1, cores))
    total = sum(weights)
    return sum(weight / total * min(number, cores) / step for number, weight in enumerate(weights))


@pytest.mark.parametrize(("sessions", "cores"), [(1, 1), (6, 1), (12, 1), (12, 3), (40, 4)])
def test_the_simulation_agrees_with_queueing_theory(sessions: int, cores: int) -> None:
    cost = Cost("engine", step=0.2, create=0.0, worker=0, session=0, places=1)
    need = Need(fronts=1, workers=sessions, cores=cores, memory=0)
    outcome = simulate(cost, FREE, Agents(sessions, think=1.0, steps=10), need, rounds=60_000 / sessions)
    assert outcome.throughput == pytest.approx(repaired(sessions, 1.0, 0.2, cores), rel=0.02)
    assert outcome.busy == pytest.approx(outcome.throughput * 0.2 / cores, rel=0.02)


def test_a_worker_does_one_step_at_a_time() -> None:
    cost = Cost("engine", step=0.2, create=0.0, worker=0, session=0, places=12)
    agents = Agents(12, think=1.0, steps=10)
    outcome = simulate(cost, FREE, agents, Need(fronts=1, workers=1, cores=8, memory=0), rounds=5000)
    assert outcome.throughput == pytest.approx(repaired(12, 1.0, 0.2, 1), rel=0.02)


def test_the_plan_counts_what_it_should() -> None:
    cost = Cost("engine", step=0.02, create=0.4, worker=100e6, session=1e6, places=32)
    need = plan(cost, Front(0.001, 60e6, 50e3), Agents(1000, think=5.0, steps=20), load=0.5)
    rate = 1000 / 5.021
    assert need.cores == math.ceil(rate * 0.04 / 0.5) == 16
    assert need.fronts == math.ceil(rate * 1.1 * 0.001 / 0.5) == 1
    assert need.workers == 32
    assert need.memory == pytest.approx(32 * 100e6 + 1000 * 1.05e6 + 60e6)


@pytest.mark.parametrize("sessions", [1000, 10_000])
@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_what_is_planned_is_enough(cost: Cost, sessions: int) -> None:
    agents = Agents(sessions, think=5.0, steps=30)
    need = plan(cost, FRONT, agents)
    outcome = simulate(cost, FRONT, agents, need)
    assert outcome.throughput > 0.92 * outcome.ideal
    assert outcome.busy < 0.75
    half = Need(max(1, need.fronts // 2), max(1, need.workers // 2), max(1, need.cores // 2), need.memory)
    if need.cores >= 4:
        assert simulate(cost, FRONT, agents, half).throughput < 0.93 * outcome.throughput, "half of it is not"
