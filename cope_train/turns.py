"""Advantages of single turns on rows that hold whole episodes (objectives.md §8, Mind2Web).

An episode stays one append-only row; every token of a turn has the advantage of that turn. The group of a turn is its
index among the episodes of one task, because such episodes end at their first wrong step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cope_train.objectives.advantages import step_advantages
from cope_train.rollout.driver import Episode

RowAdvantage = float | list[float]
"""Of a whole episode, or of each of its turns."""


def group_turn_advantages(group: Sequence[Episode], weight: float = 1.0) -> list[list[float]]:
    """Advantages of every turn of the episodes of one task; a failed episode has none and counts nowhere."""
    return step_advantages([turn_rewards(episode) for episode in group], weight)


def turn_rewards(episode: Episode) -> list[float]:
    """Whether each turn was right: 1 where it was rewarded, else 0."""
    return [] if episode.failed else [float(turn.reward > 0) for turn in episode.trajectory.turns]


def in_groups(episodes: Sequence[Episode], size: int) -> Iterable[Sequence[Episode]]:
    """Splits a rank's rows into groups of equal size."""
    return (episodes[at : at + size] for at in range(0, len(episodes), size))


def token_advantages(values: Sequence[RowAdvantage], episodes: Sequence[Episode]) -> torch.Tensor:
    """Writes advantages onto tokens.

    Args:
        values: One entry a row.
        episodes: The rows.

    Returns:
        Shape (B, C), C the longest completion; 0 on what was not sampled, and on rows that failed.
    """
    table = torch.zeros(len(episodes), max((e.buffer.completion_length for e in episodes), default=0) or 1)
    for row, value, episode in zip(table, values, episodes, strict=True):
        buffer = episode.buffer
        if episode.failed:
            continue
        turns = torch.tensor(buffer.turn_ids[buffer.prompt_length :], dtype=torch.long)
        of_turn = torch.tensor(value if isinstance(value, list) else [value] * (int(turns.max()) + 1))
        sampled = turns >= 0
        row[: len(turns)][sampled] = of_turn[turns[sampled]].to(row)
    return table
