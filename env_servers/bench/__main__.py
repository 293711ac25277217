"""`python -m env_servers.bench service`, `… chaos`: prints a table in Markdown, writes JSON where asked."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from env_servers.bench import chaos as chaos_run
from env_servers.bench.load import Load, drive, percentile
from env_servers.bench.serving import Served, flags, serving

app = typer.Typer(help="Measure the environment service.", no_args_is_help=True)

_SLEEPER = "sleep=env_servers.bench.sleeper:SleepAdapter"
_HEAD = (
    "| sessions | success | steps/s | create p50 | step p50 | p95 | p99 | front MB | workers MB |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


@app.command()
def service(
    env: Annotated[str, typer.Option(help="Installed benchmark, NAME=MODULE:CLASS, or `sleep`.")] = "sleep",
    sessions: Annotated[str, typer.Option(help="Sessions at a time, separated by commas.")] = "512,2048,4096",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each session.")] = 5,
    action: Annotated[str, typer.Option(help="What each step does; seconds for `sleep`.")] = "1.0",
    task: Annotated[str | None, typer.Option(help="Task of all sessions; the service picks by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
) -> None:
    """Create, step and memory at several numbers of sessions, over HTTP, on this machine."""
    counts = [int(part) for part in sessions.split(",")]
    env, served_by = flags(_SLEEPER if env == "sleep" else env)
    console = Console()
    rows: list[dict[str, Any]] = []
    console.print(f"{env}, action {action!r}, {steps} steps each, {os.cpu_count()} cores\n\n{_HEAD}", highlight=False)
    for count in counts:
        with serving([*served_by, "--max-sessions", str(count)]) as served:
            load, memory = asyncio.run(_measured(served, env, count, [action] * steps, task))
        rows.append({**asdict(load), "env": env, "action": action, "front": memory[0], "workers": memory[1]})
        console.print(_row(load, memory), highlight=False, soft_wrap=True)
    if output is not None:
        output.write_text(json.dumps(rows))


@app.command()
def chaos(
    env: Annotated[list[str], typer.Option(help="Installed benchmark or NAME=MODULE:CLASS; again for more.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each benchmark.")] = 150,
    kills: Annotated[int, typer.Option(min=0, help="Workers of each benchmark to kill.")] = 20,
    drop: Annotated[float, typer.Option(min=0, max=0.9, help="Share of replies that get lost.")] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Steps of an episode at most.")] = 12,
    parallel: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 8,
    tasks: Annotated[int, typer.Option(min=1, help="Different tasks of each benchmark.")] = 50,
) -> None:
    """Play gold paths undisturbed, then while workers die and replies get lost: every transcript must be equal."""
    console = Console()
    results: list[chaos_run.Chaos] = []
    for name in env:
        results.append(chaos_run.run(name, episodes, kills, drop, steps, parallel, tasks))
        console.print(results[-1].sentence(), highlight=False, soft_wrap=True)
    whole = chaos_run.total(results)
    if len(env) > 1:
        console.print(whole.sentence(), highlight=False, soft_wrap=True)
    raise typer.Exit(int(not whole.passed))


async def _measured(
    served: Served, env: str, count: int, actions: list[str], task: str | None
) -> tuple[Load, tuple[int, int]]:
    memory = (0, 0)

    def look() -> None:
        nonlocal memory
        memory = served.memory()

    load = await drive(served.url, served.token, env, count, actions, [task] if task else [], look)
    return load, memory


def _row(load: Load, memory: tuple[int, int]) -> str:
    milliseconds = [1000 * percentile(load.create, 0.5), *(1000 * percentile(load.step, q) for q in (0.5, 0.95, 0.99))]
    cells = [str(load.sessions), f"{load.success:.2%}", f"{load.steps_per_second:.0f}"]
    cells += [f"{value:.1f} ms" for value in milliseconds] + [f"{size / 2**20:.0f}" for size in memory]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    app()
