"""`cope envs` and `cope tasks`: what there is to play."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from cope_gym.cli.common import BaseUrl, Env, Split, out, waiting
from cope_gym.registration import IDS
from cope_gym.server import connect, installed
from cope_gym.tasklist import tasks as task_list


def envs(base_url: BaseUrl = None) -> None:
    """List the environments, those of a server where one is named."""
    if base_url or os.environ.get("COPE_BASE_URL"):
        table = Table("environment", "splits", "steps", "actions", "reward")
        for facts in connect(None, base_url).envs():
            splits = ", ".join(facts["splits"])
            table.add_row(
                facts["name"], splits, str(facts["max_steps"]), facts["action_format"], facts["reward_scale"]
            )
    else:
        table = Table("environment", "Gymnasium id", "here")
        for name, id in IDS.items():
            table.add_row(name, id, "installed" if installed(name) else f"[dim]cope install {name}[/]")
    out.print(table)


def tasks(
    env: Env,
    split: Split = None,
    limit: Annotated[int, typer.Option(min=0, help="Ids to print; 0 for all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, all tasks.")] = False,
    base_url: BaseUrl = None,
) -> None:
    """List the tasks of a split."""
    with waiting(f"asking for the tasks of {env}"):
        found = task_list(env, split, base_url=base_url)
    if as_json:
        for task in found.infos:
            out.print_json(json.dumps(vars(task)), indent=None)
        return
    shown = found.infos[: limit or None]
    table = Table("task", "category", title=f"{found.env}, {found.split}: {len(found)} tasks")
    for task in shown:
        table.add_row(task.id, task.category)
    if len(shown) < len(found):
        table.add_row(f"[dim]… {len(found) - len(shown)} more, --limit 0 for all[/]", "")
    out.print(table)
    counts = Counter(task.category for task in found.infos)
    if 1 < len(counts) <= 60:
        out.print("  ".join(f"{name} [bold]{count}[/]" for name, count in sorted(counts.items())))
