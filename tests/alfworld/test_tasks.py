"""Which games there are, under which ids."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from alfworld_kit import AdapterFault, AdapterWorker

import cope_gym
from env_servers.alfworld import agentgym, game

PANELS = Path(cope_gym.__file__).parent / "panels"


@pytest.mark.engine
def test_without_data_the_generated_games_are_the_training_split(worker: AdapterWorker) -> None:
    assert worker.call("hello")["splits"] == ["generated", "generated_test"]
    tasks = worker.call("tasks", split="generated")
    assert tasks[:2] == [
        ["generated/0", "generated", "pick_and_place_simple"],
        ["generated/1", "generated", "look_at_obj_in_light"],
    ]
    assert Counter(category for _, _, category in tasks) == dict.fromkeys(game.TASK_TYPES, 100)
    assert len(worker.call("tasks", split="generated_test")) == 120


@pytest.mark.engine
def test_a_missing_split_says_how_to_get_it(worker: AdapterWorker) -> None:
    for ask in ({"op": "tasks", "split": "valid_unseen"}, {"op": "start", "task_id": "valid_unseen/0"}):
        with pytest.raises(AdapterFault, match="unknown_split") as caught:
            if ask["op"] == "tasks":
                worker.call("tasks", split="valid_unseen")
            else:
                worker.start("s", "valid_unseen/0")
        assert "cope data import alfworld PATH" in caught.value.detail
        assert "the splits are generated, generated_test." in caught.value.detail


@pytest.mark.engine
def test_ids_by_number_and_by_name_mean_the_same_game(official: AdapterWorker) -> None:
    for number in (0, 77, 133):
        by_number = official.start("s", f"valid_unseen/{number}")
        name = f"valid_unseen/{by_number['info']['game']}"
        assert official.start("t", name) == by_number
    name = official.start("s", "generated_test/7")["info"]["game"]
    assert official.start("t", f"generated_test/{name}")["info"]["game"] == name
    official.end("s")
    official.end("t")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("task_id", "type", "says"),
    [
        (
            "valid_unseen/134",
            "unknown_task",
            "valid_unseen has 134 games: ids are valid_unseen/0 to valid_unseen/133.",
        ),
        ("valid_unseen/-1", "unknown_task", "an id is valid_unseen/NUMBER or valid_unseen/FOLDER/TRIAL."),
        ("valid_unseen/007", "unknown_task", "an id is"),
        ("valid_unseen/", "unknown_task", "an id is"),
        ("valid_unseen/99999999999999999999", "unknown_task", "an id is"),
        ("valid_unseen/../../../etc/passwd", "unknown_task", "has no game '../../../etc/passwd'"),
        (
            "valid_unseen/look_at_obj_in_light-Book-None-DeskLamp-309/t",
            "unknown_task",
            "Did you mean valid_unseen/look_",
        ),
        ("generated/600", "unknown_task", "generated has 600 games"),
        ("generated/pick_and_place_simple-Mug-None-Desk-390/trial_G000000", "unknown_task", "generated has no game"),
        ("generated/pick_and_place_simple-Mug-None-Desk-390/trial_G999999", "unknown_task", "generated has no game"),
        ("agentgym/103", "unknown_task", "AgentGym's game 103 is missing in ALFWorld's 0.4 data"),
        ("agentgym/2620", "unknown_task", "numbers its ALFWorld games 0 to 2619"),
        ("agentgym/x", "unknown_task", "numbers its ALFWorld games 0 to 2619"),
        ("agentgym/0", "unknown_split", "The games of train are not on this machine"),
        ("nothing/0", "unknown_split", "the splits are generated, generated_test, valid_unseen."),
        ("valid_unseen", "unknown_task", "an id is"),
        ("", "unknown_split", "ALFWorld has no split ''"),
        (3, "unknown_task", "A task id is a text such as 'valid_unseen/17'."),
        (None, "unknown_task", "A task id is a text"),
        ("x" * 1_000_000, "unknown_split", "ALFWorld has no split"),
    ],
)
def test_unknown_ids_are_named(official: AdapterWorker, task_id: object, type: str, says: str) -> None:
    with pytest.raises(AdapterFault) as caught:
        official.start("s", task_id)
    assert caught.value.type == type
    assert says in caught.value.detail
    assert len(caught.value.detail) < 600


@pytest.mark.parametrize(("part", "split", "missing"), [("test", "valid_train", 0), ("train", "train", 239)])
def test_agentgym_panels_are_its_ids(shared_data: Path, part: str, split: str, missing: int) -> None:
    theirs = json.loads((shared_data / "alfworld" / f"agentgym_mappings_{part}.json").read_text())
    panel = json.loads((PANELS / f"alfworld_agentgym_{part}.json").read_text())
    with tarfile.open(shared_data / "alfworld" / f"{split}.tar.xz") as archive:
        paths = [name.split("/") for name in archive.getnames() if name.endswith("/game.tw-pddl")]
    numbers = {tuple(path[2:4]): number for number, path in enumerate(sorted(paths))}
    wanted = [(one["item_id"], (one["task_type"], one["task_id"])) for one in theirs]
    assert panel["task_ids"] == [f"{split}/{numbers[name]}" for _, name in wanted if name in numbers]
    ids = agentgym.game_ids()
    assert len(ids) == agentgym.COUNT
    assert [one for one in (ids[number] for number, _ in wanted) if one] == panel["task_ids"]
    absent = [number for number, name in wanted if name not in numbers]
    assert absent == [number for number, _ in wanted if ids[number] is None]
    assert len(absent) == missing
    assert f"{len(panel['task_ids'])} of {len(theirs)}" in panel["description"]
    assert (str(absent)[1:-1] in panel["description"]) == bool(absent) or not absent
