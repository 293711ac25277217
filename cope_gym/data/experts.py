"""Expert episodes: a benchmark's own solutions, played through the real environment; only solved ones are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cope_gym import trajectory
from cope_gym.client import TaskInfo
from cope_gym.errors import InputError
from cope_gym.evaluate.panels import Panel
from cope_gym.evaluate.policies import NO_GOLD, NoGold, PolicySpec, Prompt, Reply
from cope_gym.evaluate.runner import Evaluation, Progress, evaluate
from cope_gym.evaluate.scripted import Gold
from cope_gym.evaluate.service import Service
from cope_gym.trajectory import Trajectory

MAX_TURNS = 1000  # solutions may be longer than the published limit: the limit is for agents
KEPT, FAILED, NO_SOLUTION, ERROR = "kept", "failed", "no solution", "error"


class Expert(Gold):
    """Plays the benchmark's solution; where there is none, it gives up in place of ending the run."""

    def turn(self, prompt: Prompt) -> Reply:
        """Writes the next action of the solution."""
        try:
            return super().turn(prompt)
        except NoGold:
            return Reply("", give_up=True)


@dataclass(frozen=True)
class Plan:
    """Which solutions are played.

    Attributes:
        split: Split of the tasks.
        task_ids: The tasks.
        options: Options of the benchmark.
        system: System prompt, `None` for that of the environment.
        chars: Where observations are cut, the first one and later ones; `None` as in the environment's protocol.
        concurrency: Episodes at the same time.
    """

    split: str
    task_ids: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    system: str | None = None
    chars: tuple[int | None, int | None] = (None, None)
    concurrency: int = 4


@dataclass(frozen=True)
class Collected:
    """What became of the tasks.

    Attributes:
        file: The kept episodes.
        outcomes: Category → outcome → number of tasks.
        lost: Tasks that were not kept, with why.
    """

    file: Path
    outcomes: Mapping[str, Counter[str]]
    lost: Sequence[tuple[str, str]]

    @property
    def kept(self) -> int:
        """Number of kept episodes."""
        return sum(counts[KEPT] for counts in self.outcomes.values())

    @property
    def errors(self) -> int:
        """Number of episodes that the service failed; the same call tries them again."""
        return sum(counts[ERROR] for counts in self.outcomes.values())


def collect(service: Service, plan: Plan, folder: Path, progress: Progress | None = None) -> Collected:
    """Plays solutions; what an interrupted call has played is not played again.

    Args:
        service: The environment.
        plan: Which solutions.
        folder: Gets `experts.jsonl` (the solved episodes) and `trajectories.jsonl` (all of them).
        progress: Called after every episode.

    Raises:
        InputError: The folder holds another plan, or the environment has no solution for any of the tasks.
    """
    panel = Panel(service.env, f"{service.env}_experts", plan.split, plan.task_ids, plan.options).sealed()
    rules = service.rules(MAX_TURNS, plan.system, chars=plan.chars)
    evaluation = Evaluation(panel, rules, versions=service.versions(), concurrency=plan.concurrency)
    policy = Expert(PolicySpec("", service.env, service.gold))
    evaluate(evaluation, policy, lambda: service.make_env(MAX_TURNS), folder, progress)
    episodes = list(trajectory.read(folder / "trajectories.jsonl"))
    outcomes: dict[str, Counter[str]] = {}
    for episode in episodes:
        outcomes.setdefault(episode.category, Counter())[outcome(episode)] += 1
    kept = [episode for episode in episodes if outcome(episode) == KEPT]
    if not kept and all(outcome(episode) == NO_SOLUTION for episode in episodes):
        raise InputError(f"{service.env} has no solution for these {len(episodes)} tasks.", type=NO_GOLD)
    trajectory.write(folder / "experts.jsonl", kept)
    lost = [(episode.task_id, _why(episode)) for episode in episodes if outcome(episode) != KEPT]
    return Collected(folder / "experts.jsonl", outcomes, lost)


def choose(
    tasks: Sequence[TaskInfo], categories: Sequence[str], ids: Sequence[str], limit: int | None
) -> tuple[str, ...]:
    """Returns the ids of the tasks that are wanted, in the benchmark's order.

    Raises:
        InputError: Nothing is left.
    """
    wanted = set(ids)
    chosen = [
        task.id
        for task in tasks
        if (not categories or task.category in categories) and (not wanted or task.id in wanted)
    ]
    unknown = sorted(wanted - set(chosen)) or sorted(set(categories) - {task.category for task in tasks})
    if unknown or not chosen:
        what = unknown[0] if unknown else "anything of that kind"
        raise InputError(f"The split does not have {what}; `cope tasks` lists what there is.", type="unknown_task")
    return tuple(chosen[:limit])


def outcome(episode: Trajectory) -> str:
    """Returns what became of an expert's episode."""
    if episode.error is not None:
        return ERROR
    if not episode.turns:
        return NO_SOLUTION
    return KEPT if episode.success else FAILED


def _why(episode: Trajectory) -> str:
    if episode.error is not None:
        return episode.error["detail"]
    if not episode.turns:
        return "the benchmark has no solution"
    return f"the solution ends with score {episode.score:.2f} after {len(episode.turns)} turns"
