"""One episode of a benchmark as a Gymnasium environment: text in, text out.

The action is an environment command, not a model's whole turn; `cope_gym.actions` finds the one in the other, and
`cope_gym.wrappers.ParseAction` does so inside `step`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from cope_gym.client import Action, Client, Reply, Session
from cope_gym.errors import InputError
from cope_gym.server import connect
from cope_gym.session import mapping
from cope_gym.spaces import TextSpace

KEYWORDS = ("task_id", "split", "options", "max_steps", "base_url", "token", "client", "render_mode")


class CopeEnv(gym.Env[str, Any]):
    """A benchmark behind the service.

    `gym.make("cope/SciWorld-v0")` makes one. An episode is a session of the service: it begins with `reset` and ends
    with the next `reset`, `close`, or the end of the process. Actions and observations are text. `reward` is that of
    the step; `info` holds `score` in [0, 1], `raw_score`, `success`, `action_valid` and what the benchmark offers.

    Attributes:
        session: The running episode, `None` before `reset`.
        client: Its connection, shared by all environments of the process with the same address and token.

    Examples:
        >>> env = gym.make("cope/SciWorld-v0", task_id="boil/0")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("look around")
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        env: str,
        *,
        task_id: str | None = None,
        split: str | None = None,
        options: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
        base_url: str | Sequence[str] | None = None,
        token: str | None = None,
        client: Client | None = None,
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        """Prepares episodes; nothing is started before `reset`.

        Args:
            env: Short environment name, e.g. `sciworld`; `gym.make` fills it in.
            task_id: Play this task; by default the seed picks one of the split.
            split: Pick from this split; by default the training split.
            options: Options of the benchmark.
            max_steps: Step limit; by default that of the benchmark's published protocol.
            base_url: A server or several; by default `$COPE_BASE_URL`, else a local server is started and shared.
            token: Bearer token; by default `$COPE_TOKEN`.
            client: Use this connection in place of a shared one.
            render_mode: `ansi` or `None`.
            **unknown: Refused, with near names.

        Raises:
            InputError: A keyword or render mode that does not exist.
            InfrastructureError: No address was given and no local server can be started.
        """
        _refuse(unknown)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InputError(f"There is no render mode '{render_mode}'; there is 'ansi'.", type="bad_option")
        self.name = env
        self.task_id = task_id
        self.split = split
        self.options = mapping(options)
        self.max_steps = max_steps
        self.render_mode = render_mode
        self.client = client or connect(env, base_url, token)
        self.session: Session | None = None
        self._last_action: Action | None = None
        self.observation_space = TextSpace()
        self.action_space = TextSpace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: Fixes this and all later episodes of this environment.
            options: `task_id` or `split` (in place of the constructor's) and `max_steps` of this episode. All else in
                it are options of the benchmark, laid over those of the constructor.

        Raises:
            InputError: Unknown task, split or option; the message has near names.
        """
        super().reset(seed=seed)
        self.close()
        asked = mapping(options)
        asked.pop("reset_mask", None)
        task_id, split = asked.pop("task_id", None), asked.pop("split", None)
        if task_id is None and split is None:
            task_id, split = self.task_id, self.split
        self.session = self.client.create(
            self.name,
            task_id,
            split=split,
            max_steps=asked.pop("max_steps", self.max_steps),
            seed=int(self.np_random.integers(2**31) if seed is None else seed),
            options={**self.options, **asked},
        )
        self._last_action = None
        return self.session.reply.observation, self.session.reply.info

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Executes one command.

        Args:
            action: Text, or what JSON value the benchmark takes.

        Raises:
            SessionError: The episode is over.
            InfrastructureError: The service failed; that is never a reward.
        """
        return self.received(action, self.running().step(action))

    def received(self, action: Action, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Notes a step that was made for this environment, and returns it as Gymnasium words it."""
        self._last_action = action
        return reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info

    def running(self) -> Session:
        """Returns the episode.

        Raises:
            ResetNeeded: There is none.
        """
        if self.session is None:
            raise ResetNeeded("Call `reset` before the first step: it starts the episode.")
        return self.session

    def fork(self) -> CopeEnv:
        """Returns a second environment in the same state; from here on the two are independent."""
        forked = self.around(self.running().fork(), self.client, render_mode=self.render_mode)
        forked._last_action = self._last_action
        return forked

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the last action, the observation and the score, as text."""
        if self.render_mode is None or self.session is None:
            return None
        reply = self.session.reply
        head = "" if self._last_action is None else f"> {self._last_action}\n"
        state = "over" if reply.done else f"step {reply.step_index} of {self.session.max_steps}"
        return (
            f"{head}{reply.observation}\n[{self.session.task_id}: {state}, score {reply.info.get('score', 0.0):.2f}]"
        )

    def close(self) -> None:
        """Ends the episode; harmless when there is none."""
        if self.session is not None:
            self.session.close()
            self.session = None

    @classmethod
    def around(cls, session: Session, client: Client, **kwargs: Any) -> CopeEnv:
        """Returns an environment for a running session."""
        made = cls(
            session.env,
            task_id=session.task_id,
            split=session.split,
            options=session.options,
            max_steps=session.max_steps,
            client=client,
            **kwargs,
        )
        made.session = session
        return made

    def __getstate__(self) -> dict[str, Any]:
        # The episode stays with the original: two owners of one session would supersede each other.
        return {**self.__dict__, "session": None}

    def __str__(self) -> str:
        return f"CopeEnv({self.name}, task_id={self.task_id})"


def _refuse(unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        close = difflib.get_close_matches(name, KEYWORDS, 1)
        hint = f" Did you mean {close[0]}?" if close else " Options of the benchmark go into options={…}."
        raise InputError(f"There is no keyword '{name}'; there are: {', '.join(KEYWORDS)}.{hint}", type="bad_option")


def resume(
    session_id: str,
    *,
    base_url: str | Sequence[str] | None = None,
    token: str | None = None,
    env: str | None = None,
    render_mode: str | None = None,
) -> CopeEnv:
    """Returns an environment in the middle of a running episode, e.g. after a crash of its client.

    Args:
        session_id: `env.unwrapped.session.id` of the one that is gone.
        base_url: The server or several; by default `$COPE_BASE_URL`, else the local server of `env`.
        token: Bearer token; by default `$COPE_TOKEN`.
        env: Short environment name, only needed for a local server.
        render_mode: `ansi` or `None`.

    Raises:
        LostSession: No server has it.
    """
    client = connect(env, base_url, token)
    return CopeEnv.around(client.resume(session_id), client, render_mode=render_mode)
