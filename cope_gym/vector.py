"""Many episodes at once: one round trip a vector step, whatever their number.

`gym.make_vec("cope/…", num_envs=N)` finds it. Autoreset modes, batching and infos are Gymnasium's own: only the calls
are made ahead, steps in one request and resets side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cope_gym.client import Action, Client
from cope_gym.env import CopeEnv
from cope_gym.errors import CopeError
from cope_gym.server import connect


class _SubEnv(CopeEnv):
    """An environment whose next answer may have been fetched already."""

    ready: tuple[Any, ...] | None = None
    ready_reset: tuple[str, dict[str, Any]] | None = None

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        ready, self.ready = self.ready, None
        return ready or super().step(action)  # pyright: ignore[reportReturnType]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        ready, self.ready_reset = self.ready_reset, None
        return ready or super().reset(seed=seed, options=options)


class CopeVectorEnv(SyncVectorEnv):
    """Sub-environments that share a connection; equal, step by step, to as many single environments.

    A step that fails in one of them raises its error after the others have been stepped; `extra["index"]` says which
    one, and a `reset` goes on from there.

    Args:
        num_envs: Number of sub-environments.
        env: Short environment name; `gym.make_vec` fills it in.
        autoreset_mode: `NextStep`, `SameStep` or `Disabled`.
        base_url: As for `CopeEnv`.
        token: As for `CopeEnv`.
        **kwargs: As for `CopeEnv`, the same for all.
    """

    envs: list[_SubEnv]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        num_envs: int,
        env: str,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        base_url: str | Sequence[str] | None = None,
        token: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._client: Client = kwargs.pop("client", None) or connect(env, base_url, token)
        self._pool = ThreadPoolExecutor(min(num_envs, 64), "cope-reset")

        def make() -> _SubEnv:
            return _SubEnv(env, client=self._client, **kwargs)

        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            [make] * num_envs, copy=False, autoreset_mode=autoreset_mode
        )

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every sub-environment, or in those of `options["reset_mask"]`."""
        self._forget()
        options = None if options is None else dict(options)
        mask: Any = np.ones(self.num_envs, bool)
        if options is not None:
            mask = options.get("reset_mask", mask)
        seeds: list[int | None] = [None] * self.num_envs
        if isinstance(seed, int):
            seeds = [seed + i for i in range(self.num_envs)]
        elif seed is not None:
            seeds = list(seed)
        if np.shape(mask) == (self.num_envs,) and len(seeds) == self.num_envs:  # else Gymnasium says what is wrong
            self._reset_ahead([i for i in range(self.num_envs) if mask[i]], seeds, options)
        return super().reset(seed=seeds, options=options)

    def step(self, actions: Sequence[Action]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all sub-environments with one request.

        Args:
            actions: One action each.

        Raises:
            CopeError: The first that failed; nothing of this vector step is returned.
        """
        actions = list(actions)
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions were given for {self.num_envs} sub-environments.")
        self._forget()
        resets_now = self.autoreset_mode == AutoresetMode.NEXT_STEP
        ahead = [i for i in range(self.num_envs) if resets_now and self._autoreset_envs[i]]
        stepped = [i for i in range(self.num_envs) if i not in set(ahead)]
        self._step_ahead(stepped, actions)
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            ahead = [i for i in stepped if self.envs[i].running().reply.done]
        self._reset_ahead(ahead, [None] * self.num_envs, None)
        return super().step(tuple(actions))

    def _forget(self) -> None:
        """Drops what an interrupted call may have fetched."""
        for env in self.envs:
            env.ready = env.ready_reset = None

    def _step_ahead(self, indexes: list[int], actions: list[Action]) -> None:
        replies = self._client.step_many([(self.envs[i].running(), actions[i]) for i in indexes])
        for index, reply in zip(indexes, replies, strict=True):
            if isinstance(reply, CopeError):
                reply.extra["index"] = index
                raise reply
        for index, reply in zip(indexes, replies, strict=True):
            assert not isinstance(reply, CopeError)
            self.envs[index].ready = self.envs[index].received(actions[index], reply)

    def _reset_ahead(self, indexes: list[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        def start(index: int) -> tuple[int, tuple[str, dict[str, Any]]]:
            return index, self.envs[index].reset(seed=seeds[index], options=options)

        for index, first in list(self._pool.map(start, indexes)):
            self.envs[index].ready_reset = first

    def close_extras(self, **kwargs: Any) -> None:
        """Ends all episodes."""
        super().close_extras(**kwargs)
        self._pool.shutdown()
