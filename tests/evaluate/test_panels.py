"""Panels: sealed, disjoint across splits, and refused once they were touched."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from cope_gym.errors import InputError
from cope_gym.evaluate import Panel, panels


@pytest.mark.parametrize("name", panels.names())
def test_shipped_panel_holds_what_its_digest_says(name: str) -> None:
    panel = panels.load(name)
    assert panel.digest == panel.computed_digest()
    assert name == panel.name and name.startswith(panel.env + "_")
    assert not panel.observations or panel.observations.keys() == set(panel.task_ids)


def test_shipped_panels_of_different_splits_share_no_task() -> None:
    # Panels over all tasks exist to follow a published index (`all`) or a published protocol (τ²'s `base`).
    shipped = [panel for panel in map(panels.load, panels.names()) if panel.split not in ("all", "base")]
    for a, b in itertools.combinations(shipped, 2):
        if a.env == b.env and a.split != b.split:
            assert not set(a.task_ids) & set(b.task_ids), f"{a.name} and {b.name}"


def test_quickstart_panel_is_the_published_one() -> None:
    # A changed panel is another panel: give it another name.
    assert panels.load("sciworld_quickstart").digest.startswith("8be231a4b89dd6bb")


def example() -> Panel:
    seen = {"a/1": panels.observation_digest("You see a."), "b/1": panels.observation_digest("You see b.")}
    return Panel("walk", "walk_x", "test", ("a/1", "b/1"), {"easy": True}, "Words.", seen).sealed()


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "walk_x.json"
    path.write_text(example().to_json())
    assert panels.load(str(path)) == example()


def test_digest_covers_what_is_played_and_nothing_else() -> None:
    digest = example().digest
    data = json.loads(example().to_json())
    assert Panel(**{**data, "description": "Other."}).computed_digest() == digest
    for change in (
        {"env": "run"},
        {"split": "dev"},
        {"options": {}},
        {"task_ids": ["b/1", "a/1"]},
        {"observations": {"a/1": "0" * 16}},
    ):
        assert Panel(**{**data, **change}).computed_digest() != digest, change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"options": {"easy": False}}, "was changed after it was made"),
        ({"task_ids": ["a/1", "a/1"]}, "names a task twice"),
        ({"task_ids": []}, "is empty"),
        ({"colour": "red"}, "is not a panel file"),
        ({"task_ids": None}, "is not a panel file"),
    ],
)
def test_touched_panels_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        panels.parse(json.dumps(json.loads(example().to_json()) | change), "x.json")


def test_unknown_panel_names_near_ones() -> None:
    with pytest.raises(InputError, match="there are sciworld_quickstart"):
        panels.load("sciworld_quikstart")
    with pytest.raises(InputError, match="no panel file"):
        panels.load("nowhere/x.json")


def test_spread_is_even_and_without_chance() -> None:
    tasks = [(f"a/{i}", "a") for i in range(10)] + [("b/0", "b"), ("b/1", "b")]
    assert panels.spread(tasks, 3) == ("a/0", "a/3", "a/6", "b/0", "b/1")


def test_head_is_a_panel_of_its_own() -> None:
    head = example().head(1)
    assert head.task_ids == ("a/1",) and head.digest != example().digest and head.observations.keys() == {"a/1"}
    assert head.digest == head.computed_digest()
    assert example().head(2) == example()


def test_verify_finds_missing_tasks_and_other_observations() -> None:
    panel = example()
    texts = {"a/1": "You see a.", "b/1": "You see b."}
    assert panels.verify(panel, ["a/1", "b/1", "c/1"], texts.__getitem__) == []
    assert panels.verify(panel, ["b/1"]) == ["Task a/1 is not in split test of this server."]
    problems = panels.verify(panel, ["a/1", "b/1"], lambda task: "You see a.")
    assert len(problems) == 1 and "b/1" in problems[0]
