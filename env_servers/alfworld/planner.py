"""Finds commands that win a game, with TextWorld's own planner. Imported in the benchmark's process only.

The planner keeps something of the problems before (then it may search without end), and giving its library back after
a search breaks the next one that is loaded. So every search runs in a short-lived copy of the process.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import select
import signal
import time

from env_servers.alfworld import engine, textworld_patch
from env_servers.alfworld.game import Game

SECONDS = 60.0


def solve(game: Game, seconds: float = SECONDS) -> tuple[str, ...] | None:
    """Returns commands that win from the game's start, or `None` if none were found in the given time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _search(game, writing)
    os.close(writing)
    try:
        found = _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return tuple(json.loads(found)) if found else None


def _read(reading: int, deadline: float) -> bytes:
    content = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            return content
        content += part
    return b""


def _search(game: Game, writing: int) -> None:
    """Runs in the copy, which must never come back to the caller's code."""
    try:
        # The service takes the worker for alive as long as anyone holds its socket.
        os.dup2(writing, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        found = _plan(game)
        with os.fdopen(3, "w") as out:
            json.dump(found, out)
    finally:
        os._exit(0)


def _plan(game: Game) -> list[str] | None:
    world = engine.World()
    world.start(game)
    inner = world.inner
    inner.downward_lib.load_sas_replan(textworld_patch.planner_input(game.domain, game.problem).encode())
    return list(inner._pddl_state.replan(inner._entity_infos)) or None
