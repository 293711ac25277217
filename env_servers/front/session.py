"""One session: what it was started with, what happened in it, and the documents that describe it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from env_servers.errors import ServiceError
from env_servers.front.actions import parse
from env_servers.pool.base import Worker
from env_servers.worker.framing import to_json

Reply = dict[str, Any]
"""A step document: `step_index`, `observation`, `reward`, `terminated`, `truncated`, `info`."""


@dataclass(frozen=True)
class Origin:
    """What fixes an episode, together with its actions.

    Attributes:
        env: Benchmark.
        task_id: Task.
        split: The task's split.
        category: The task's category.
        seed: Seed, drawn by the service when the client named none.
        options: The benchmark's options.
        max_steps: Step limit of the service.
        versions: The adapter's metadata; another version cannot rebuild the episode.
    """

    env: str
    task_id: str
    split: str
    category: str
    seed: int
    options: dict[str, Any]
    max_steps: int
    versions: dict[str, Any]


@dataclass
class Running:
    """The step in execution."""

    index: int
    action: str
    task: asyncio.Task[Reply]


@dataclass(frozen=True)
class Turn:
    """One executed call as it is kept: thousands of sessions hold thousands of these, hence the packed reply.

    Attributes:
        action: Canonical JSON; "" for the start.
        reply: The reply's JSON.
        record: What the adapter wants back when the episode is rebuilt, JSON.
    """

    action: str
    reply: bytes
    record: bytes


@dataclass
class Session:
    """A session's state; the rules are in `rules.py`, the work in `engine.py`.

    Attributes:
        id: Unguessable id.
        origin: What it was started with.
        client_id: Whatever the client calls itself.
        epoch: Which attachment may step.
        replayable: Whether the same calls give the same replies.
        turns: The start and every executed action.
        last: The latest reply.
        born: Number of steps it began with; a fork has a past.
        intent: Canonical JSON of an action that may or may not have been executed when the service died.
        worker: Where the engine lives; `None` when the episode is over or must be rebuilt.
        running: The step in execution.
        failure: Why there are no further steps; given to every later call.
    """

    id: str
    origin: Origin
    client_id: str | None = None
    epoch: int = 1
    replayable: bool = True
    turns: list[Turn] = field(default_factory=list[Turn])
    last: Reply = field(default_factory=dict[str, Any])
    born: int = 0
    intent: str | None = None
    worker: Worker | None = None
    running: Running | None = None
    failure: ServiceError | None = None

    @property
    def steps(self) -> int:
        """Number of executed steps, which is the next step's index."""
        return len(self.turns) - 1

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.last["terminated"] or self.last["truncated"])

    @property
    def live(self) -> bool:
        """Whether it may still be stepped, and so counts against the capacity."""
        return self.failure is None and not (self.turns and self.over)

    def add(self, action: str, reply: Reply, record: Any) -> Turn:
        """Keeps an executed call."""
        turn = Turn(action, to_json(reply), to_json(record))
        self.turns.append(turn)
        self.last = reply
        self.intent = None
        return turn

    def fork(self, id: str) -> Session:
        """Returns a session with the same past."""
        past = list(self.turns)
        return Session(id, self.origin, self.client_id, turns=past, last=self.last, born=self.steps)

    def document(self, lease_seconds: float, step: int | None = None) -> dict[str, Any]:
        """Returns the session as the protocol words it, with its last reply or that of an earlier step."""
        origin = self.origin
        return {
            "session_id": self.id,
            "epoch": self.epoch,
            "env": origin.env,
            "task_id": origin.task_id,
            "split": origin.split,
            "category": origin.category,
            "seed": origin.seed,
            "options": origin.options,
            "max_steps": origin.max_steps,
            "lease_seconds": lease_seconds,
            **(self.last if step is None else json.loads(self.turns[step].reply)),
        }

    def transcript(self) -> list[dict[str, Any]]:
        """Returns every step: the first observation, then each action with its reply."""
        return [
            {"action": parse(turn.action) if turn.action else None, **json.loads(turn.reply)} for turn in self.turns
        ]


def reply_of(origin: Origin, index: int, result: dict[str, Any]) -> Reply:
    """Returns the step document for what a worker answered, with the service's own step limit applied."""
    limit = index >= origin.max_steps and not result["terminated"]
    common = {
        "task_id": origin.task_id,
        "split": origin.split,
        "category": origin.category,
        "steps": index,
        "max_steps": origin.max_steps,
    }
    return {
        "step_index": index,
        "observation": result["text"],
        "reward": result["reward"],
        "terminated": result["terminated"],
        "truncated": bool(result["truncated"] or limit),
        "info": {"raw_score": 0.0, "score": 0.0, "success": False, "action_valid": True, **result["info"], **common},
    }


def digest(reply: Reply) -> str:
    """Returns the hash by which a rebuilt episode is compared with what the client saw."""
    info = reply["info"]
    seen = [reply["observation"], reply["reward"], info["score"], reply["terminated"], reply["truncated"]]
    return hashlib.sha256(to_json(seen)).hexdigest()
