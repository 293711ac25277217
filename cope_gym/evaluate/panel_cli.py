"""The command `cope panel`: fixed lists of tasks, and the published protocols that they are played under."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from cope_gym.cli.common import BaseUrl, Options, out
from cope_gym.evaluate import panels
from cope_gym.evaluate.cli import pairs
from cope_gym.evaluate.protocols import PUBLISHED
from cope_gym.evaluate.service import Service
from cope_gym.server import connect

panel = typer.Typer(help="Fixed lists of tasks that make results comparable.", no_args_is_help=True)


@panel.command("list")
def list_panels() -> None:
    """Names the shipped panels."""
    table = Table(Column("panel", no_wrap=True), "split", "tasks", "options", "")
    for name in panels.names():
        one = panels.load(name)
        sentence, more, _ = one.description.partition(". ")
        options = ", ".join(f"{key}={value}" for key, value in one.options.items())
        table.add_row(name, one.split, str(len(one.task_ids)), options, f"{sentence} …" if more else sentence)
    out.print(table)
    out.print("`cope panel show NAME` prints the whole description (…) and the task ids.")


@panel.command()
def protocols() -> None:
    """Lists the published protocols; the first of an environment is what `cope eval` does unless told otherwise."""
    table = Table("environment", "protocol", "turns", "tokens", "T", "samples", "tasks", "measure", "source")
    for env, presets in sorted(PUBLISHED.items()):
        for name, one in presets.items():
            numbers = (str(one.max_turns), str(one.max_tokens), f"{one.temperature:g}", str(one.samples))
            table.add_row(env, name, *numbers, one.tasks, one.measure, one.source)
    out.print(table)


@panel.command()
def show(name: str) -> None:
    """Prints what a panel is, its digest and its task ids."""
    one = panels.load(name)
    if one.description:
        out.print(one.description, soft_wrap=True, highlight=False)
    out.print(f"{one.env} {one.split} {json.dumps(dict(one.options))}\ndigest {one.digest}")
    for task in one.task_ids:
        out.print(task)


@panel.command()
def verify(name: str, base_url: BaseUrl = None) -> None:
    """Checks that a server has the same tasks with the same first observations."""
    one = panels.load(name)
    service = Service(one.env, connect(one.env, base_url))
    known = [task.id for task in service.client.tasks(one.env, one.split)]
    problems = panels.verify(one, known, lambda task: service.first_observation(task, one.options))
    for problem in problems:
        out.print(problem)
    if problems:
        raise typer.Exit(1)
    out.print(f"{name}: {len(one.task_ids)} tasks and {len(one.observations)} first observations agree.")


@panel.command()
def build(
    path: Annotated[Path, typer.Argument(help="File to write, ENV_NAME.json.")],
    env: Annotated[str, typer.Option(help="Short environment name.")],
    split: Annotated[str, typer.Option(help="The benchmark's split.")],
    per_category: Annotated[int, typer.Option(min=1, help="Tasks of each category, spread evenly.")] = 4,
    category: Annotated[list[str] | None, typer.Option(help="Only these categories; may be repeated.")] = None,
    options: Options = None,
    description: Annotated[str, typer.Option(help="One sentence.")] = "",
    observations: Annotated[
        bool,
        typer.Option("--observations/--no-observations", help="Record the first ones; not where a model writes them."),
    ] = True,
    base_url: BaseUrl = None,
) -> None:
    """Builds a panel from a server's tasks, without chance."""
    service = Service(env, connect(env, base_url))
    built = service.panel(path.stem, split, per_category, pairs(options), category or [], description, observations)
    path.write_text(built.to_json(), encoding="utf-8")
    out.print(f"{path}: {len(built.task_ids)} tasks, digest {built.digest}")
