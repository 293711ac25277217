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


def variants(scenario: str, outcomes: list[list[bool | None]], size: int = 3) -> list[Trajectory]:
    """Episodes of the variants of a scenario; inner lists are the episodes of a variant."""
    made = [one for n, row in enumerate(outcomes, 1) for one in played(f"{scenario}_{n}", row)]
    for one in made:
        if one.error is None:
            one.extra |= {"scenario": scenario, "scenario_tasks": size}
    return made


def test_a_scenario_is_completed_by_all_of_its_variants() -> None:
    solved = variants("a", [[True]] * 3)
    one_missed = variants("b", [[True], [True], [False]])
    metrics = results.summarise(solved + one_missed, 6, {})["metrics"]
    assert metrics["success"]["value"] == pytest.approx(5 / 6)
    assert metrics["scenario_goal_completion"] == pytest.approx(
        {"value": 0.5, "low": 0.0, "high": 1.0, "tasks": 2, "method": "bootstrap"}
    )


def test_scenarios_of_several_episodes_and_those_that_are_not_whole() -> None:
    thirds = variants("a", [[True, True], [True, False], [True, False]])
    lost = variants("b", [[True], [True], [None]])
    partly_planned = variants("c", [[True], [True]])
    result = results.summarise(thirds + lost + partly_planned, 11, {})
    completion = result["metrics"]["scenario_goal_completion"]
    assert (completion["value"], completion["tasks"]) == (0.25, 1)  # 1 · 1/2 · 1/2, of the first scenario only
    assert result["categories"]["a"]["scenario_goal_completion"]["value"] == 0.25
    assert "scenario_goal_completion" not in result["categories"]["b"]
    nothing_whole = results.summarise(partly_planned, 2, {})["metrics"]
    assert "scenario_goal_completion" not in nothing_whole and nothing_whole["success"]["value"] == 1.0


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
