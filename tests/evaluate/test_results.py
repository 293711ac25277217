"""Numbers of a result and drift flags, by hand."""

from __future__ import annotations

import pytest
from evaluate_runs import episode

from cope_gym.evaluate import results
from cope_gym.evaluate.drift import turn_flags
from cope_gym.trajectory import Trajectory


def played(task: str, outcomes: list[bool | None]) -> list[Trajectory]:
    """Episodes of one task; `None` is an infrastructure fault."""
    made: list[Trajectory] = []
    for sample, outcome in enumerate(outcomes):
        one = episode(1, bool(outcome))
        one.task_id, one.sample, one.category = task, sample, task[0]
        one.error = {"type": "worker_failed", "detail": "Died."} if outcome is None else None
        made.append(one)
    return made


def test_metrics_by_hand() -> None:
    episodes = played("a1", [True, True]) + played("a2", [True, False]) + played("b1", [False, None])
    result = results.summarise(episodes, 6, {})
    assert result["complete"] and result["episodes"] == 5 and result["tasks_played"] == 3
    metrics = result["metrics"]
    assert metrics["success"]["value"] == pytest.approx((1 + 0.5 + 0) / 3)
    # b1 has one usable episode and cannot speak about k = 2.
    assert (metrics["pass@2"]["value"], metrics["pass@2"]["tasks"]) == (1.0, 2)
    assert (metrics["pass^2"]["value"], metrics["pass^2"]["tasks"]) == (0.5, 2)
    assert metrics["score"]["value"] == pytest.approx((1 + 0.75 + 0.5) / 3)
    assert result["categories"]["a"]["success"]["value"] == 0.75
    assert result["categories"]["b"]["episodes"] == 1
    assert result["errors"] == [{"task_id": "b1", "sample": 1, "type": "worker_failed", "detail": "Died."}]
    assert result["success_bounds"] == pytest.approx([0.5, (1 + 0.5 + 0.5) / 3])


def test_task_lost_entirely_is_in_no_number_but_in_the_bounds() -> None:
    result = results.summarise(played("a1", [True]) + played("b1", [None]), 2, {})
    assert result["metrics"]["success"]["value"] == 1.0 and result["metrics"]["success"]["tasks"] == 1
    assert result["success_bounds"] == [0.5, 1.0]


def test_nothing_but_faults_has_no_metric() -> None:
    result = results.summarise(played("a1", [None]), 1, {})
    assert result["metrics"] == {} and result["categories"] == {} and result["success_bounds"] == [0.0, 1.0]


def test_missing_episodes_make_a_result_partial() -> None:
    assert not results.summarise(played("a1", [True]), 2, {})["complete"]


def written(*texts: str, action: str = "", after: str = "Nothing happens.") -> Trajectory:
    """An episode with these turns; each action is "" or what is given."""
    one = episode(0, False, turns=len(texts))
    for turn, text in zip(one.turns, texts, strict=True):
        one.messages[turn.message]["content"] = text
        one.messages[turn.message + 1]["content"] = after
        turn.action, turn.action_span = action, None
    return one


def test_drift_flags() -> None:
    assert turn_flags(written("just talk")) == [["no_action"]]
    assert turn_flags(written("<tool_call> go")) == [["no_action", "malformed"]]
    assert turn_flags(written("Action: go\nAction: wait", action="go")) == [["several"]]
    assert turn_flags(written("<action>go</action><action>wait</action>", action="go")) == [["several"]]
    assert turn_flags(written("Thought: the action: go is best.\nAction: go", action="go")) == [[]]
    cut = written("Action: go", action="go")
    cut.turns[0].truncated = True
    assert turn_flags(cut) == [["cut"]]


def test_loop_is_the_same_action_with_the_same_effect() -> None:
    looping = written(*["Action: go"] * 4, action="go")
    assert turn_flags(looping) == [[], [], ["loop"], ["loop"]]
    looping.messages[looping.turns[1].message + 1]["content"] = "A door."
    assert turn_flags(looping) == [[], [], [], []]
