"""The measurements measure, and what they measure holds: capacity, chaos, flat memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cope_gym.aio import AsyncClient
from env_servers import bench_env
from env_servers.bench.__main__ import app
from env_servers.bench.chaos import run
from env_servers.bench.load import Plan, drive
from env_servers.bench.serving import flags, serving
from env_servers.install import install

SLEEPER = "sleep=env_servers.bench.sleeper:SleepAdapter"
COUNTER = "counter=tests.service.adapters:CounterAdapter"


def test_capacity_table(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    arguments = ["service", "--sessions", "8,128", "--steps", "3", "--action", "0.2", "--output", str(numbers)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    few, many = json.loads(numbers.read_text())
    assert few["failures"] == many["failures"] == {}
    assert len(few["step"]) == 24 and len(many["step"]) == 384
    assert min(many["step"]) >= 0.2 and many["front"] > 10**7 < many["workers_rss"]
    # One after another they would take 77 s.
    assert many["seconds"] < 30


@pytest.mark.parametrize("flag", [[], ["--together"]])
def test_solutions_are_played(flag: list[str], tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    arguments = ["service", "--env", COUNTER, "--sessions", "6", "--output", str(numbers), *flag]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(numbers.read_text())
    assert row["failures"] == {} and len(row["create"]) == 6 and len(row["step"]) == 30
    assert len(row["cpu"]) == 2 and row["workers"] >= 1


@pytest.mark.engine
def test_one_process_is_measured_with_as_many_sessions_as_a_worker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that ScienceWorld's JVM, for one, is out of memory."""
    real = bench_env._run

    def run_with_two_places(entry: Any, adapter: str, text: str, *flags: str) -> str:
        told = json.loads(real(entry, adapter, text, *flags))
        return json.dumps({**told, "places": 2} if "--plan" in flags else told)

    install("webshop")
    monkeypatch.setattr(bench_env, "_run", run_with_two_places)
    rows = [(row.what, row.sessions, len(row.resets)) for row in bench_env.measure("webshop", [1, 3], 2)]
    assert rows == [("in process", 1, 1), ("over HTTP", 1, 1), ("over HTTP", 3, 3)]


@pytest.mark.engine
def test_episodes_in_turn_are_timed_while_the_benchmark_s_clock_stands_still() -> None:
    """AppWorld's own class stops the clock of its process, and closes a world when the next one opens."""
    install("appworld")
    rows = list(bench_env.measure("appworld", [2], 5, in_turn=True))
    assert [row.what for row in rows] == ["stock engine, in turn", "in process, in turn"]
    for row in rows:
        assert len(row.resets) == len(row.steps) == 2
        assert min(*row.resets, *row.steps) > 1e-3 and row.seconds == pytest.approx(sum(row.steps), rel=0.1)


@pytest.mark.slow
def test_chaos_loses_doubles_and_changes_nothing() -> None:
    result = run(COUNTER, episodes=60, kills=10, drop=0.1, steps=12, parallel=6, tasks=10)
    assert result.passed, result.sentence()
    assert result.kills >= 1 and result.dropped >= 10 and result.steps == 300


@pytest.mark.soak
@pytest.mark.parametrize("sessions", [512, 2048, 4096])
def test_the_async_client_holds_thousands_of_sessions(sessions: int) -> None:
    async def episode(client: AsyncClient) -> int:
        session = await client.create("sleep")
        for _ in range(5):
            await session.step("1.0")
        return session.reply.step_index

    async def play(url: str, token: str) -> list[int | BaseException]:
        async with AsyncClient(url, token) as client:
            return await asyncio.gather(*(episode(client) for _ in range(sessions)), return_exceptions=True)

    with serving([*flags(SLEEPER)[1], "--max-sessions", str(sessions)]) as served:
        ends = asyncio.run(play(served.url, served.token))
    print(f"{sessions} sessions through the asynchronous client, {ends.count(5)} whole")
    assert ends.count(5) >= 0.999 * sessions, [end for end in ends if end != 5][:3]


@pytest.mark.soak
def test_memory_stays_flat_over_two_thousand_episodes() -> None:
    name, arguments = flags(COUNTER)
    with serving([*arguments, "--max-sessions", "50", "--recycle-after", "100000"]) as served:

        def play(episodes: int) -> tuple[int, int]:
            for _ in range(episodes // 50):
                load = asyncio.run(drive(served.url, served.token, name, 50, [Plan(["say", "add 5"])]))
                assert not load.failures
            return served.memory()

        front, workers = play(500)
        front_after, workers_after = play(1500)
    assert front_after - front < 12 * 2**20
    assert workers_after - workers < 12 * 2**20
