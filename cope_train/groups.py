"""Groups of a rollout: all episodes of one task. A group whose rewards are all equal teaches GRPO nothing.

Such a group may be played again on another task, within a budget, as soon as its last episode is over (DAPO's dynamic
sampling, without a barrier). Groups stay whole on their rank, so no row travels between ranks; the row takes its task
with it. Tasks that are taken for this come from an order of their own, whose position belongs into checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cope_train.rollout.backends import seed_number
from cope_train.rollout.driver import Episode, Job

MakeJob = Callable[[str, int, int], Job]
"""Makes the job of (task, row, attempt)."""


class Reserve:
    """Tasks in a shuffled order that this rank alone takes from; shuffled anew after every pass.

    Args:
        tasks: All training tasks.
        seed: Of the order.
        rank: Number of this process.
        ranks: How many there are.
    """

    def __init__(self, tasks: Sequence[str], seed: int, rank: int = 0, ranks: int = 1) -> None:
        self.tasks, self.seed, self.rank, self.ranks = list(tasks), seed, rank, ranks
        self.taken = 0

    def take(self, without: set[str]) -> str | None:
        """Returns the next task that is not among `without`; `None` where there is no such task."""
        if set(self.tasks) <= without:
            return None
        while True:
            place = self.rank + self.taken * self.ranks
            self.taken += 1
            turn, index = divmod(place, len(self.tasks))
            order = random.Random(seed_number(self.seed, "reserve", turn)).sample(self.tasks, len(self.tasks))
            if order[index] not in without:
                return order[index]


@dataclass
class _Group:
    task: str
    attempt: int = 0
    episodes: dict[int, Episode] = field(default_factory=dict[int, Episode])


class Groups:
    """The groups of one rollout on one rank.

    Args:
        tasks: One a group.
        size: Episodes a group.
        budget: How many groups may be played again.
        reserve: Where their tasks come from.
        job: Makes jobs.
        reward: Reward of an episode, `None` where it failed.

    Attributes:
        dull: Groups without a difference in rewards, as first played.
        again: Groups that were played again.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        size: int,
        budget: int,
        reserve: Reserve,
        job: MakeJob,
        reward: Callable[[Episode], float | None],
    ) -> None:
        self.size, self.budget, self.reserve, self.job, self.reward = size, budget, reserve, job, reward
        self.groups = [_Group(task) for task in tasks]
        self.dull = self.again = 0

    def jobs(self) -> list[Job]:
        """The jobs of all groups, group after group."""
        return [job for g in range(len(self.groups)) for job in self._jobs(g)]

    def then(self, episode: Episode) -> list[Job]:
        """What follows from an episode that is over."""
        tag: Any = episode.job.tag
        group = self.groups[tag // self.size]
        group.episodes[tag % self.size] = episode
        if len(group.episodes) < self.size or self._differs(group):
            return []
        self.dull += group.attempt == 0
        task = self.reserve.take({g.task for g in self.groups}) if self.again < self.budget else None
        if task is None:
            return []
        self.again += 1
        self.groups[tag // self.size] = _Group(task, group.attempt + 1)
        return self._jobs(tag // self.size)

    def rows(self) -> list[Episode]:
        """The episodes in the order of rows."""
        return [group.episodes[i] for group in self.groups for i in range(self.size)]

    @property
    def left(self) -> int:
        """Groups without a difference at the end."""
        return sum(not self._differs(group) for group in self.groups)

    def _differs(self, group: _Group) -> bool:
        return len({self.reward(episode) for episode in group.episodes.values()} - {None}) > 1

    def _jobs(self, g: int) -> list[Job]:
        group = self.groups[g]
        return [self.job(group.task, g * self.size + i, group.attempt) for i in range(self.size)]
