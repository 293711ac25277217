"""Groups that teach nothing are played again on other tasks; episodes that take too long are cut off."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym import trajectory
from cope_gym.errors import InfrastructureError, InputError
from cope_gym.trajectory import Trajectory
from cope_train.drift import DriftGuard
from cope_train.groups import Groups, Reserve
from cope_train.rollout.backends import Sampling, TransformersBackend
from cope_train.rollout.driver import Episode, Job, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.run_folder import read_metrics
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train
TOKENIZER = make_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
TASKS = ["door", "key", "open", "look", "zzz", "qqq", "take", "go"]


def test_a_reserve_gives_every_task_once_a_pass_and_none_to_two_ranks() -> None:
    ranks = [Reserve(TASKS, 3, rank, 2) for rank in range(2)]
    taken = [[reserve.take(set()) for _ in range(4)] for reserve in ranks]
    assert sorted(task for tasks in taken for task in tasks if task) == sorted(TASKS)
    again = Reserve(TASKS, 3, 0, 2)
    again.taken = 2
    assert [again.take(set()) for _ in range(2)] == taken[0][2:]
    assert Reserve(["a", "b"], 0).take({"a"}) == "b" and Reserve(["a"], 0).take({"a"}) is None


def finish(groups: Groups, rewards: dict[str, list[float | None]]) -> list[str]:
    """Plays all jobs; the reward of an episode is its task's by number."""
    played, queue = [], groups.jobs()
    while queue:
        job = queue.pop(0)
        played.append(job.task_id)
        queue += groups.then(Episode(job, Trajectory("toy", job.task_id)))
    return played


def test_groups_without_a_difference_change_their_task_within_the_budget() -> None:
    rewards: dict[str, list[float | None]] = {"a": [0, 1], "b": [1, 1], "c": [None, 0], "d": [0, 0], "e": [1, 0]}

    def reward(episode: Episode) -> float | None:
        return rewards[episode.job.task_id][episode.job.sample]

    def job(task: str, row: int, attempt: int) -> Job:
        return Job(task, 0, (row, attempt), row % 2, tag=row)

    reserve = Reserve(["d", "e"], 1)
    groups = Groups(["a", "b", "c"], 2, 3, reserve, job, reward)
    finish(groups, rewards)
    tasks = [e.job.task_id for e in groups.rows()]
    assert tasks[:2] == ["a", "a"] and tasks[2] == tasks[3] and tasks[4] == tasks[5]
    assert set(tasks[2:]) <= {"d", "e", "b", "c"} and groups.dull == 2 and 2 <= groups.again <= 3
    none = Groups(["a", "b", "c"], 2, 0, reserve, job, reward)
    assert finish(none, rewards) == ["a", "a", "b", "b", "c", "c"] and none.left == 2 and none.again == 0


class Sparse(ToyEnv):
    """Some tasks are always lost."""

    def step(self, action: str) -> Any:  # type: ignore[override]
        text, reward, *rest = super().step(action)
        hopeless = self.task in ("zzz", "qqq", "door")
        if hopeless:
            self.total, reward = 0.0, 0.0
            rest[-1] = self._info(True)
        return text, reward, *rest


def trainer(folder: Path, **options: Any) -> CoPETrainer:
    settings: dict[str, Any] = {"num_generations": 2, "resample_budget": 2, "max_steps": 4, "save_steps": 2}
    return CoPETrainer(
        make_model(TOKENIZER),
        make_config(folder, **settings | {"save_strategy": "steps", "drift_limit": 0.5} | options),
        TASKS,
        make_env=Sparse,
        system_prompt="Play.",
        processing_class=TOKENIZER,
    )


def test_a_run_with_other_tasks_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    whole.train()
    assert whole.source.reserve.taken > 0
    lines = [line for line in read_metrics(tmp_path / "whole" / "metrics.jsonl") if "loss" in line]
    assert sum(line["groups/played_again"] for line in lines) > 0
    assert any(line["groups/equal_rewards_left"] < line["groups/equal_rewards"] for line in lines)
    for step in range(4):
        played = list(trajectory.read(tmp_path / "whole" / "trajectories" / f"step_{step:06d}.jsonl"))
        for i in range(0, 8, 2):  # whole groups, rows with the task that was played
            assert played[i].task_id == played[i + 1].task_id
            assert played[i].task_id in played[i].messages[1]["content"]

    first = trainer(tmp_path / "cut")
    first.args.max_steps = 2
    first.train()
    second = trainer(tmp_path / "cut")
    second.train(resume_from_checkpoint=True)
    assert second.source.reserve.taken == whole.source.reserve.taken
    assert second.drift.state() == whole.drift.state()
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_resumed_guard_remembers_the_first_steps() -> None:
    guard, other = DriftGuard(0.2), DriftGuard(0.2)
    for share in (0.0, 0.1, 0.2, 0.3):
        assert guard.passes(share)
    other.restore(guard.state())
    assert other.drift == guard.drift == pytest.approx(0.2)
    assert [guard.passes(0.5), guard.passes(0.5)] == [other.passes(0.5), other.passes(0.5)] == [True, False]


def test_a_stopped_term_stays_stopped(tmp_path: Path) -> None:
    first = trainer(tmp_path, forecast=True, max_steps=2)
    first.objectives.stopped = True
    first.train()
    second = trainer(tmp_path, forecast=True)
    second.run_state.load(tmp_path / "checkpoint-2")
    assert second.objectives.stopped


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}, "divisible"),
        ({"straggler_share": 0.0}, "straggler_share lies in"),
        ({"episode_seconds": 3.0}, "ordered_rollouts do not depend on time"),
    ],
)
def test_options_of_rollouts_are_checked(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, ValueError), match=sentence):
        make_config(tmp_path, resample_budget=1, **options)


class Stuck(ToyEnv):
    """One task's environment does not answer until it is released."""

    release = threading.Event()

    def step(self, action: str) -> Any:  # type: ignore[override]
        if self.task == "stuck":
            type(self).release.wait(20)
        return super().step(action)


def play(tasks: list[str], limits: Limits, **options: Any) -> tuple[list[Episode], float]:
    sampler = TransformersBackend(make_model(TOKENIZER), Sampling(), TEMPLATE.stop_ids, TOKENIZER.pad_token_id)
    setup = Setup(Stuck, TEMPLATE, "Play.", "plain", limits, {"env": "toy"}, gather_seconds=0.01, **options)
    started = time.monotonic()
    episodes = Rollout([Job(task, 0, (i,)) for i, task in enumerate(tasks)], setup, sampler).play()
    return episodes, time.monotonic() - started


@pytest.mark.parametrize("way", ["deadline", "straggler"])
def test_an_episode_that_takes_too_long_is_cut_off_and_holds_up_nobody(way: str) -> None:
    Stuck.release.clear()
    Stuck.opened = Stuck.closed = 0
    if way == "deadline":
        done, seconds = play(["door", "stuck", "key"], Limits(turn_tokens=12, seconds=3.0))
    else:
        done, seconds = play(
            ["door", "stuck", "key"], Limits(turn_tokens=12), straggler_share=0.6, straggler_seconds=1
        )
    assert seconds < 15
    assert [episode.failed for episode in done] == [False, True, False]
    assert done[1].trajectory.error is not None and done[1].trajectory.error["type"] == "late"
    Stuck.release.set()
    deadline = time.monotonic() + 20
    while Stuck.closed < 3:  # also the one whose call went on
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert Stuck.opened == 3


def test_a_run_stops_with_a_reason_when_too_many_episodes_fail(tmp_path: Path) -> None:
    run = CoPETrainer(
        make_model(TOKENIZER),
        make_config(tmp_path, num_generations=2, episode_attempts=1, max_failed_share=0.4),
        TASKS,
        make_env=lambda: ToyEnv(fail=dict.fromkeys(TASKS[:6], 99)),
        system_prompt="Play.",
        processing_class=TOKENIZER,
    )
    with pytest.raises(InfrastructureError, match=r"episodes failed \(limit max_failed_share=0\.4\).*toy world broke"):
        run.train()
