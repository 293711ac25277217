"""Plays fixed actions through an adapter inside the benchmark's interpreter and prints how long each call took.

`<benchmark's python> -I …/worker/measure.py --adapter M:C`, a plan as JSON on standard input, the result on standard
output. `env_servers/bench_env.py` writes the one and reads the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, List

if __name__ == "__main__":
    # As in `main.py`: the package is bound by its folder, which this file's folder leads to.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from main import bind_package  # pyright: ignore

    bind_package()

from env_servers.adapter import Adapter, Episode
from env_servers.pool.memory import group_rss
from env_servers.worker.host import load_adapter

Plan = List[Dict[str, Any]]


def play(name: str, plan: Plan) -> Dict[str, Any]:
    """Starts every session of the plan, then steps them in turn, one action each, until none has one left."""
    begin = time.perf_counter()
    adapter = load_adapter(name)({})
    start = time.perf_counter() - begin
    resets: List[float] = []
    steps: List[float] = []
    episodes: List[Episode] = []
    for session in plan:
        begin = time.perf_counter()
        episodes.append(adapter.start(session["task_id"], 0, session["options"]))
        resets.append(time.perf_counter() - begin)
    left = [list(reversed(session["actions"])) for session in plan]
    begin = time.perf_counter()
    while any(left):
        for episode, actions in zip(episodes, left):  # noqa: B905 (Python 3.9 has no `strict`)
            if actions:
                before = time.perf_counter()
                result = episode.step(actions.pop())
                steps.append(time.perf_counter() - before)
                if result.terminated or result.truncated:
                    actions.clear()
    seconds = time.perf_counter() - begin
    rss = group_rss().get(os.getpgrp(), 0)
    for episode in episodes:
        episode.close()
    adapter.close()
    return {"start": start, "resets": resets, "steps": steps, "seconds": seconds, "rss": rss}


def plan_for(name: str, sessions: int, steps: int) -> Dict[str, Any]:
    """Returns sessions of different categories, with the first actions of the tasks' gold paths, and how many fit."""
    adapter: Adapter = load_adapter(name)({})
    first: Dict[str, str] = {}
    for task in adapter.tasks(adapter.splits()[0]):
        first.setdefault(task.category, task.id)
    ids = list(first.values())[:sessions]
    actions = [(adapter.gold(task_id, {}) or [])[:steps] for task_id in ids]
    adapter.close()
    if not any(actions):
        raise SystemExit(f"{name} has no gold paths to measure with.")
    plan: Plan = [
        {"task_id": ids[number % len(ids)], "options": {}, "actions": actions[number % len(ids)]}
        for number in range(sessions)
    ]
    return {"plan": plan, "places": adapter.facts.sessions_per_worker}


def main() -> None:
    """Reads a plan, prints what came of it."""
    parser = argparse.ArgumentParser(description="Times an adapter.")
    parser.add_argument("--adapter", required=True, help="package.module:Class")
    parser.add_argument("--plan", type=int, metavar="SESSIONS", help="Print a plan instead of playing one.")
    parser.add_argument("--steps", type=int, default=30, help="Actions a session of the plan.")
    arguments = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    # Whatever a benchmark prints must not get into the result.
    os.dup2(2, 1)
    with answer:
        if arguments.plan:
            json.dump(plan_for(arguments.adapter, arguments.plan, arguments.steps), answer)
        else:
            json.dump(play(arguments.adapter, json.load(sys.stdin)), answer)


if __name__ == "__main__":
    main()
