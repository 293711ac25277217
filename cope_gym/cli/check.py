"""`cope check`: does a benchmark reward what it should, over HTTP, from the first byte to the last?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from cope_gym.cli.common import BaseUrl, Env, Options, out, progress, waiting
from cope_gym.client import Client, TaskInfo
from cope_gym.errors import CopeError
from cope_gym.evaluate.cli import pairs
from cope_gym.evaluate.scripted import IDLE
from cope_gym.server import connect
from cope_gym.tasklist import short_name

# Refusing is right in some of these tasks, and whoever does nothing refuses: published, so no fault.
_SOLVED_BY_SILENCE = frozenset({"tau2"})


@dataclass(frozen=True)
class Verdict:
    """What became of one task.

    Attributes:
        task: The task.
        steps: Length of the gold path, `None` where the benchmark has none.
        gold: What is wrong with the gold path, "" if nothing.
        nothing: Score of doing nothing.
        idle: What is wrong with doing nothing, "" if nothing.
        error: The fault that kept it from being judged, if any.
    """

    task: TaskInfo
    steps: int | None = None
    gold: str = ""
    nothing: float = 0.0
    idle: str = ""
    error: CopeError | None = None

    @property
    def faults(self) -> list[str]:
        """All that is wrong."""
        error = f"{self.error.type}: {self.error}" if self.error else ""
        return [fault for fault in (error, self.gold, self.idle) if fault]


def check(
    env: Env,
    split: Annotated[list[str] | None, typer.Option(help="Splits to draw from; again for more. Default: all.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Tasks of each category and split; 0 for all.")] = 1,
    task: Annotated[list[str] | None, typer.Option(help="Only these task ids; again for more.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 4,
    option: Options = None,
    base_url: BaseUrl = None,
) -> None:
    """Check that the gold path scores 1 and that a turn of doing nothing solves nothing. The step limit is lifted."""
    name = short_name(env)
    client = connect(name, base_url)
    options = pairs(option)
    with waiting(f"asking for the tasks of {name}"):
        chosen = _named(client, name, task) if task else _sample(client, name, split, sample)
    verdicts: list[Verdict] = []
    pool = ThreadPoolExecutor(jobs)
    try:
        with progress() as bar:
            line = bar.add_task(f"checking {name}", total=len(chosen))
            for future in as_completed([pool.submit(judge, client, name, one, options) for one in chosen]):
                verdicts.append(future.result())
                bar.advance(line)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not play the rest
    _refuse_options(verdicts)
    _report(name, options, verdicts)
    if any(verdict.faults for verdict in verdicts):
        raise typer.Exit(1)


def _refuse_options(verdicts: list[Verdict]) -> None:
    """Raises the refusal of an option where it is the same for every task: it says nothing of the tasks."""
    errors = [verdict.error for verdict in verdicts if verdict.error and verdict.error.type == "bad_option"]
    if errors and len(errors) == len(verdicts) and len({error.detail for error in errors}) == 1:
        raise errors[0]


def judge(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any]) -> Verdict:
    """Plays a task twice: along its gold path, and not at all."""
    try:
        path = client.gold(env, task.id, options)
        nothing, idle = _idle(client, env, task, options)
        gold = "" if path is None else _solve(client, env, task, options, path)
    except CopeError as error:
        return Verdict(task, error=error)
    return Verdict(task, None if path is None else len(path), gold, nothing, idle)


def _solve(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any], path: list[Any]) -> str:
    with closing(client.create(env, task.id, seed=0, options=options, max_steps=len(path) + 1)) as session:
        for action in path:
            if session.reply.done:
                break
            session.step(action)
        reply = session.reply
    if not reply.info["success"] or reply.info["score"] != 1.0:
        return f"the gold path ends with score {reply.info['score']:.2f} after {reply.step_index} steps"
    return "" if reply.terminated else "the gold path does not end the episode"


def _idle(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any]) -> tuple[float, str]:
    """Plays one turn that does nothing; returns its score and what is wrong with it."""
    with closing(client.create(env, task.id, seed=0, options=options)) as session:
        first = session.reply
        if first.info["success"] or first.done or first.reward:
            return first.info["score"], "the task is solved or rewarded before the first step"
        if env in IDLE:
            session.step(IDLE[env])
        reply = session.reply
    solved = reply.info["success"] or reply.info["score"] >= 1.0
    return reply.info["score"], "doing nothing solves the task" if solved and env not in _SOLVED_BY_SILENCE else ""


def _named(client: Client, env: str, ids: list[str]) -> list[TaskInfo]:
    known = {task.id: task for split in _splits(client, env) for task in client.tasks(env, split)}
    return [known.get(id) or TaskInfo(id, "", "") for id in ids]


def _sample(client: Client, env: str, splits: list[str] | None, sample: int) -> list[TaskInfo]:
    chosen: dict[str, TaskInfo] = {}
    for split in splits or _splits(client, env):
        by_category: dict[str, list[TaskInfo]] = defaultdict(list)
        for task in client.tasks(env, split):
            by_category[task.category].append(task)
        for tasks in by_category.values():
            stride = max(1, len(tasks) // sample) if sample else 1
            chosen.update({task.id: task for task in tasks[::stride][: sample or None]})
    return list(chosen.values())


def _splits(client: Client, env: str) -> list[str]:
    for facts in client.envs():
        if facts["name"] == env:
            return facts["splits"]
    return [task.split for task in client.tasks(env)]  # raises, with near names


def _report(env: str, options: Mapping[str, Any], verdicts: list[Verdict]) -> None:
    stated = f", options {dict(options)}" if options else ""
    table = Table(
        Column("category", overflow="fold"), "tasks", "gold path 1", "doing nothing", "gold steps", title=env + stated
    )
    for category in sorted({verdict.task.category for verdict in verdicts}):
        table.add_row(category, *_row([verdict for verdict in verdicts if verdict.task.category == category]))
    out.print(table)
    silent = [verdict.task.id for verdict in verdicts if verdict.nothing >= 1.0 and not verdict.idle]
    if silent:
        out.print(f"Solved by doing nothing, as published: {escape(', '.join(sorted(silent)))}")
    for verdict in verdicts:
        for fault in verdict.faults:
            out.print(f"[red]{escape(verdict.task.id)}[/] ({verdict.task.split}): {escape(fault)}")
    bad = sum(bool(verdict.faults) for verdict in verdicts)
    out.print(
        f"{len(verdicts)} tasks, " + (f"[red]{bad} with faults[/]" if bad else "[green]all as they should be[/]")
    )


def _row(verdicts: list[Verdict]) -> tuple[str, str, str, str]:
    lengths = [verdict.steps for verdict in verdicts if verdict.steps is not None]
    solved = sum(verdict.steps is not None and not verdict.gold for verdict in verdicts)
    played = [verdict.nothing for verdict in verdicts if not verdict.error]
    nothing = f"{sum(played) / len(played):.2f}" if played else "–"
    without = "no gold path" if played else "–"
    span = f"{min(lengths)} to {max(lengths)}" if lengths else without
    return str(len(verdicts)), str(solved) if lengths else "–", nothing, span
