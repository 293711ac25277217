"""Games are played as the untouched engine plays them, and as the published rules say."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from alfworld_kit import AdapterFault, AdapterWorker

pytestmark = pytest.mark.engine

# A bedroom, a bathroom and a kitchen; with each style once.
COMPARED = [("valid_unseen/3", "move"), ("valid_unseen/25", "put"), ("generated/2", "move"), ("generated/3", "put")]


def commands_for(worker: AdapterWorker, task_id: str, options: dict[str, Any]) -> list[str]:
    """Returns a wild walk: commands that the game accepts, with some nonsense between."""
    rng = random.Random(task_id)
    reply = worker.start("walk", task_id, {**options, "admissible_actions": True})
    commands: list[str] = []
    while len(commands) < 25 and not reply["terminated"]:
        accepted = reply["info"]["admissible_actions"]
        fresh = [command for command in accepted if not command.startswith("go to")]
        commands.append(rng.choice([rng.choice(accepted), rng.choice(fresh), rng.choice(fresh), "dance", "Look"]))
        reply = worker.step("walk", commands[-1])
    worker.end("walk")
    return commands


@pytest.mark.slow
def test_output_equals_the_stock_engines(alfworld_python: Path, official: AdapterWorker, official_games: Path) -> None:
    with AdapterWorker(alfworld_python, "stock", data=str(official_games)) as stock:
        for task_id, style in COMPARED:
            options = {"command_style": style}
            commands = commands_for(official, task_id, options) + official.gold(task_id, options)
            ours = official.play(task_id, commands, {**options, "admissible_actions": True})
            theirs = stock.play(task_id, commands, options)
            # The last list of commands is not offered: the game is over.
            assert ours[-1][:3] == theirs[-1][:3]
            assert digest(ours[:-1]) == digest(theirs[:-1]), f"{task_id} differs"
            assert len(ours) > 20 or ours[-1][2]


def digest(shown: list[Any]) -> str:
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def test_a_walkthrough_of_each_type_wins(official: AdapterWorker) -> None:
    first: dict[str, str] = {}
    for task_id, _, category in official.call("tasks", split="valid_unseen"):
        first.setdefault(category, task_id)
    assert len(first) == 6
    for task_id in first.values():
        won(official, task_id, {})


@pytest.mark.slow
def test_every_sixteenth_walkthrough_of_valid_unseen_wins(official: AdapterWorker) -> None:
    """All of them: `cope check alfworld --split valid_unseen --sample 0`."""
    for number in range(0, 134, 16):
        won(official, f"valid_unseen/{number}", {"command_style": ("move", "put")[number % 32 // 16]})


def won(worker: AdapterWorker, task_id: str, options: dict[str, Any]) -> None:
    shown = worker.play(task_id, worker.gold(task_id, options), options)
    assert [reply[1] for reply in shown] == [0.0] * (len(shown) - 1) + [1.0], task_id
    assert shown[-1][2]


def test_the_first_observation_holds_room_and_task(official: AdapterWorker) -> None:
    reply = official.start("s", "valid_unseen/3")
    banner, room, task = reply["text"].split("\n\n")
    assert banner == "-= Welcome to TextWorld, ALFRED! =-"
    assert room.startswith("You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 2,")
    assert task == "Your task is to: examine the book with the desklamp."
    assert reply["info"] == {
        "raw_score": 0,
        "score": 0.0,
        "success": False,
        "action_valid": True,
        "game": "look_at_obj_in_light-Book-None-DeskLamp-308/trial_T20190908_020029_636862",
        "task_description": "examine the book with the desklamp",
        "walkthrough_length": 4,
    }
    without = official.start("t", "valid_unseen/3", {"banner": False})
    assert without["text"] == f"{room}\n\n{task}"
    official.end("s")
    official.end("t")


def test_the_old_command_style(official: AdapterWorker) -> None:
    options = {"command_style": "put", "admissible_actions": True}
    gold = official.gold("valid_unseen/40", options)
    [put] = [command for command in gold if command.startswith("put ")]
    assert " in/on " in put
    shown = official.play("valid_unseen/40", gold, options)
    assert shown[-1][0].startswith("You put the ")
    assert put in shown[-2][3]
    assert "put (object) in/on (receptacle):" in official.play("valid_unseen/40", ["help"], options)[1][0]


def test_a_won_game_stays_won(official: AdapterWorker) -> None:
    """In the engine, walking away from the lamp un-wins the game."""
    gold = official.gold("valid_unseen/3")
    official.start("s", "valid_unseen/3")
    replies = [official.step("s", command) for command in gold]
    assert replies[-1]["terminated"] and replies[-1]["info"]["success"]
    with pytest.raises(AdapterFault, match="episode_over"):
        official.step("s", "go to bed 1")
    official.end("s")


@pytest.mark.parametrize(
    "action",
    [
        "dance",
        "LOOK",
        "Go to bed 1",
        "",
        " ",
        "\n",
        "go to bed 99",
        "look\nlook",
        "🙂",
        "go  to bed 1",
        "x" * 1_000_000,
    ],
)
def test_a_command_that_the_game_does_not_know_changes_nothing(official: AdapterWorker, action: str) -> None:
    before = official.start("s", "valid_unseen/3", {"admissible_actions": True})
    reply = official.step("s", action)
    assert reply["text"] == "Nothing happens."
    assert not reply["info"]["action_valid"]
    assert reply["info"]["admissible_actions"] == before["info"]["admissible_actions"]
    assert (reply["reward"], reply["terminated"], reply["truncated"]) == (0.0, False, False)
    official.end("s")


def test_blanks_around_a_command_do_not_matter(official: AdapterWorker) -> None:
    official.start("s", "valid_unseen/3")
    assert official.step("s", "  go to bed 1\n")["text"].startswith("You arrive at bed 1.")
    official.end("s")


@pytest.mark.parametrize("action", [None, 3, ["look"], {"action": "look"}])
def test_an_action_is_a_text(official: AdapterWorker, action: Any) -> None:
    official.start("s", "valid_unseen/3")
    with pytest.raises(AdapterFault, match="bad_action: An action is a text such as 'go to desk 1'"):
        official.step("s", action)
    assert official.step("s", "look")["info"]["action_valid"]
    official.end("s")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"banners": False}, "no option 'banners'; options are: admissible_actions, banner, command_style"),
        ({"banner": "no"}, "banner is true or false"),
        ({"admissible_actions": 1}, "admissible_actions is true or false"),
        ({"command_style": "PUT"}, "command_style is 'move' or 'put'"),
        ({"command_style": ["put"]}, "command_style is 'move' or 'put'"),
    ],
)
def test_bad_options_are_named(official: AdapterWorker, options: dict[str, Any], says: str) -> None:
    with pytest.raises(AdapterFault, match="bad_option") as caught:
        official.start("s", "valid_unseen/3", options)
    assert says in caught.value.detail


@pytest.mark.parametrize("settings", [{"generated_games": 0}, {"games": "here"}])
def test_bad_settings_are_named(alfworld_python: Path, settings: dict[str, Any]) -> None:
    with AdapterWorker(alfworld_python, **settings) as worker, pytest.raises(AdapterFault, match="bad_option"):
        worker.call("hello")


def test_metadata_names_versions_and_data(official: AdapterWorker, worker: AdapterWorker) -> None:
    described = official.call("metadata")
    assert described["versions"]["alfworld"] == "0.4.2"
    assert described["versions"]["textworld"] == "1.7.0"
    assert len(described["data_digest"]) == 64
    assert described["data_digest"] != worker.call("metadata")["data_digest"]
    assert official.call("hello")["facts"]["python_requires"] == ">=3.9,<3.13"
