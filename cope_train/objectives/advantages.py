"""Advantages of skill co-evolution: an extractor writes N skills, solvers play K tasks R times with each.

w_ijr is the outcome of skill i on task j in repeat r; a missing episode is NaN. Standard deviations are of the
population. Everything here is arithmetic on one source's outcomes; who plays what is the rollout's matter.
"""

from __future__ import annotations

import torch

EPSILON = 1e-6


def group_advantages(rewards: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """A = λ·(R − mean)/(std + 1e-6) over the cells that are there.

    Args:
        rewards: One group in any shape; NaN where the row failed.
        weight: λ of the role.

    Returns:
        Same shape; 0 where the row failed.
    """
    there = ~rewards.isnan()
    if not there.any():
        return torch.zeros_like(rewards)
    values = rewards[there]
    advantages = weight * (rewards - values.mean()) / (values.std(correction=0) + EPSILON)
    return torch.where(there, advantages, torch.zeros_like(rewards))


def extractor_rewards(outcomes: torch.Tensor, parsed: torch.Tensor, audited: torch.Tensor) -> torch.Tensor:
    """R_i = f_i·a_i·mean over (j, r) of w_ijr.

    Where cells are missing, outcomes are first centred by task (column-adjusted mean): R_i is the mean of w − mean_j
    over the cells of skill i, plus the mean of the task means. Losing a hard task then does not raise R_i. Without
    missing cells both are the same.

    Args:
        outcomes: w_ijr in [0, 1], shape (N, K, R); NaN where missing.
        parsed: f_i, whether the skill could be parsed, shape (N,).
        audited: a_i, whether it passed the audit, shape (N,).

    Returns:
        Shape (N,); NaN where no episode of the skill is left, so that its row counts as failed.
    """
    there = ~outcomes.isnan()
    task_means = outcomes.nanmean(dim=(0, 2), keepdim=True)
    centred = torch.where(there, outcomes - task_means, torch.zeros_like(outcomes)).sum((1, 2))
    cells = there.sum((1, 2))
    means = centred / cells + task_means.nanmean()
    return torch.where(cells > 0, means.clamp(0.0, 1.0) * parsed * audited, torch.full_like(means, torch.nan))


def extractor_advantages(
    outcomes: torch.Tensor, parsed: torch.Tensor, audited: torch.Tensor, weight: float = 0.2
) -> torch.Tensor:
    """A_i = λ_e·(R_i − mean_N)/(std_N + 1e-6).

    Args:
        outcomes: As for `extractor_rewards`.
        parsed: As for `extractor_rewards`.
        audited: As for `extractor_rewards`.
        weight: λ_e.

    Returns:
        Shape (N,).
    """
    return group_advantages(extractor_rewards(outcomes, parsed, audited), weight)


def solver_advantages(
    rewards: torch.Tensor, weight: float = 1.0, baseline: torch.Tensor | None = None
) -> torch.Tensor:
    """A_ijr = λ_s·(r_ijr − mean_j)/(std_j + 1e-6): all episodes of one task form a group, across skills.

    Args:
        rewards: r_ijr, shape (N, K, R); NaN where missing.
        weight: λ_s.
        baseline: Rewards without a skill, shape (K, R'), which then count in mean_j and std_j.

    Returns:
        Shape (N, K, R); 0 where missing.
    """
    n, k, r = rewards.shape
    columns = rewards.permute(1, 0, 2).reshape(k, n * r)
    if baseline is not None:
        columns = torch.cat([columns, baseline], 1)
    advantages = torch.stack([group_advantages(column, weight) for column in columns])
    return advantages[:, : n * r].reshape(k, n, r).permute(1, 0, 2)


def source_advantages(rewards: torch.Tensor, baseline: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """Advantage of source episodes, when they are trained on.

    Two or more source episodes are their own group; a single one is measured by the episodes without a skill.

    Args:
        rewards: Rewards of the source episodes, shape (S,); NaN where failed.
        baseline: Rewards of episodes without a skill on the source task, shape (R',); may be empty.
        weight: λ_s.

    Returns:
        Shape (S,); 0 where failed or where there is nothing to compare with.
    """
    if (~rewards.isnan()).sum() >= 2:
        return group_advantages(rewards, weight)
    known = baseline[~baseline.isnan()]
    if len(known) < 2:
        return torch.zeros_like(rewards)
    return torch.nan_to_num(weight * (rewards - known.mean()) / (known.std(correction=0) + EPSILON))


def step_advantages(step_rewards: list[list[float]], weight: float = 1.0) -> list[list[float]]:
    """Per-turn advantages of episodes that end at their first wrong step (Mind2Web): the group is a step index.

    A step that only one episode reached has no group: a correct one keeps the episode's previous advantage (+1 where
    it is the first), a wrong one gets −1, before λ.

    Args:
        step_rewards: Per episode the reward of each step, 1 correct and 0 wrong; an empty list is a failed episode.
        weight: λ_s.

    Returns:
        Same shape.
    """
    advantages: list[list[float]] = [[0.0] * len(steps) for steps in step_rewards]
    for t in range(max(map(len, step_rewards), default=0)):
        reached = [i for i, steps in enumerate(step_rewards) if len(steps) > t]
        column = torch.tensor([step_rewards[i][t] for i in reached], dtype=torch.float64)
        if len(reached) > 1:
            values = group_advantages(column).tolist()
        else:
            before = advantages[reached[0]][t - 1] if t else 1.0
            values = [before if column[0] > 0 else -1.0]
        for i, value in zip(reached, values, strict=True):
            advantages[i][t] = value
    return [[weight * value for value in values] for values in advantages]
