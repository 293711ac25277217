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
from rich.table import Table

from cope_gym.cli.common import BaseUrl, Env, Options, out, progress, waiting
from cope_gym.client import Client, TaskInfo
from cope_gym.errors import CopeError
from cope_gym.evaluate.cli import pairs
from cope_gym.server import connect
from cope_gym.tasklist import short_name


@dataclass(frozen=True)
class Verdict:
    """What became of one task.

    Attributes:
        task: The task.
        steps: Length of the gold path, `None` where the benchmark has none.
        faults: What was not as it should be.
    """

    task: TaskInfo
    steps: int | None
    faults: list[str]


def check(
    env: Env,
    split: Annotated[list[str] | None, typer.Option(help="Splits to draw from; again for more. Default: all.")] = None,
    sample: Annotated[int, typer.Option(help="Tasks of each category and split; 0 for all.")] = 1,
    task: Annotated[list[str] | None, typer.Option(help="Only these task ids; again for more.")] = None,
    jobs: Annotated[int, typer.Option(help="Episodes at a time.")] = 4,
    option: Options = None,
    base_url: BaseUrl = None,
) -> None:
    """Check that the gold path scores 1 and that doing nothing solves nothing. The step limit is lifted."""
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
    _report(name, options, verdicts)
    if any(verdict.faults for verdict in verdicts):
        raise typer.Exit(1)


def judge(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any]) -> Verdict:
    """Plays a task twice: along its gold path, and not at all."""
    try:
        gold = client.gold(env, task.id, options)
        faults = _idle(client, env, task, options)
        if gold is not None:
            faults += _solve(client, env, task, options, gold)
    except CopeError as error:
        return Verdict(task, None, [f"{error.type}: {error}"])
    return Verdict(task, None if gold is None else len(gold), faults)


def _solve(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any], gold: list[Any]) -> list[str]:
    limit = len(gold) + 1
    with closing(client.create(env, task.id, seed=0, options=options, max_steps=limit)) as session:
        for action in gold:
            if session.reply.done:
                break
            session.step(action)
        reply = session.reply
    faults: list[str] = []
    if not reply.info["success"] or reply.info["score"] != 1.0:
        faults.append(f"the gold path ends with score {reply.info['score']:.2f} after {reply.step_index} steps")
    if not reply.terminated:
        faults.append("the gold path does not end the episode")
    return faults


def _idle(client: Client, env: str, task: TaskInfo, options: Mapping[str, Any]) -> list[str]:
    with closing(client.create(env, task.id, seed=0, options=options)) as session:
        first = session.reply
    if first.info["success"] or first.done:
        return ["the task is solved before the first step"]
    return [] if first.info["score"] < 1.0 and first.reward == 0.0 else ["doing nothing is rewarded"]


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
    table = Table("category", "tasks", "gold path 1", "nothing 0", "gold steps", title=f"{env} {dict(options) or ''}")
    for category in sorted({verdict.task.category for verdict in verdicts}):
        here = [verdict for verdict in verdicts if verdict.task.category == category]
        lengths = [verdict.steps for verdict in here if verdict.steps is not None]
        idle = sum(not any("nothing" in fault or "before" in fault for fault in verdict.faults) for verdict in here)
        solved = sum(not verdict.faults for verdict in here)
        span = f"{min(lengths)} to {max(lengths)}" if lengths else "no gold path"
        table.add_row(category, str(len(here)), f"{solved}" if lengths else "–", str(idle), span)
    out.print(table)
    for verdict in verdicts:
        for fault in verdict.faults:
            out.print(f"[red]{escape(verdict.task.id)}[/] ({verdict.task.split}): {escape(fault)}")
    bad = sum(bool(verdict.faults) for verdict in verdicts)
    out.print(
        f"{len(verdicts)} tasks, " + (f"[red]{bad} with faults[/]" if bad else "[green]all as they should be[/]")
    )
