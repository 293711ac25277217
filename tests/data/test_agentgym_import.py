"""AgentGym's layouts become our episodes and task lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cope_gym.data import agentgym
from cope_gym.errors import InputError
from cope_gym.evaluate import panels


def conversation(item: str, actions: list[str]) -> dict[str, Any]:
    """A row as AgentTraj-L has them: instruction, acknowledgement, then observations and turns."""
    turns: list[dict[str, Any]] = [
        {"from": "human", "loss": None, "value": "You are in a house. Write Thought and Action."},
        {"from": "gpt", "loss": False, "value": "OK. I'll follow your instructions."},
    ]
    for action in actions:
        turns.append({"from": "human", "loss": None, "value": f"Before {action}."})
        turns.append({"from": "gpt", "loss": True, "value": f"Thought: now {action}.\nAction: {action}"})
    return {"item_id": item, "conversations": turns}


def write(path: Path, rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_a_conversation_becomes_an_episode_in_our_layout(tmp_path: Path) -> None:
    path = write(tmp_path / "traj.json", [conversation("sciworld_31", ["open door", "go to hall"])])
    [episode] = agentgym.load(path).episodes
    assert (episode.env, episode.task_id, episode.split, episode.success) == ("sciworld", "melt/1", "train", True)
    assert [message["role"] for message in episode.messages] == ["system", *["user", "assistant"] * 2]
    assert "OK." not in json.dumps(episode.messages)
    assert [turn.action for turn in episode.turns] == ["open door", "go to hall"]
    for turn in episode.turns:
        assert turn.action_span is not None
        start, end = turn.action_span
        assert episode.messages[turn.message]["content"][start:end] == turn.action
    assert episode.extra["item_id"] == "sciworld_31" and episode.extra["success"] == "on trust"


def test_ids_are_ours_where_there_is_one() -> None:
    # Offsets of AgentGym's list: boil 0, melt 30, freeze 60; the last is identify-life-stages-2.
    named = {0: "boil/0", 30: "melt/0", 60: "freeze/0", 4638: panels.load("sciworld_agentgym").task_ids[-1]}
    assert {number: agentgym.task_id("sciworld", number) for number in named} == named
    assert agentgym.task_id("sciworld", 4639) is None
    assert agentgym.task_id("alfworld", 2420) == "agentgym/2420"
    assert agentgym.task_id("webshop", 6) == "webshop_6" and agentgym.task_id("babyai", 3) == "babyai_3"


def test_id_files_become_panels_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "a" / "sciworld_train.json", [{"item_id": f"sciworld_{n}"} for n in (0, 30, 30, 9999)])
    write(tmp_path / "b" / "alfworld_train.json", [{"item_id": "alfworld_7"}])
    found = agentgym.load(tmp_path)
    assert found.tasks == {"sciworld": ["boil/0", "melt/0"], "alfworld": ["agentgym/7"]}
    assert dict(found.skipped) == {"sciworld: listed twice": 1, "sciworld: no task of that number here": 1}
    panel = next(panel for panel in found.panels("agentgym_train", "train") if panel.env == "sciworld")
    assert panels.parse(panel.to_json(), "x") == panel and panel.name == "sciworld_agentgym_train"


def test_json_lines_and_turns_without_an_action(tmp_path: Path) -> None:
    silent = conversation("webshop_1", ["search[x]"])
    silent["conversations"][-1]["value"] = "I do not know."
    nothing = conversation("webshop_2", [])
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (silent, nothing)) + "\n")
    found = agentgym.load(path)
    [episode] = found.episodes
    assert episode.turns[0].action == "" and not episode.turns[0].valid and episode.turns[0].action_span is None
    assert dict(found.skipped) == {"webshop: no turn of the agent": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "not a list of rows"),
        ("[{}]", "row 0: neither a conversation nor a task id"),
        ('[{"item_id": "boil"}]', "row 0"),
        ('[{"item_id": "sciworld_1", "conversations": [{"from": "dog", "value": ""}]}]', "row 0"),
        ("[", "is not the JSON"),
        ("[]", "holds no rows of AgentGym"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=sentence):
        agentgym.load(tmp_path / "x.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no"):
        agentgym.load(tmp_path / "none.json")
