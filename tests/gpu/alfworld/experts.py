"""ALFWorld's solutions with a search before them, as episodes to clone: `experts.py OUT`.

A game's walkthrough goes straight to the things it needs, as only its author can; who clones that learns to grasp at
what is not there. Here up to four other pieces of furniture are looked at first, mostly of the kind that holds the
thing; where the thing shows up, it is taken. `cope data experts` does the rest: what is kept has won.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cope_gym.data.experts import Plan, collect
from cope_gym.evaluate import panels
from cope_gym.evaluate.service import Service
from cope_gym.server import connect

MOST_DETOURS, SAME_KIND, MOST_TURNS = 4, 0.75, 24
CHARS = (1200, 300)
HERE = Path(__file__).parent


class Lost(Exception):
    """A command did nothing, or the game outlasts its limit."""


class SearchingService(Service):
    """Solves by search and walkthrough."""

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Sequence[Any] | None:
        """Returns actions that win; the bare walkthrough where a search got in its way."""
        walkthrough = list(super().gold(task_id, options) or [])
        env = self.make_env(MOST_TURNS)
        played: list[str] = []
        won = False

        def act(command: str) -> str:
            nonlocal won
            text, _, terminated, truncated, info = env.step(command)
            played.append(command)
            won = bool(info["success"])
            if "Nothing happens" in text or (terminated or truncated) and not won:
                raise Lost(command)
            return text

        try:
            room = env.reset(options={**options, "task_id": task_id})[0]
            play(act, walkthrough, re.findall(r"[a-z]+ \d+", room.partition("you see")[2]), Random(task_id))
        except Lost:
            won = False
        finally:
            env.close()
        return played if won else walkthrough


def play(act: Callable[[str], str], walkthrough: Sequence[str], furniture: Sequence[str], chance: Random) -> None:
    """Plays a walkthrough and searches before every thing that it fetches."""
    rest = list(walkthrough)
    unseen = [name for name in furniture if not re.search(rf"\b{name}\b", " ".join(walkthrough))]
    while rest:
        fetch = re.match(r"go to (\w+) \d+\n(?:open .*\n)?take (\w+ \d+) from", "\n".join(rest))
        if not fetch:
            act(rest.pop(0))
            continue
        kind, thing = fetch.groups()
        end = fetch.group().count("\n") + 1
        if found := search(act, thing, detours(kind, unseen, chance)):
            rest = [renamed(command, thing, found) for command in rest[end:]]
        else:
            for command in rest[:end]:
                act(command)
            rest = rest[end:]


def detours(kind: str, unseen: list[str], chance: Random) -> list[str]:
    """Draws furniture to look at, and takes it off the list."""
    chosen: list[str] = []
    for _ in range(min(chance.randint(0, MOST_DETOURS), len(unseen))):
        alike = [name for name in unseen if name.split()[0] == kind]
        chosen.append(chance.choice(alike if alike and chance.random() < SAME_KIND else unseen))
        unseen.remove(chosen[-1])
    return chosen


def search(act: Callable[[str], str], thing: str, places: Sequence[str]) -> str:
    """Looks at places until a thing of that kind shows up, takes it and returns its name; "" if none does."""
    for place in places:
        text = act(f"go to {place}")
        if "is closed" in text:
            text = act(f"open {place}")
        if seen := re.search(rf"\b{thing.split()[0]} \d+\b", text):
            act(f"take {seen.group()} from {place}")
            return seen.group()
    return ""


def renamed(command: str, one: str, other: str) -> str:
    """Exchanges two names in a command."""
    return re.sub(rf"\b(?:{one}|{other})\b", lambda found: other if found.group() == one else one, command)


def main(out: Path) -> None:
    """Collects the games of the training panel."""
    service, panel = SearchingService("alfworld", connect("alfworld")), panels.load(str(HERE / "train.json"))
    system = (HERE / "system_prompt.txt").read_text(encoding="utf-8").strip()
    collected = collect(service, Plan(panel.split, panel.task_ids, panel.options, system, CHARS, concurrency=8), out)
    print(f"{collected.kept} of {len(panel.task_ids)} games in {collected.file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
