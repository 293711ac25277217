"""Games of our own: winnable, varied, and the same everywhere."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from alfworld_kit import MAIN, SCRIPT, AdapterWorker, generate

from env_servers.alfworld import game

pytestmark = pytest.mark.engine


def test_generated_games_of_all_types_are_won(worker: AdapterWorker) -> None:
    for number in range(12):
        task_id = f"generated/{number}"
        gold = worker.gold(task_id)
        shown = worker.play(task_id, gold, {"admissible_actions": True})
        assert [reply[1] for reply in shown] == [0.0] * len(gold) + [1.0], task_id
        for command, before in zip(gold, shown, strict=False):
            assert command in before[3]


def test_games_depend_on_seed_and_number_alone(alfworld_python: Path) -> None:
    made = generate(alfworld_python, "0 train", 300, "0")
    assert made == generate(alfworld_python, "0 train", 300, "1")
    assert generate(alfworld_python, "0 train", 3, "7") == made[:3]
    # What a number stands for may not change within a version of the generator.
    assert made[0][:3] == [
        "pick_and_place_simple-Pencil-None-SideTable-390",
        "trial_G000000",
        "put some pencil on sidetable",
    ]
    others = generate(alfworld_python, "1 train", 300, "0")
    assert not {one[3] for one in made} & {one[3] for one in others}
    assert len({one[3] for one in made}) == 300
    assert Counter(game.category_of(one[0]) for one in made) == dict.fromkeys(game.TASK_TYPES, 50)
    assert len({one[0] for one in made}) > 150


def test_generated_games_are_files_that_can_be_imported(alfworld_python: Path, tmp_path: Path) -> None:
    from env_servers.alfworld import data, store

    for folder, trial, _, _, content in generate(alfworld_python, "0 train", 6, "0"):
        home = tmp_path / "tree" / "valid_seen" / folder / trial
        home.mkdir(parents=True)
        (home / "game.tw-pddl").write_text(json.dumps(content))
    assert data.import_tree(tmp_path / "tree", tmp_path / "games.sqlite") == {"valid_seen": 6}
    assert store.Store(tmp_path / "games.sqlite").counts() == {"valid_seen": 6}


def test_another_seed_has_a_split_of_its_own(alfworld_python: Path, tmp_path: Path) -> None:
    settings = {"generator_seed": 7, "generated_games": 12, "data": str(tmp_path / "none")}
    with AdapterWorker(alfworld_python, **settings) as worker:
        assert worker.call("hello")["splits"] == ["generated-7", "generated_test-7"]
        assert len(worker.call("tasks", split="generated-7")) == 12
        gold = worker.gold("generated-7/1")
        assert worker.play("generated-7/1", gold)[-1][1] == 1.0


@pytest.mark.soak
def test_the_planner_of_the_stock_engine_agrees(alfworld_python: Path) -> None:
    """Small rooms only: in a kitchen its search takes half a minute."""
    script = (
        SCRIPT.replace("print(", "ignored = (")
        + """
from textworld import EnvInfos
from textworld.envs import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
env = AlfredDemangler(PddlEnv(EnvInfos(won=True, policy_commands=True)), shuffle=False)
env.load(made[1].to_file())
print(json.dumps([env.reset()["policy_commands"], list(made[1].walkthrough)]))
"""
    )
    command = [alfworld_python, "-c", script, str(MAIN.parent), "0 train", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    planned, ours = json.loads(done.stdout)
    assert planned and len(planned) <= len(ours)
