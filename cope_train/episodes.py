"""The episodes of a training run: from TRL's prompts (task ids) to rows of tokens and rewards.

`EpisodeSource` is a `rollout_func` for any `GRPOTrainer`: a prompt is a task id, the row holds the whole episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from trl import GRPOTrainer

from cope_gym import prompts as prompt_files
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.evaluate.service import Service
from cope_gym.server import connect
from cope_train.config import CoPEConfig
from cope_train.generation import open_backend
from cope_train.groups import Groups, Reserve
from cope_train.objectives.records import Record
from cope_train.rollout.backends import seed_number
from cope_train.rollout.driver import Clock, Episode, Job, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.trl_adapter import record_metric
from cope_train.turns import group_turn_advantages, in_groups, token_advantages

MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]


class EpisodeSource:
    """Plays episodes with the trainer's current weights.

    Args:
        config: The run.
        template: Chat template of the policy.
        policy: Name of the policy in trajectories.
        make_env: Makes environments; by default those of the service.
        system_prompt: First message; by default the environment's.
        action_format: By default what the service says of the environment.

    Attributes:
        episodes: Those of the last rollout, in the order of its prompts.
        clock: Seconds of the last rollout.
        versions: Versions, data digest and flags of the service; empty where environments are made otherwise.
        groups: Those of the last rollout, where groups may be played again.
        reserve: Tasks for that; set by the trainer.
    """

    def __init__(
        self,
        config: CoPEConfig,
        template: ChatTemplate,
        policy: str = "",
        make_env: MakeEnv | None = None,
        system_prompt: str | None = None,
        action_format: str | None = None,
    ) -> None:
        self.config = config
        self.versions = {} if make_env else _versions(config)
        facts = {"env": config.environment, "split": config.split or "", "options": dict(config.environment_options)}
        self.setup = Setup(
            make_env=make_env or service_environments(config),
            template=template,
            system_prompt=system_prompt if system_prompt is not None else first_message(config),
            action_format=action_format or config.action_format or _published_format(config),
            limits=config.limits(),
            describe={**facts, "policy": policy, "versions": self.versions},
            threads=config.environment_threads,
            gather_seconds=config.gather_seconds,
            ordered=config.ordered_rollouts,
            straggler_share=config.straggler_share,
            straggler_seconds=config.straggler_seconds,
        )
        self.episodes: list[Episode] = []
        self.clock = Clock()
        self.progress: Callable[[Episode], None] | None = None
        self._last = (-1, 0)
        self.groups: Groups | None = None
        self.reserve = Reserve([], config.seed)

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Plays one episode a prompt; TRL repeats each prompt for its group."""
        step, _ = self._count(trainer)
        first = trainer.accelerator.process_index * len(prompts)
        size = trainer.num_generations
        limits = replace(self.setup.limits, turns=self.config.turns_at(step))
        setup = replace(self.setup, limits=limits)

        def job(task: str, row: int, attempt: int = 0) -> Job:
            again = (attempt,) if attempt else ()
            return Job(
                task,
                seed=seed_number(self.config.seed, step, task) % 2**31,
                sampling_seed=(self.config.seed, *self._last, first + row, *again),
                sample=(first + row) % size,
                setup=setup,
                tag=row,
            )

        if self.config.resample_budget:
            tasks, reward = prompts[::size], self.config.reward
            self.groups = groups = Groups(
                tasks, size, self.config.resample_budget, self.reserve, job, lambda e: episode_reward(e, reward)
            )
            self.play(groups.jobs(), trainer, then=groups.then)
            self.episodes = groups.rows()
        else:
            self.play([job(task, row) for row, task in enumerate(prompts)], trainer)
        for episode in self.episodes:
            episode.trajectory.step = step
        return batch_rows(self.episodes, self.setup.template.end_of_turn, self.config.reward)

    def advantages(self) -> torch.Tensor | None:
        """Advantages of the last rollout's rows, shape (B,) or (B, C); `None` leaves them to TRL."""
        if not self.config.turn_advantages:
            return None
        groups = in_groups(self.episodes, self.config.num_generations)
        return token_advantages([of for group in groups for of in group_turn_advantages(group)], self.episodes)

    def report(self, trainer: GRPOTrainer) -> None:
        """Records metrics of the last rollout beyond those of every rollout (all ranks call this)."""
        if self.groups is not None:
            local = [self.groups.dull, self.groups.again, self.groups.left, len(self.groups.groups)]
            values = torch.tensor([local], device=trainer.accelerator.device, dtype=torch.float32)
            dull, again, left, count = trainer.accelerator.gather(values).sum(0).tolist()
            record_metric(trainer, "groups/equal_rewards", dull / count)
            record_metric(trainer, "groups/equal_rewards_left", left / count)
            record_metric(trainer, "groups/played_again", again)

    def _count(self, trainer: GRPOTrainer) -> tuple[int, int]:
        """Returns the training step and the number of this rollout within it."""
        step = trainer.state.global_step
        self._last = (step, self._last[1] + 1 if self._last[0] == step else 0)
        return self._last

    def play(
        self,
        jobs: Sequence[Job],
        trainer: GRPOTrainer,
        temperature: float | None = None,
        then: Callable[[Episode], Sequence[Job]] | None = None,
    ) -> list[Episode]:
        """Plays jobs with the trainer's weights, and what follows; evaluation passes its own temperature."""
        sampling = self.config.sampling(temperature)
        with open_backend(trainer, sampling, self.setup.template, self.setup.ordered) as backend:
            rollout = Rollout(jobs, self.setup, backend, self.progress, then)
            self.episodes = rollout.play()
        self.clock = rollout.clock
        return self.episodes


def batch_rows(episodes: Sequence[Episode], filler: int, reward: str) -> dict[str, Any]:
    """Makes TRL's rows of episodes; a failed one becomes two tokens without loss and without a reward."""
    rows: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")}
    for episode in episodes:
        ids, mask, logprobs = episode.buffer.completion()
        failed = episode.failed
        rows["prompt_ids"].append([filler] if failed else episode.buffer.ids[: episode.buffer.prompt_length])
        rows["completion_ids"].append([filler] if failed else ids)
        rows["env_mask"].append([0] if failed else mask)
        rows["logprobs"].append([0.0] if failed else logprobs)
    rows["task_id"] = [episode.job.task_id for episode in episodes]  # not always the prompt's: groups change tasks
    return {**rows, "episode_reward": [episode_reward(episode, reward) for episode in episodes]}


def episode_reward(episode: Episode, reward: str) -> float | None:
    """Returns what GRPO maximises; `None` for a failed episode."""
    if episode.failed:
        return None
    return float(episode.trajectory.success) if reward == "success" else episode.trajectory.score


def reward_function(name: str) -> Callable[..., list[float | None]]:
    """Returns the reward function that TRL calls, under the name of what is rewarded."""

    def rewards(episode_reward: list[float | None], **_: Any) -> list[float | None]:
        return episode_reward

    rewards.__name__ = name
    return rewards


def record(episode: Episode, group: str) -> Record:
    """Returns an episode as the objectives see it."""
    buffer = episode.buffer
    return Record(
        ids=buffer.ids,
        prompt_length=buffer.prompt_length,
        loss_mask=buffer.mask,
        turns=tuple(buffer.turns),
        group=group,
        success=episode.trajectory.success,
        failed=episode.failed,
        task_id=episode.job.task_id,
        observations=tuple(buffer.observations),
    )


def service_environments(config: CoPEConfig) -> MakeEnv:
    """Returns a maker of environments of the service; the step limit is the run's own."""

    def make() -> gymnasium.Env[Any, Any]:
        return CopeEnv(
            config.environment,
            options=dict(config.environment_options),
            max_steps=config.max_turns,
            base_url=config.base_url,
        )

    return make


def _versions(config: CoPEConfig) -> dict[str, Any]:
    return Service(config.environment, connect(config.environment, config.base_url)).versions()


def first_message(config: CoPEConfig) -> str:
    """Returns the system prompt of a run.

    Raises:
        InputError: There is no such file, or the environment has no prompt of its own.
    """
    if config.system_prompt is None:
        return prompt_files.load(config.environment)
    path = Path(config.system_prompt)
    if not path.is_file():
        raise InputError(f"system_prompt names no file: {path}", type="bad_option")
    return path.read_text(encoding="utf-8").strip()


def _published_format(config: CoPEConfig) -> str:
    served = {env["name"]: env for env in connect(config.environment, config.base_url).envs()}
    if config.environment not in served:
        raise InputError(
            f"the server has no environment '{config.environment}'; it has {', '.join(sorted(served))}",
            type="unknown_env",
        )
    return served[config.environment]["action_format"]
