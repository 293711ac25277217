"""Measures a benchmark: the stock engine, our adapter in process, and the service over HTTP, in one run.

All three play the same actions of the same tasks. `cope bench env NAME` prints the table; with `--in-turn` it plays
episodes one after another in one process, where all but the first find the engine loaded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import requests
import typer
from rich.console import Console
from rich.table import Column, Table

from env_servers.catalog import Entry
from env_servers.install import InstallError, entry_of, environment, worker_env
from env_servers.pool.memory import group_rss

_MEASURE = Path(__file__).parent / "worker" / "measure.py"
_TIMEOUT = 180.0

Plan = list[dict[str, Any]]


class BenchError(Exception):
    """A measurement that cannot be made."""


@dataclass(frozen=True)
class Measurement:
    """One row of the table; times in seconds, memory in bytes."""

    what: str
    sessions: int
    start: float
    resets: Sequence[float]
    steps: Sequence[float]
    seconds: float
    rss: int


def measure(name: str, sessions: Sequence[int], steps: int, in_turn: bool = False) -> Iterator[Measurement]:
    """Yields one measurement after another.

    Args:
        name: A benchmark of the catalogue.
        sessions: How many sessions at a time; one measurement of each. The stock engine is measured with one only, and
            one process only with as many as a worker takes.
        steps: Actions a session.
        in_turn: Whether the sessions come one after another: as many as asked for, and none through the service.
    """
    entry = entry_of(name)
    planned = json.loads(_run(entry, entry.adapter, "", "--plan", str(max(sessions)), "--steps", str(steps)))
    plan: Plan = planned["plan"]
    rows = [(entry.adapter, "in process", count) for count in sessions if in_turn or count <= planned["places"]]
    if find_spec(f"env_servers.{name}.stock") is not None:
        counts = sessions if in_turn else [1]
        rows = [(f"env_servers.{name}.stock:ADAPTER", "stock engine", count) for count in counts] + rows
    for adapter, what, count in rows:
        yield _in_process(entry, adapter, what, plan[:count], in_turn)
    if not in_turn:
        for count in sessions:
            yield _over_http(entry, plan[:count])


def env(
    name: Annotated[str, typer.Argument(help="The benchmark.")],
    sessions: Annotated[list[int] | None, typer.Option(min=1, help="Sessions at a time; again for more.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Actions a session.")] = 30,
    in_turn: Annotated[bool, typer.Option("--in-turn", help="One session after another, in one process.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one measurement a line.")] = False,
) -> None:
    """Measure a benchmark: stock engine, adapter in process, service over HTTP."""
    console = Console()
    table = Table(Column("", no_wrap=True), "n", "start s", "reset ms", "step ms", "p95 ms", "steps/s", "RSS MB")
    try:
        with Console(stderr=True).status(f"measuring {name}"):
            for one in measure(name, sorted(set(sessions or [1, 16])), steps, in_turn):
                if as_json:
                    console.print_json(json.dumps(_row(one)), indent=None)
                table.add_row(*(f"{v:,.1f}" if isinstance(v, float) else str(v) for v in _row(one).values()))
    except (InstallError, BenchError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if not as_json:
        console.print(table)


def _row(one: Measurement) -> dict[str, Any]:
    ordered = sorted(one.steps)
    return {
        "what": one.what,
        "sessions": one.sessions,
        "start_s": one.start,
        "reset_ms": 1e3 * statistics.median(one.resets),
        "step_p50_ms": 1e3 * statistics.median(ordered),
        "step_p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))],
        "steps_per_s": len(ordered) / one.seconds,
        "rss_mb": one.rss / 2**20,
    }


def _run(entry: Entry, adapter: str, text: str, *flags: str) -> str:
    command = [str(environment(entry.name)), "-I", str(_MEASURE), "--adapter", adapter, *flags]
    variables = {**os.environ, **worker_env(entry.name)}
    done = subprocess.run(
        command, input=text, stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    if done.returncode:
        raise BenchError(f"{adapter} could not be measured; what went wrong stands above.")
    return done.stdout


def _in_process(entry: Entry, adapter: str, what: str, plan: Plan, in_turn: bool) -> Measurement:
    played = _run(entry, adapter, json.dumps(plan), *(["--in-turn"] if in_turn else []))
    return Measurement(what=f"{what}, in turn" if in_turn else what, sessions=len(plan), **json.loads(played))


def _over_http(entry: Entry, plan: Plan) -> Measurement:
    begin = time.perf_counter()
    with _server(entry) as (url, pid), ThreadPoolExecutor(len(plan)) as pool:
        start = time.perf_counter() - begin
        players = [_Player(url, entry.name, session) for session in plan]
        resets = list(pool.map(_Player.open, players))
        begin = time.perf_counter()
        steps = [step for played in pool.map(_Player.play, players) for step in played]
        seconds = time.perf_counter() - begin
        return Measurement("over HTTP", len(plan), start, resets, steps, seconds, _tree_rss(pid))


class _Player:
    """One client with one session."""

    def __init__(self, url: str, env: str, session: dict[str, Any]) -> None:
        self._http = requests.Session()
        self._url = f"{url}/v1/sessions"
        self._actions = session["actions"]
        self._body = {"env": env, "task_id": session["task_id"], "options": session["options"], "max_steps": 10_000}

    def open(self) -> float:
        begin = time.perf_counter()
        session = self._post(self._url, self._body)
        self._url, self._epoch = f"{self._url}/{session['session_id']}/step", session["epoch"]
        return time.perf_counter() - begin

    def play(self) -> list[float]:
        taken: list[float] = []
        for index, action in enumerate(self._actions):
            begin = time.perf_counter()
            reply = self._post(self._url, {"step_index": index, "action": action, "epoch": self._epoch})
            taken.append(time.perf_counter() - begin)
            if reply["terminated"] or reply["truncated"]:
                break
        return taken

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(url, json=body, timeout=_TIMEOUT)
        if not reply.ok:
            raise BenchError(f"The service answered {reply.status_code}: {reply.text[:300]}")
        return reply.json()


@contextmanager
def _server(entry: Entry) -> Generator[tuple[str, int]]:
    """Runs a service of its own for one measurement."""
    with tempfile.TemporaryDirectory() as folder:
        port = Path(folder) / "port"
        command = [sys.executable, "-m", "env_servers.front", "--env", entry.name, "--port", "0"]
        process = subprocess.Popen(
            [*command, "--port-file", str(port), "--log-level", "error"], start_new_session=True
        )
        try:
            deadline = time.monotonic() + _TIMEOUT
            while not port.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError("The service did not start; what went wrong stands above.")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port.read_text().strip()}", process.pid
        finally:
            process.terminate()
            process.wait()


def _tree_rss(pid: int) -> int:
    """Returns the resident bytes of a service and its workers, each of which leads a process group of its own."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    groups = {pid, *(int(child) for file in children for child in file.read_text().split())}
    rss = group_rss()
    return sum(rss.get(group, 0) for group in groups)


if __name__ == "__main__":
    typer.run(env)
