"""The runner end to end on a toy environment: resumable, concurrent, honest about faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from evaluate_toy import Walk, Wanderer, evaluation, walk

from cope_gym import trajectory
from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate import PolicySpec, Prompt, Reply, conclude, evaluate, make, runner


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an evaluation that ran alone and undisturbed."""
    out = tmp_path_factory.mktemp("reference")
    evaluate(evaluation(concurrency=1), Wanderer(), walk, out)
    return files(out)


def test_result_holds_what_the_episodes_hold(reference: dict[str, bytes], tmp_path: Path) -> None:
    result = json.loads(reference["result.json"])
    (tmp_path / "t.jsonl").write_bytes(reference["trajectories.jsonl"])
    episodes = list(trajectory.read(tmp_path / "t.jsonl"))
    assert result["complete"] and result["planned"] == result["episodes"] == len(episodes) == 24
    solved = [sum(e.success for e in episodes if e.task_id == task) for task in result["panel"]["task_ids"]]
    assert 0 < sum(solved) < 24, "the toy must be neither trivial nor hopeless"
    assert result["metrics"]["success"]["value"] == pytest.approx(sum(solved) / 24)
    assert result["metrics"]["pass^4"]["value"] == pytest.approx(solved.count(4) / 6)
    assert result["metrics"]["pass@4"]["value"] == pytest.approx(1 - solved.count(0) / 6)
    assert result["categories"]["near"]["turns"]["value"] < result["categories"]["far"]["turns"]["value"]
    assert result["metrics"]["invalid_share"]["value"] > result["metrics"]["no_action_share"]["value"] > 0
    assert not result["errors"] and "success_bounds" not in result


def test_trajectories_hold_the_whole_conversation(reference: dict[str, bytes]) -> None:
    for line in reference["trajectories.jsonl"].decode().splitlines():
        episode = trajectory.Trajectory.from_json(line)
        assert [m["role"] for m in episode.messages] == ["system", "user"] + ["assistant", "user"] * len(episode.turns)
        assert episode.reward == pytest.approx(sum(turn.reward for turn in episode.turns))
        assert episode.terminated or episode.truncated
        for turn in episode.turns:
            text = episode.messages[turn.message]["content"]
            if turn.action_span is None:
                assert turn.action == "" and not turn.valid
            else:
                assert text[slice(*turn.action_span)] == turn.action
        assert episode.extra.get("reward_parts") == ({"arrived": 1.0} if episode.success else None)
        twice = [t.index for t in episode.turns if episode.messages[t.message]["content"].count("Action:") > 1]
        assert episode.extra.get("several_actions", []) == twice


@pytest.mark.parametrize("batch_size", [1, 5])
def test_concurrency_and_batching_change_nothing(reference: dict[str, bytes], tmp_path: Path, batch_size: int) -> None:
    policy = Wanderer(batch_size)
    evaluate(evaluation(concurrency=8), policy, walk, tmp_path)
    assert files(tmp_path) == reference
    if batch_size > 1:
        assert max(policy.batches) > 1 and max(policy.batches) <= batch_size
        assert policy.threads == {"policy"}


KILLED = """
import os
import signal
import sys
import threading
from pathlib import Path
from evaluate_toy import Wanderer, evaluation, walk
from cope_gym.evaluate import evaluate

left = int(sys.argv[2])
lock = threading.Lock()

class Killed(Wanderer):
    def reply(self, prompt):
        global left
        with lock:
            left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reply(prompt)

evaluate(evaluation(), Killed(), walk, Path(sys.argv[1]))
"""


def test_killed_at_random_points_and_continued_gives_the_same_files(
    reference: dict[str, bytes], tmp_path: Path
) -> None:
    """It is killed in some reply, not after some time: the points are the same on machines of every speed."""
    chance = Random(8)
    for replies in [*(chance.randrange(1, 30) for _ in range(5)), 0]:
        command = [sys.executable, "-c", KILLED, tmp_path, str(replies)]
        code = subprocess.run(command, cwd=Path(__file__).parent, timeout=120).returncode
        assert code == (-signal.SIGKILL if replies else 0)
        assert (tmp_path / "result.json").exists() == (not replies)
    assert files(tmp_path) == reference


def test_torn_last_line_is_cut_off(reference: dict[str, bytes], tmp_path: Path) -> None:
    lines = reference["trajectories.jsonl"].splitlines(keepends=True)
    (tmp_path / "settings.json").write_bytes(reference["settings.json"])
    (tmp_path / "trajectories.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][: len(lines[7]) // 2])
    played: list[str] = []
    evaluate(evaluation(), Wanderer(), walk, tmp_path, lambda episode, _done, _all: played.append(episode.task_id))
    assert len(played) == 24 - 7
    assert files(tmp_path) == reference


def test_finished_evaluation_plays_nothing_again(reference: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in reference.items():
        (tmp_path / name).write_bytes(content)

    def no_env() -> Walk:
        raise AssertionError("an environment was made")

    evaluate(evaluation(), Wanderer(), no_env, tmp_path)
    assert files(tmp_path) == reference


def test_other_settings_are_refused_in_the_same_folder(reference: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_bytes(reference["settings.json"])
    with pytest.raises(InputError, match=r"seed: 0 there, 1 now"):
        evaluate(evaluation(seed=1), Wanderer(), walk, tmp_path)
    with pytest.raises(InputError, match=r"versions\.scienceworld: null there, \"1\.2\.3\" now"):
        evaluate(evaluation(versions={"scienceworld": "1.2.3"}), Wanderer(), walk, tmp_path)


def test_a_fault_is_retried_and_leaves_no_trace(reference: dict[str, bytes], tmp_path: Path) -> None:
    faults = {"near/2": 2}
    evaluate(evaluation(attempts=3, concurrency=1), Wanderer(), lambda: Walk(faults), tmp_path)
    assert files(tmp_path) == reference


def test_tasks_without_a_solution_are_listed_apart_and_not_tried_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def solution(task: str, _options: object) -> list[str] | None:
        asked.append(task)
        return None if task.startswith("far/2") else ["go"] * 6

    def played() -> dict[str, Any]:
        gold = make("gold", PolicySpec("", "walk", solution))
        return evaluate(evaluation(samples=2), gold, walk, tmp_path)

    result = played()
    assert [(e["task_id"], e["sample"], e["type"]) for e in result["errors"]] == [
        ("far/2", 0, "no_gold"),
        ("far/2", 1, "no_gold"),
    ]
    assert result["complete"] and (result["planned"], result["episodes"], result["tasks_played"]) == (12, 10, 5)
    assert result["metrics"]["success"]["value"] == 1.0 and result["success_bounds"] == [pytest.approx(5 / 6), 1.0]
    before = list(asked)
    assert played() == result and asked == before


@pytest.mark.parametrize("tasks", [2, 40])
def test_no_solutions_at_all_are_the_policy_s_fault(tmp_path: Path, tasks: int) -> None:
    for _ in range(2):  # nor does the same command go on
        gold = make("gold", PolicySpec("", "walk", lambda *_: None))
        with pytest.raises(InputError, match=r"walk has no gold solution for .* choose another policy") as caught:
            evaluate(evaluation(tasks=tasks, samples=1), gold, walk, tmp_path)
        assert caught.value.type == "no_gold"
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) <= 10


def test_lasting_faults_are_listed_apart_and_mended_by_the_next_run(
    reference: dict[str, bytes], tmp_path: Path
) -> None:
    result = evaluate(evaluation(attempts=1), Wanderer(), lambda: Walk({"near/2": 10**6}), tmp_path)
    assert result["complete"] and result["episodes"] == 20 and "near/2" not in result["tasks"]
    assert [error["task_id"] for error in result["errors"]] == ["near/2"] * 4
    assert result["errors"][0]["type"] == "worker_failed"
    low, high = result["success_bounds"]
    assert high - low == pytest.approx(1 / 6)
    assert low < result["metrics"]["success"]["value"] < high
    evaluate(evaluation(), Wanderer(), walk, tmp_path)
    assert files(tmp_path) == reference


def test_nothing_but_faults_stops_early_and_keeps_what_there_is(tmp_path: Path) -> None:
    def broken() -> Walk:
        raise InfrastructureError("No server.", type="connection")

    with pytest.raises(runner.Interrupted, match="10 episodes in a row failed, last: No server"):
        evaluate(evaluation(), Wanderer(), broken, tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_unknown_task_stops_at_once_and_closes_environments(tmp_path: Path) -> None:
    made: list[Walk] = []

    def make() -> Walk:
        made.append(Walk())
        return made[-1]

    wrong = evaluation()
    object.__setattr__(wrong, "panel", type(wrong.panel)("walk", "x", "test", ("near/1", "boat/1")).sealed())
    with pytest.raises(InputError, match="no task boat/1"):
        evaluate(wrong, Wanderer(), make, tmp_path)
    assert made and all(env.closed for env in made)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_defect_of_the_policy_is_raised_not_scored(tmp_path: Path, batch_size: int) -> None:
    class Broken(Wanderer):
        def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        evaluate(evaluation(), Broken(batch_size), walk, tmp_path)
    assert threading.active_count() == before


def test_partial_run_is_no_result_unless_asked_for(reference: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_bytes(reference["settings.json"])
    lines = reference["trajectories.jsonl"].splitlines(keepends=True)
    (tmp_path / "trajectories.jsonl").write_bytes(b"".join(reversed(lines[:9])))
    with pytest.raises(InputError, match="lacks 15 of 24 episodes"):
        conclude(tmp_path)
    partial = conclude(tmp_path, allow_partial=True)
    assert (partial["complete"], partial["episodes"], partial["planned"]) == (False, 9, 24)
    evaluate(evaluation(), Wanderer(), walk, tmp_path)
    assert files(tmp_path) == reference


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    second: list[BaseException] = []

    class Nosy(Wanderer):
        def reply(self, prompt: Prompt) -> Reply:
            try:
                evaluate(evaluation(), Wanderer(), walk, tmp_path)
            except InputError as error:
                second.append(error)
            return super().reply(prompt)

    evaluate(evaluation(tasks=1, samples=1), Nosy(), walk, tmp_path)
    assert second and "Another evaluation writes" in str(second[0])
