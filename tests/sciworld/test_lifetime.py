"""Processes and memory: nothing stays behind, nothing grows, a dead JVM costs its sessions only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker, assert_flat, gone, kill, processes, rss_mb

from env_servers.sciworld import tasks

pytestmark = pytest.mark.engine


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("isolation", ["shared", "process"])
def test_a_killed_worker_leaves_no_java(sciworld_python: Path, isolation: str) -> None:
    with AdapterWorker(sciworld_python, isolation=isolation) as worker:
        worker.start("s", "boil/0")
        jvms = worker.jvms()
        assert len(jvms) == (1 if isolation == "shared" else 2)
        kill(worker.process.pid)
        assert gone(jvms)


def test_a_worker_killed_in_mid_step_leaves_no_java(sciworld_python: Path) -> None:
    with AdapterWorker(sciworld_python) as worker:
        worker.start("s", "boil/0")
        jvms = worker.jvms()
        worker.send("gold", task_id="inclined-plane-friction-unnamed-surfaces/0", options={})
        kill(worker.process.pid)
        assert gone(jvms)


def test_an_orderly_end_leaves_no_java(sciworld_python: Path) -> None:
    with AdapterWorker(sciworld_python) as worker:
        worker.start("s", "boil/0")
        jvms = worker.jvms()
    assert gone(jvms)
    assert not {pid for pid, _, _ in processes()} & {worker.process.pid}


@pytest.mark.parametrize("ask", ["start", "step"])
def test_a_dead_jvm_ends_its_worker(sciworld_python: Path, ask: str) -> None:
    """Else every session in it would be a suspect that has to try its step again alone, one after the other."""
    with AdapterWorker(sciworld_python) as worker:
        worker.start("s", "boil/0")
        [jvm] = worker.jvms()
        kill(jvm)
        with pytest.raises(EOFError):
            worker.start("t", "boil/0") if ask == "start" else worker.step("s", "look around")
        assert worker.process.wait(10)


def test_a_session_that_outgrows_the_heap_ends_the_worker(sciworld_python: Path) -> None:
    """The JVM ends rather than limp on with an error as the observation."""
    with AdapterWorker(sciworld_python, heap_mb=64) as worker:
        with pytest.raises(EOFError):
            for number in range(200):
                worker.start(f"s{number}", f"boil/{number % 30}")
        assert worker.process.wait(10)


def test_worlds_that_are_closed_leave_the_heap_at_once(sciworld_python: Path) -> None:
    """They stayed until Python looked for cycles, which was too late with 29 sessions of a model that wanders."""
    with AdapterWorker(sciworld_python, heap_mb=160) as worker:
        for number in range(40):
            worker.start("s", f"find-plant/{number}", {"simplifications": "easy"})
            for _ in range(3):
                worker.step("s", "look around")
            worker.end("s")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_200_resets_do_not_grow(sciworld_python: Path, temporary: Path) -> None:
    ids = [f"{name}/{variation}" for variation in range(10) for name in tasks.VARIATIONS]
    with AdapterWorker(sciworld_python) as worker:

        def play(number: int) -> None:
            worker.start("s", ids[number % len(ids)], {"simplifications": "easy" if number % 2 else ""})
            worker.step("s", "look around")
            worker.end("s")

        assert_flat(worker, temporary, play)


@pytest.mark.slow
def test_a_full_worker_starts_sessions_as_cheaply_as_an_empty_one(sciworld_python: Path) -> None:
    """With 10 MB of heap a session, the JVM of a full worker only collected garbage, for minutes a step."""
    with AdapterWorker(sciworld_python) as worker:

        def fill(numbers: range) -> None:
            for number in numbers:
                worker.start(f"s{number}", f"lifespan-longest-lived/{number}", {"simplifications": "easy"})

        def replace() -> float:
            [jvm] = worker.jvms()
            before = processor_seconds(jvm)
            for number in range(24):
                worker.end(f"s{number % 4}")
                worker.start(f"s{number % 4}", f"find-animal/{number}", {"simplifications": "easy"})
                worker.step(f"s{number % 4}", "look around")
            return processor_seconds(jvm) - before

        fill(range(4))
        replace()  # what is compiled meanwhile is not measured
        empty = replace()
        fill(range(4, worker.call("hello")["facts"]["sessions_per_worker"]))
        full = replace()
    assert full < 2 * empty, (empty, full)


@pytest.mark.soak
def test_64_sessions_fit_in_two_jvms(sciworld_python: Path) -> None:
    ids = [f"{name}/{variation}" for variation in range(3) for name in tasks.VARIATIONS]
    with AdapterWorker(sciworld_python) as first, AdapterWorker(sciworld_python) as second:
        for number in range(64):
            worker = (first, second)[number % 2]
            worker.start(f"s{number}", ids[number], {"simplifications": "easy"})
        for turn in range(3):
            for number in range(64):
                (first, second)[number % 2].step(f"s{number}", ("look around", "wait1", "inventory")[turn])
        used = sum(rss_mb(pid) for worker in (first, second) for pid in (worker.process.pid, *worker.jvms()))
    assert used < 2048
