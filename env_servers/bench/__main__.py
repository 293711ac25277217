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
from env_servers.bench.capacity import COSTS, FRONT, Agents, plan, simulate
from env_servers.bench.load import Plan, drive, gold_plans, percentile
from env_servers.bench.serving import Served, flags, serving

app = typer.Typer(help="Measure the environment service, benchmarks and the objectives.", no_args_is_help=True)

_SLEEPER = "sleep=env_servers.bench.sleeper:SleepAdapter"
_HEAD = (
    "| sessions | success | create p50 | p95 | p99 | step p50 | p95 | p99 | steps/s | front ms a step | workers ms "
    "| front MB | workers | MB |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)

_SIMULATED = 40_000
_CAPACITY_HEAD = (
    "| benchmark | episodes | steps/s | fronts | workers | cores | GB | of ideal | cores busy | step p50 ms "
    "| p95 ms |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


@app.command()
def service(
    env: Annotated[str, typer.Option(help="Installed benchmark, NAME=MODULE:CLASS, or `sleep`.")] = "sleep",
    sessions: Annotated[str, typer.Option(help="Sessions at a time, separated by commas.")] = "1,8,32,128",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each session.")] = 20,
    action: Annotated[
        str | None, typer.Option(help="What each step does (for `sleep`: seconds). Default: solutions of the tasks.")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Different tasks.")] = 16,
    together: Annotated[bool, typer.Option(help="All sessions in one request (`step_many`), round by round.")] = False,
    serve: Annotated[str, typer.Option(help="Further options for `cope serve`.")] = "",
    output: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
) -> None:
    """Create, step and memory at several numbers of sessions, over HTTP, on this machine."""
    counts = [int(part) for part in sessions.split(",")]
    if env == "sleep":
        env, action = _SLEEPER, action or "1.0"
    env, served_by = flags(env)
    console = Console()
    rows: list[dict[str, Any]] = []
    console.print(f"{env}, {steps} steps, {os.cpu_count()} cores\n\n{_HEAD}", highlight=False, soft_wrap=True)
    plans = [] if action is None else [Plan([action] * steps)]
    if not plans:
        with serving(served_by) as served:  # apart: a search for solutions has a worker of its own
            plans = asyncio.run(gold_plans(served.url, served.token, env, min(tasks, max(counts)), steps))
    for count in counts:
        with serving([*served_by, "--max-sessions", str(count), *serve.split()]) as served:
            rows.append(asyncio.run(_measured(served, env, count, plans, together)))
        console.print(_row(rows[-1]), highlight=False, soft_wrap=True)
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


@app.command()
def capacity(
    sessions: Annotated[str, typer.Option(help="Concurrent episodes, separated by commas.")] = "1000,10000,100000",
    think: Annotated[float, typer.Option(min=0.01, help="Seconds between a reply and the next action.")] = 5.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of an episode.")] = 30,
    load: Annotated[float, typer.Option(min=0.05, max=0.95, help="How busy cores may be.")] = 0.6,
) -> None:
    """What so many concurrent episodes need, from measured costs, checked by a simulation."""
    console = Console()
    console.print(
        f"{think:g} s between steps, {steps} steps an episode\n\n{_CAPACITY_HEAD}", highlight=False, soft_wrap=True
    )
    for cost in COSTS:
        for count in map(int, sessions.split(",")):
            agents = Agents(count, think, steps)
            need = plan(cost, FRONT, agents, load)
            seen = simulate(cost, FRONT, agents, need, rounds=max(1.5, min(4.0, _SIMULATED / count)))
            cells = [cost.name, f"{count:,}", f"{seen.ideal:,.0f}", str(need.fronts), f"{need.workers:,}"]
            cells += [f"{need.cores:,}", f"{need.memory / 2**30:,.1f}", f"{seen.throughput / seen.ideal:.1%}"]
            cells += [f"{seen.busy:.0%}", *(f"{1000 * seen.wait(share):.0f}" for share in (0.5, 0.95))]
            console.print("| " + " | ".join(cells) + " |", highlight=False, soft_wrap=True)


async def _measured(served: Served, env: str, count: int, plans: list[Plan], together: bool) -> dict[str, Any]:
    cpu: list[tuple[float, float]] = []
    seen: dict[str, Any] = {}

    def look() -> None:
        cpu.append(served.cpu_seconds())
        seen["front"], seen["workers_rss"] = served.memory()
        seen["workers"] = len(served.workers()) - 1  # without the one that answers questions

    load = await drive(served.url, served.token, env, count, plans, look, together)
    return {
        **asdict(load),
        "success": load.success,
        "env": env,
        "cpu": [b - a for a, b in zip(*cpu, strict=True)],
        **seen,
    }


def _row(row: dict[str, Any]) -> str:
    cells = [str(row["sessions"]), f"{row['success']:.2%}"]
    cells += [f"{1000 * percentile(row[name], q):.1f}" for name in ("create", "step") for q in (0.5, 0.95, 0.99)]
    steps = len(row["step"])
    cells += [f"{steps / row['seconds']:.0f}", *(f"{1000 * cpu / max(1, steps):.2f}" for cpu in row["cpu"])]
    cells += [f"{row['front'] / 2**20:.0f}", str(row["workers"]), f"{row['workers_rss'] / 2**20:.0f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    app()
