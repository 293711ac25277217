"""One running episode on the service, as its client sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cope_gym.errors import InputError

if TYPE_CHECKING:
    from cope_gym.client import Client

Action = Any
"""A JSON value; a string for most benchmarks."""


@dataclass(frozen=True)
class Reply:
    """What an episode answers: to its start, or to a step.

    Attributes:
        step_index: Number of steps executed so far.
        observation: Text as the benchmark words it.
        reward: This step's reward.
        terminated: The task ended.
        truncated: A limit ended the episode.
        info: `score`, `raw_score`, `success`, `action_valid` and more, see `docs/protocol.md`.
    """

    step_index: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Reply:
        """Reads the service's JSON."""
        return cls(
            int(data["step_index"]),
            data["observation"],
            float(data["reward"]),
            bool(data["terminated"]),
            bool(data["truncated"]),
            data["info"],
        )


@dataclass(frozen=True)
class TaskInfo:
    """One task: its stable `id`, its `split`, and the `category` that results are grouped by."""

    id: str
    split: str
    category: str


class SessionState:
    """What a client knows of an episode; how it is stepped is the business of `Session` and `aio.AsyncSession`.

    Attributes:
        id: The service's id; `Client.resume(id)` finds the episode again after a crash.
        base_url: The server that runs it.
        epoch: Which attachment this is; a later one supersedes it.
        env: Short environment name.
        task_id: The task, also where the seed picked it.
        split: The task's split.
        category: What results are grouped by.
        seed: The episode's seed.
        options: Environment options.
        max_steps: Step limit.
        lease_seconds: How long the service keeps an idle session.
        reply: The last reply; the first observation before any step.
        transcript: Steps so far as the service recorded them; only after `resume`.
    """

    def __init__(self, base_url: str, data: Mapping[str, Any]) -> None:
        self.base_url = base_url
        self.id: str = data["session_id"]
        self.epoch: int = data["epoch"]
        self.env: str = data["env"]
        self.task_id: str = data["task_id"]
        self.split: str = data["split"]
        self.category: str = data["category"]
        self.seed: int | None = data["seed"]
        self.options: dict[str, Any] = data["options"]
        self.max_steps: int = data["max_steps"]
        self.lease_seconds: float = data["lease_seconds"]
        self.transcript: list[dict[str, Any]] = data.get("transcript", [])
        self.reply = Reply.read(data)

    @property
    def path(self) -> str:
        """Its route."""
        return f"/v1/sessions/{self.id}"

    def request(self, action: Action) -> dict[str, Any]:
        """Returns the body of the next step."""
        return {"step_index": self.reply.step_index, "action": action, "epoch": self.epoch}


class Session(SessionState):
    """One running episode. Not for several threads at once; a client's sessions are independent of each other."""

    def __init__(self, client: Client, base_url: str, data: Mapping[str, Any]) -> None:
        super().__init__(base_url, data)
        self._client = client

    def step(self, action: Action) -> Reply:
        """Executes one action exactly once, whatever happens to the connection.

        Raises:
            SessionError: The episode is over, or another client has taken it.
            InfrastructureError: The service failed; no reward stands for that.
        """
        self.reply = Reply.read(self._client.call("POST", self.base_url, f"{self.path}/step", self.request(action)))
        return self.reply

    def fork(self) -> Session:
        """Returns a second session in the same state; from here on the two are independent."""
        data = self._client.call("POST", self.base_url, f"{self.path}/fork", key=uuid4().hex)
        return self._client.adopt(self.base_url, data)

    def close(self) -> None:
        """Frees the session; harmless when it is already gone, or its server."""
        self._client.release(self)


def mapping(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a copy of the options.

    Raises:
        InputError: They are no mapping, e.g. a text.
    """
    if options is not None and not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"options maps names to values, e.g. {{'NAME': 'value'}}; {options!r} does not.", type="bad_option"
        )
    return dict(options or {})


def start_request(
    env: str,
    task_id: str | None,
    split: str | None,
    seed: int | None,
    options: Mapping[str, Any] | None,
    max_steps: int | None,
) -> dict[str, Any]:
    """Returns the body that starts an episode, without what was not asked for."""
    asked: dict[str, Any] = {"env": env, "task_id": task_id, "split": split, "seed": seed, "max_steps": max_steps}
    asked["options"] = mapping(options) or None
    return {name: value for name, value in asked.items() if value is not None}
