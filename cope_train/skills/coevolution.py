"""The episodes of one co-evolution step: source → N skills → K similar tasks → N·K·R episodes with a skill.

The stages of one source follow each other; those of different sources run side by side, as episodes of one rollout.
Nothing here knows tokens, TRL or advantages: the outcome is a table of episodes by skill, task and repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from cope_gym.errors import InfrastructureError
from cope_gym.skills.extraction import ExtractionEnv, Reading, episode_text, extractor_prompt, read_skill, with_skill
from cope_gym.trajectory import Trajectory
from cope_train.rollout.backends import seed_number
from cope_train.rollout.driver import Episode, Job, Setup

SimilarTasks = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True)
class Sizes:
    """How many episodes one source makes.

    Attributes:
        skills: N, skills extracted from a source episode.
        tasks: K, similar tasks.
        repeats: R, episodes a skill and task.
        baseline: Also play R episodes a task without a skill.
        skill_tokens: Most sampled tokens of an extraction.
        card_tokens: Most tokens of a skill's card before a solver.
        history_chars: Most characters of the source episode before the extractor.
        prompt: The extractor's system message; our own where empty.
        train_source: Play the source task N times, a group of its own; skills come from the first of these episodes.
    """

    skills: int = 8
    tasks: int = 4
    repeats: int = 1
    baseline: bool = False
    skill_tokens: int = 1536
    card_tokens: int = 512
    history_chars: int = 12000
    prompt: str = ""
    train_source: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of N rows that one source makes: its skills, its own episodes if trained, one a task and repeat."""
        return 1 + self.train_source + self.tasks * self.repeats

    @property
    def source_episodes(self) -> int:
        """How often the source task is played without a skill."""
        return self.skills if self.train_source else 1


@dataclass
class Lineage:
    """Everything that came of one source task.

    Attributes:
        source_task: The task.
        played: Its episodes without a skill, by number; skills come from the first.
        tasks: The K similar tasks.
        extractions: Episode of skill i.
        readings: What it held.
        solved: Episode of (skill i, task j, repeat r).
        baseline: Episode without a skill of (task j, repeat r).
    """

    source_task: str
    played: dict[int, Episode] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    extractions: dict[int, Episode] = field(default_factory=dict)
    readings: dict[int, Reading] = field(default_factory=dict)
    solved: dict[tuple[int, int, int], Episode] = field(default_factory=dict)
    baseline: dict[tuple[int, int], Episode] = field(default_factory=dict)


class CoEvolution:
    """Plans the episodes of several sources.

    Args:
        sources: Source tasks.
        sizes: N, K, R.
        setup: How episodes of the environment are played, without a skill.
        similar: Gives similar other tasks, best first, for (task id, first observation).
        length: Counts the tokens of a text.
        seed: Everything random is drawn from it.
        first: Global number of the first source, so that every source draws the same numbers on whichever rank.
    """

    def __init__(
        self,
        sources: Sequence[str],
        sizes: Sizes,
        setup: Setup,
        similar: SimilarTasks,
        length: Callable[[str], int],
        seed: tuple[int, ...],
        first: int = 0,
    ) -> None:
        self.sizes = sizes
        self.setup = setup
        self.similar = similar
        self.length = length
        self.seed = seed
        self.first = first
        self.lineages = [Lineage(source) for source in sources]

    def jobs(self) -> list[Job]:
        """The first stage: episodes of the sources, without a skill."""
        return [
            self._job(line.source_task, ("source", s, i), sample=i)
            for s, line in enumerate(self.lineages)
            for i in range(self.sizes.source_episodes)
        ]

    def then(self, episode: Episode) -> list[Job]:
        """What follows from an episode that is over."""
        kind, s, *place = episode.job.tag  # type: ignore[misc]
        line = self.lineages[s]
        if kind == "source":
            line.played[place[0]] = episode
            return [] if episode.failed or place[0] else self._after_source(s, line)
        if kind == "baseline":
            line.baseline[tuple(place)] = episode  # type: ignore[index]
        elif kind == "solve":
            line.solved[tuple(place)] = episode  # type: ignore[index]
        else:
            line.extractions[place[0]] = episode
            if not episode.failed:
                return self._after_extraction(s, place[0], line, episode)
        return []

    def _after_source(self, s: int, line: Lineage) -> list[Job]:
        trajectory = line.played[0].trajectory
        line.tasks = list(self.similar(line.source_task, trajectory.messages[1]["content"]))
        if len(line.tasks) != self.sizes.tasks:
            raise InfrastructureError(
                f"{line.source_task} has {len(line.tasks)} similar other tasks, {self.sizes.tasks} are asked for: "
                "train on more tasks, or lower skill_tasks",
                type="retrieval",
            )
        extract = self._extraction_setup(trajectory)
        jobs = [self._job(line.source_task, ("extract", s, i), extract, i) for i in range(self.sizes.skills)]
        if self.sizes.baseline:
            jobs += [
                self._job(task, ("baseline", s, j, r), sample=r)
                for j, task in enumerate(line.tasks)
                for r in range(self.sizes.repeats)
            ]
        return jobs

    def _after_extraction(self, s: int, i: int, line: Lineage, episode: Episode) -> list[Job]:
        turns = episode.trajectory.turns
        reading = line.readings[i] = read_skill(turns[-1].action if turns else "")
        system = with_skill(self.setup.system_prompt, reading.usable, self.sizes.card_tokens, self.length)
        setup = replace(self.setup, system_prompt=system)
        return [
            self._job(task, ("solve", s, i, j, r), setup, i * self.sizes.repeats + r)
            for j, task in enumerate(line.tasks)
            for r in range(self.sizes.repeats)
        ]

    def _extraction_setup(self, trajectory: Trajectory) -> Setup:
        text = episode_text(trajectory, self.sizes.history_chars)
        limits = replace(
            self.setup.limits,
            turns=1,
            turn_tokens=self.sizes.skill_tokens,
            episode_tokens=self.sizes.skill_tokens + 1,
            first_observation_chars=len(text),
        )
        return replace(
            self.setup,
            make_env=lambda: ExtractionEnv(text),
            system_prompt=self.sizes.prompt or extractor_prompt(),
            action_format="plain",
            limits=limits,
        )

    def _job(self, task: str, tag: tuple[str | int, ...], setup: Setup | None = None, sample: int = 0) -> Job:
        # The seed of the environment is the task's alone: all episodes of a solver group start from the same state.
        seed = seed_number(*self.seed, task) % 2**31
        kind, s, *place = tag
        sampling = (*self.seed, kind, self.first + int(s), *place)
        return Job(task, seed, sampling, sample, setup or self.setup, tag)


def rows(line: Lineage, sizes: Sizes) -> list[Episode]:
    """The training rows of one source: N skills, its own N episodes if trained, a block of N for each task and repeat.

    A row whose episode is missing (something before it failed) is a failed one, which counts nowhere.
    """
    missing = Episode(Job(line.source_task, None, ()), Trajectory("", line.source_task), failed=True)
    n = range(sizes.skills)
    return [
        *(line.extractions.get(i, missing) for i in n),
        *((line.played.get(i, missing) for i in n) if sizes.train_source else ()),
        *(line.solved.get((i, j, r), missing) for j in range(sizes.tasks) for r in range(sizes.repeats) for i in n),
    ]


def outcomes(line: Lineage, sizes: Sizes, reward: Callable[[Episode], float | None]) -> torch.Tensor:
    """w_ijr, shape (N, K, R); NaN where the episode failed or is missing."""
    table = torch.full((sizes.skills, sizes.tasks, sizes.repeats), torch.nan)
    for place, episode in line.solved.items():
        value = reward(episode)
        table[place] = torch.nan if value is None else value
    return table


def source_outcomes(line: Lineage, sizes: Sizes, reward: Callable[[Episode], float | None]) -> torch.Tensor:
    """Outcomes of the source task's own episodes, shape (S,); NaN where the episode failed or is missing."""
    found = (line.played.get(i) for i in range(sizes.source_episodes))
    values = [None if episode is None else reward(episode) for episode in found]
    return torch.tensor([torch.nan if value is None else value for value in values])


def baseline_outcomes(line: Lineage, sizes: Sizes, reward: Callable[[Episode], float | None]) -> torch.Tensor:
    """Outcomes without a skill, shape (K, R); NaN where there are none."""
    table = torch.full((sizes.tasks, sizes.repeats), torch.nan)
    for place, episode in line.baseline.items():
        value = reward(episode)
        table[place] = torch.nan if value is None else value
    return table
