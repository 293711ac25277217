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
from typing import Any, Dict, List, Tuple

if __name__ == "__main__":
    # As in `main.py`: the package is bound by its folder, which this file's folder leads to.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from main import bind_package  # pyright: ignore

    bind_package()

from env_servers.adapter import Adapter, Episode
from env_servers.pool.memory import group_rss
from env_servers.worker.host import load_adapter

Plan = List[Dict[str, Any]]


def _now() -> float:
    # AppWorld stops the usual clocks of its process while a world is open; this one goes on.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def play(name: str, plan: Plan, in_turn: bool) -> Dict[str, Any]:
    """Plays the sessions of the plan, all at once or each when the one before it has been closed."""
    begin = _now()
    adapter = load_adapter(name)({})
    start = _now() - begin
    resets: List[float] = []
    steps: List[float] = []
    played = [_together(adapter, some, resets, steps) for some in ([[one] for one in plan] if in_turn else [plan])]
    adapter.close()
    seconds, rss = sum(took for took, _ in played), max(held for _, held in played)
    return {"start": start, "resets": resets, "steps": steps, "seconds": seconds, "rss": rss}


def _together(adapter: Adapter, plan: Plan, resets: List[float], steps: List[float]) -> Tuple[float, int]:
    """Starts every session, then steps them in turn, one action each, until none has one left.

    Returns:
        Seconds that the steps took all together, and bytes in memory after them.
    """
    episodes: List[Episode] = []
    for session in plan:
        begin = _now()
        episodes.append(adapter.start(session["task_id"], 0, session["options"]))
        resets.append(_now() - begin)
    left = [list(reversed(session["actions"])) for session in plan]
    begin = _now()
    while any(left):
        for episode, actions in zip(episodes, left):  # noqa: B905 (Python 3.9 has no `strict`)
            if actions:
                before = _now()
                result = episode.step(actions.pop())
                steps.append(_now() - before)
                if result.terminated or result.truncated:
                    actions.clear()
    seconds = _now() - begin
    rss = group_rss().get(os.getpgrp(), 0)
    for episode in episodes:
        episode.close()
    return seconds, rss


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
    parser.add_argument("--in-turn", action="store_true", help="Play the sessions one after another.")
    arguments = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    # Whatever a benchmark prints must not get into the result.
    os.dup2(2, 1)
    with answer:
        if arguments.plan:
            json.dump(plan_for(arguments.adapter, arguments.plan, arguments.steps), answer)
        else:
            json.dump(play(arguments.adapter, json.load(sys.stdin), arguments.in_turn), answer)


if __name__ == "__main__":
    main()
