"""Evaluation during training: the panel's tasks through the same token-level driver that collects rollouts.

The result has the form that `cope eval` writes, so that both can be compared and shown together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from trl import GRPOTrainer

from cope_gym.evaluate.episode import Rules, derived_seed
from cope_gym.evaluate.panels import Panel
from cope_gym.evaluate.policies import Policy
from cope_gym.evaluate.results import summarise
from cope_gym.evaluate.runner import Evaluation
from cope_gym.evaluate.store import Store
from cope_train.config import CoPEConfig
from cope_train.episodes import EpisodeSource
from cope_train.rollout.driver import Job
from cope_train.trl_adapter import evaluating

_LOGGED = ("success", "score", "turns", "tokens", "invalid_share", "no_action_share", "truncated")


class _Weights:
    """The policy of a result: weights at a training step. It is only described here, the driver plays it."""

    batch_size = 1

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name, self.settings = name, settings


def evaluate_panel(trainer: GRPOTrainer, source: EpisodeSource, panel: Panel, out: Path) -> dict[str, float]:
    """Plays the panel, each rank a share of it, and writes the result.

    Args:
        trainer: Its current weights play.
        source: Plays the episodes.
        panel: What is played; its options go over those of the run.
        out: Folder of this evaluation.

    Returns:
        The numbers to log, without a prefix.
    """
    config: CoPEConfig = source.config
    evaluation = Evaluation(panel, _rules(source, config), config.eval_samples, config.seed, source.versions)
    items = evaluation.items()
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    jobs = [
        Job(item.task_id, item.seed, (derived_seed(item.seed, "sampling"),), item.sample)
        for item in items[rank::world]
    ]
    with evaluating(trainer):
        episodes = source.play(jobs, trainer, config.eval_temperature)
    for episode in episodes:
        episode.trajectory.step = trainer.state.global_step
    played = {(t.task_id, t.sample): t for t in gather_object([e.trajectory for e in episodes])}
    ordered = [played[item.task_id, item.sample] for item in items]
    policy: Policy = _Weights(source.setup.describe["policy"], {"step": trainer.state.global_step})  # type: ignore
    result = summarise(ordered, len(items), evaluation.settings(policy))
    if trainer.is_world_process_zero():
        Store(out).finish(ordered, result)
    numbers = {name: result["metrics"][name]["value"] for name in _LOGGED if name in result["metrics"]}
    return numbers | {"failed": len(result["errors"]) / len(items), "seconds": source.clock.total}


def _rules(source: EpisodeSource, config: CoPEConfig) -> Rules:
    return Rules(
        config.environment,
        source.setup.action_format,
        config.max_turns,
        source.setup.system_prompt,
        config.first_observation_chars,
        config.observation_chars,
    )
