"""Episodes, options, ids and bad input, on the adapter itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from homes import at_home
from mind2web_kit import PAGES, store_of, task_row

from cope_gym.trajectory import protected
from env_servers.adapter import AdapterError
from env_servers.mind2web import store
from env_servers.mind2web.adapter import Mind2WebAdapter, data_file
from env_servers.mind2web.official import SPLITS, RowError, read
from env_servers.mind2web.tasks import Tasks

STEPS = [
    (PAGES["shop"], ["33"], "CLICK", ""),
    (PAGES["frames"], ["6"], "TYPE", "4111"),
    (PAGES["roles"], ["8"], "CLICK", ""),
]
GOLD = ["CLICK [e7]", "TYPE [e1] [4111]", "CLICK [e5]"]
DIGEST = "aaec701ddc6327a7ffe419fc0a902ad06b86e8ecc8c1e765d836a3c8f0f5164e"
ROWS = {
    "train": [task_row("aaa-1", *STEPS), task_row("aaa-2", *STEPS[:1])],
    "test_task": [
        task_row("bbb-1", (PAGES["shop"], ["43"], "CLICK", ""), *STEPS),  # a paragraph: nothing marks it as usable
        task_row("bbb-2", (PAGES["shop"], [], "CLICK", "")),  # the data set lost the element
    ],
}


@pytest.fixture(scope="module")
def adapter(home: Path) -> Any:
    pairs = [(split, read(row)) for split, rows in ROWS.items() for row in rows]
    with at_home(home):
        store.write(data_file("handmade"), pairs)
        running = Mind2WebAdapter({"data": "handmade"})
    yield running
    running.close()


def test_official_splits_come_first_once_they_are_there(adapter: Mind2WebAdapter, home: Path) -> None:
    assert adapter.splits() == ["train", "test_task", "sample", "sample_test"]
    without = Mind2WebAdapter()
    assert without.splits() == ["sample", "sample_test"]
    assert without.metadata()["engine_flags"]["data"] == "sample"
    assert without.metadata()["data_digest"] != adapter.metadata()["data_digest"]


def test_splits_without_training_data_do_not_become_the_training_split() -> None:
    official = store_of(task_row("b", *STEPS), split="test_website")
    assert Tasks([official, store_of(task_row("s", *STEPS))]).splits() == ["sample", "test_website"]


def test_ids_are_stable_and_have_short_forms(adapter: Mind2WebAdapter) -> None:
    assert [task.id for task in adapter.tasks("train")] == ["aaa-1", "aaa-2"]
    assert adapter.tasks("train")[0].category == "Testing/Pages"
    assert adapter.canonical_id("train/1") == adapter.canonical_id("train/aaa-2") == "aaa-2"
    assert adapter.canonical_id("train/aaa-9") is None and adapter.canonical_id("aaa-1") is None
    with pytest.raises(AdapterError, match="has 2 tasks") as caught:
        adapter.canonical_id("train/2")
    assert caught.value.type == "unknown_task"


def test_the_sample_is_the_same_everywhere(adapter: Mind2WebAdapter) -> None:
    """A change of the sample or of how pages are read changes published digests: raise `sample.VERSION`."""
    assert [len(adapter.tasks(split)) for split in ("sample", "sample_test")] == [60, 20]
    categories = {task.category for task in adapter.tasks("sample_test")}
    assert len(categories) == 6 and len({task.category for task in adapter.tasks("sample")}) == 5
    assert Mind2WebAdapter().metadata()["data_digest"] == DIGEST


def test_strict_ends_at_the_first_error(adapter: Mind2WebAdapter) -> None:
    episode = adapter.start("aaa-1", None, {})
    assert episode.first.info["score"] == 0.0 and not episode.first.terminated
    right = episode.step(GOLD[0])
    assert (right.reward, right.terminated, right.info["raw_score"]) == (1.0, False, 1)
    wrong = episode.step("TYPE [e1] [4112]")
    assert (wrong.reward, wrong.terminated, wrong.info["success"]) == (0.0, True, False)
    assert wrong.info["score"] == pytest.approx(1 / 3)
    assert wrong.info["element_correct"] and wrong.info["op_correct"] and not wrong.info["value_correct"]
    assert wrong.info["op_f1"] == 0.5 and not wrong.info["step_success"]
    assert wrong.info["step_metrics"] == pytest.approx(
        {"element_accuracy": 2 / 3, "operation_f1": 0.5, "step_success": 1 / 3, "task_success": 0.0}
    )
    with pytest.raises(AdapterError, match="has ended"):
        episode.step(GOLD[1])


def test_teacher_forcing_goes_on_with_the_recorded_pages(adapter: Mind2WebAdapter) -> None:
    episode = adapter.start("aaa-1", None, {"mode": "teacher_forced"})
    rewards = [episode.step(action).reward for action in ("CLICK [e1]", GOLD[1])]
    last = episode.step(GOLD[2])
    assert [*rewards, last.reward] == [0.0, 1.0, 1.0] and last.terminated and not last.info["success"]
    assert last.info["step_metrics"] == pytest.approx(
        {"element_accuracy": 2 / 3, "operation_f1": 1.0, "step_success": 2 / 3, "task_success": 0.0}
    )


@pytest.mark.parametrize("mode", ["strict", "teacher_forced"])
def test_the_recorded_actions_solve_the_task(adapter: Mind2WebAdapter, mode: str) -> None:
    assert adapter.gold("aaa-1", {"mode": mode}) == GOLD
    episode = adapter.start("aaa-1", None, {"mode": mode})
    results = [episode.step(action) for action in GOLD]
    assert [result.reward for result in results] == [1.0, 1.0, 1.0]
    assert results[-1].terminated and results[-1].info["success"] and results[-1].info["score"] == 1.0
    assert set(results[-1].info["step_metrics"].values()) == {1.0}


def test_steps_that_cannot_be_done_right_are_failures_and_named(adapter: Mind2WebAdapter) -> None:
    assert adapter.gold("bbb-1", {}) is None and adapter.gold("bbb-2", {"gold_included": True}) is None
    for task in ("bbb-1", "bbb-2"):
        episode = adapter.start(task, None, {"mode": "teacher_forced"})
        result = episode.step("CLICK [e1]")
        assert result.reward == 0.0 and not result.info["step_reachable"]
    solved = adapter.gold("bbb-1", {"gold_included": True})
    assert solved is not None and solved[0] == "CLICK [e9]"
    facts = adapter.metadata()["engine_flags"]["splits"]["test_task"]
    assert (facts["steps"], facts["unreachable"], facts["without_element"]) == (5, 2, 1)


def test_what_a_limit_hides_cannot_be_used(adapter: Mind2WebAdapter) -> None:
    assert adapter.gold("aaa-1", {"max_chars": 60}) is None
    episode = adapter.start("aaa-1", None, {"max_chars": 60})
    assert "elements are not shown" in episode.first.text
    result = episode.step(GOLD[0])
    assert result.info["invalid_action"] == "There is no e7 on this page." and not result.info["step_reachable"]


@pytest.mark.parametrize(
    "action",
    ["", "CLICK [e99]", "CLICK", "TYPE [e3]", "DRAG [e1]", "CLICK [e1]\nCLICK [e2]", "{", {"op": 1}, "x" * 60_000],
)
def test_bad_actions_are_wrong_steps_with_a_reason(adapter: Mind2WebAdapter, action: Any) -> None:
    result = adapter.start("aaa-1", None, {}).step(action)
    assert (result.reward, result.terminated, result.info["action_valid"]) == (0.0, True, False)
    assert result.info["invalid_action"] and result.text.startswith(result.info["invalid_action"])
    forced = adapter.start("aaa-1", None, {"mode": "teacher_forced"}).step(action)
    assert not forced.terminated and "Page:" in forced.text


@pytest.mark.parametrize("action", [None, 3, 1.5, True, ["CLICK [e1]"]])
def test_what_is_no_text_is_no_step(adapter: Mind2WebAdapter, action: Any) -> None:
    episode = adapter.start("aaa-1", None, {})
    with pytest.raises(AdapterError, match="An action is a text") as caught:
        episode.step(action)
    assert caught.value.type == "bad_action"
    assert episode.step(GOLD[0]).reward == 1.0


@pytest.mark.parametrize(
    "options",
    [{"mode": "Strict"}, {"mode": 1}, {"max_chars": -1}, {"max_chars": True}, {"max_chars": "9"}, {"max_chars": 1.0}]
    + [{flag: value} for flag in ("gold_history", "gold_included", "show_total_steps") for value in (1, "true", None)]
    + [{"source_file": "/etc/passwd"}, {"": 1}],
)
def test_bad_options(adapter: Mind2WebAdapter, options: dict[str, Any]) -> None:
    for call in (lambda: adapter.start("aaa-1", None, options), lambda: adapter.gold("aaa-1", options)):
        with pytest.raises(AdapterError) as caught:
            call()
        assert caught.value.type == "bad_option"


@pytest.mark.parametrize(
    "task", ["", "aaa-3", "../../etc/passwd", "train/aaa-1", "AAA-1", "a' OR 1=1 --", 3, None, True, "x" * 9999]
)
def test_unknown_tasks(adapter: Mind2WebAdapter, task: Any) -> None:
    with pytest.raises(AdapterError) as caught:
        adapter.start(task, None, {})
    assert caught.value.type == "unknown_task" and len(caught.value.detail) < 400


def test_near_names_and_how_to_get_the_official_tasks(adapter: Mind2WebAdapter) -> None:
    with pytest.raises(AdapterError, match="did you mean skyhop-3"):
        adapter.start("skyhop_3", None, {})
    with pytest.raises(AdapterError, match="cope data import mind2web") as caught:
        adapter.tasks("test_domain")
    assert caught.value.type == "unknown_split"
    with pytest.raises(AdapterError, match="here are: train"):
        adapter.tasks("validation")


@pytest.mark.parametrize("settings", [{"datas": "x"}, {"data": "absent"}, {"data": "../x"}, {"data": ""}, {"data": 3}])
def test_bad_settings(home: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(AdapterError) as caught:
        Mind2WebAdapter(settings)
    assert caught.value.type == "bad_option"


def test_a_file_of_another_format_is_refused(home: Path) -> None:
    path = data_file("old")
    store.write(path, [("train", read(ROWS["train"][0]))])
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(AdapterError, match="run `cope data import mind2web` again"):
        Mind2WebAdapter({"data": "old"})


def test_test_splits_are_protected_content() -> None:
    assert {split: protected("mind2web", split) for split in SPLITS} == {
        "train": False,
        "test_task": True,
        "test_website": True,
        "test_domain": True,
    }
    assert not protected("mind2web", "sample") and not protected("mind2web", "sample_test")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"annotation_id": "../x"}, "no id"),
        ({"annotation_id": None}, "no id"),
        ({"website": None}, "lacks a website"),
        ({"actions": None}, "no list"),
        ({"actions": ["x"]}, "no object"),
        ({"actions": [{"operation": {"op": "DRAG"}}]}, "operation 'DRAG'"),
        ({"actions": [{"operation": "{"}]}, "without operation"),
        ({"actions": [{"operation": {"op": "CLICK"}, "pos_candidates": [3]}]}, "candidate that is no object"),
    ],
)
def test_rows_that_are_no_tasks(change: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        read({**ROWS["train"][0], **change})
