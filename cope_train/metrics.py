"""What is logged of a rollout: outcome, length, drift of the action format, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from trl import GRPOTrainer

from cope_train.drift import in_another_format
from cope_train.rollout.driver import LATE, Clock, Episode
from cope_train.trl_adapter import record_metric


def rollout_metrics(trainer: GRPOTrainer, episodes: Sequence[Episode], clock: Clock, action_format: str) -> float:
    """Records means over the episodes of all ranks; failed ones count nowhere.

    Returns:
        The share of turns without an action.
    """
    played = [e for e in episodes if not e.failed]
    turns = [turn for e in played for turn in e.trajectory.turns]
    sums = {
        "episodes": len(played),
        "turns": len(turns),
        "episodes/success": sum(e.trajectory.success for e in played),
        "episodes/score": sum(e.trajectory.score for e in played),
        "episodes/reward": sum(e.trajectory.reward for e in played),
        "episodes/turns": len(turns),
        "episodes/sampled_tokens": sum(turn.tokens for turn in turns),
        "episodes/truncated": sum(e.trajectory.truncated for e in played),
        "episodes/late": sum((e.trajectory.error or {}).get("type") == LATE for e in episodes),
        "turns/invalid": sum(not turn.valid for turn in turns),
        "turns/no_action": sum(e.no_action_turns for e in played),
        "turns/other_format": sum(in_another_format(text, action_format) for e in played for text in _silent(e)),
        "turns/several_actions": sum(e.multi_action_turns for e in played),
        "turns/cut": sum(turn.truncated for turn in turns),
        "told": sum(span.call is not None for e in played for span in e.buffer.turns),
        "told/calls": sum(bool(span.call) for e in played for span in e.buffer.turns),
    }
    values = torch.tensor([list(map(float, sums.values()))], device=trainer.accelerator.device)
    total = dict(zip(sums, trainer.accelerator.gather(values).sum(0).tolist(), strict=True))
    if total["told"]:  # only benchmarks that tell calls from messages
        record_metric(trainer, "turns/calls", total["told/calls"] / total["told"])
    for name, value in total.items():
        if "/" in name and not name.startswith("told"):
            record_metric(trainer, name, value / max(total[name.split("/")[0]], 1.0))
    for name, seconds in (
        ("rollout_start", clock.start),
        ("generate", clock.generate),
        ("environment", clock.environment),
        ("environment_waiting", clock.waiting),
        ("rollout", clock.total),
    ):
        record_metric(trainer, f"seconds/{name}", seconds)
    record_metric(trainer, "rollout/polls", clock.polls)
    return total["turns/no_action"] / max(total["turns"], 1.0)


def _silent(episode: Episode) -> list[str]:
    """Texts of the turns without an action."""
    messages = episode.trajectory.messages
    return [messages[turn.message]["content"] for turn in episode.trajectory.turns if not turn.action]
