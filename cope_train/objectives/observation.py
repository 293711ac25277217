"""Observation forecasting L_OBS: cross-entropy on the content of the observations in the trajectory itself.

No branch and no extra forward: the rows are those of the policy's own pass. Roles and template tokens are left out,
because they are always the same. Gate `all`: a lost episode shows the world as well as a won one.
"""

from __future__ import annotations

import torch

from cope_train.objectives.records import Record


def observation_positions(record: Record, cap: int | None = None) -> list[int]:
    """Returns the positions in `record.ids` whose token is observation content.

    Args:
        record: The trajectory; a failed one has none.
        cap: Only the first so many tokens of every observation; `None` takes all.
    """
    if record.failed:
        return []
    ends = [(start, end if cap is None else min(end, start + cap)) for start, end in record.observations]
    return [position for start, end in ends for position in range(start, end) if position > 0]


def observation_loss(log_probs: torch.Tensor, count: float, world_size: int = 1) -> torch.Tensor:
    """L_OBS of this rank, to be averaged over ranks by the gradient reduction.

    Args:
        log_probs: Log-probability of every observation token at temperature 1, shape (N,).
        count: Number of such tokens in the optimizer-step window over all ranks.
        world_size: Number of ranks.
    """
    return -log_probs.sum() * (world_size / max(count, 1.0))
