"""What each served benchmark offers: splits, tasks, metadata. Asked once of a worker, then kept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from env_servers.adapter import Facts
from env_servers.catalog import CATALOG
from env_servers.errors import ServiceError, near
from env_servers.pool.base import BystanderError, EpisodeFaultError, NoRoomError, Pool, WorkerDiedError

_TIMEOUT = 120.0
_LONG_TIMEOUT = 240.0  # less than clients wait
_TRIES = 5


@dataclass(frozen=True)
class TaskList:
    """The tasks of a split, in the benchmark's published order."""

    split: str
    tasks: tuple[tuple[str, str, str], ...]
    digest: str


class Catalogue:
    """Answers questions about benchmarks; holds no session."""

    def __init__(self, pool: Pool, envs: Iterable[str]) -> None:
        self.envs = tuple(envs)
        self._pool = pool
        self._lists: dict[tuple[str, str], TaskList] = {}
        self._index: dict[str, dict[str, dict[str, str]]] = {}
        self._metadata: dict[str, dict[str, Any]] = {}
        self._locks = {env: asyncio.Lock() for env in self.envs}

    def facts(self, env: str) -> Facts:
        """Returns a benchmark's facts.

        Raises:
            ServiceError: `unknown_env`, or `not_installed` for a benchmark that is not served here.
        """
        if env not in self.envs:
            if env in CATALOG:
                detail = f"{env} is not served here: run `cope install {env}`, then restart with `--env {env}`."
                raise ServiceError("not_installed", detail, retryable=False)
            raise ServiceError(
                "unknown_env", f"There is no environment {env!r} here; there are: {', '.join(self.envs)}."
            )
        return self._pool.hello(env).facts

    def splits(self, env: str) -> tuple[str, ...]:
        """Returns a benchmark's splits, the training split first."""
        self.facts(env)
        return self._pool.hello(env).splits

    def describe(self, env: str) -> dict[str, Any]:
        """Returns a benchmark's entry of `/v1/envs`."""
        hello = self._pool.hello(env)
        return {**asdict(self.facts(env)), "splits": list(hello.splits), "python": hello.python}

    async def tasks(self, env: str, split: str | None) -> TaskList:
        """Returns the tasks of a split, by default of the first.

        Raises:
            ServiceError: `unknown_split`.
        """
        splits = self.splits(env)
        split = splits[0] if split is None else split
        if split not in splits:
            detail = f"{env} has no split {split!r}; it has: {', '.join(splits)}."
            raise ServiceError("unknown_split", detail)
        async with self._locks[env]:
            if (env, split) not in self._lists:
                tasks = tuple((t[0], t[1], t[2]) for t in await self._ask(env, "tasks", split=split))
                ids = "\n".join(task[0] for task in tasks)
                self._lists[env, split] = TaskList(split, tasks, hashlib.sha256(ids.encode()).hexdigest())
        return self._lists[env, split]

    async def pick(self, env: str, task_id: str | None, split: str | None, seed: int) -> tuple[str, str, str]:
        """Returns (id, split, category) of the named task, or of the one that the seed picks.

        Raises:
            ServiceError: `unknown_split` or `unknown_task`.
        """
        if task_id is None:
            tasks = await self.tasks(env, split)
            if not tasks.tasks:
                raise ServiceError("unknown_task", f"The split {tasks.split!r} of {env} is empty; name another one.")
            number = int(hashlib.sha256(f"{env}:{tasks.split}:{seed}".encode()).hexdigest(), 16)
            return tasks.tasks[number % len(tasks.tasks)]
        if split is not None:
            await self.tasks(env, split)
        known = await self._tasks_by_id(env)
        if task_id not in known and (other := await self._ask(env, "canonical_id", task_id=task_id)):
            task_id = str(other)
        if task_id not in known:
            raise ServiceError("unknown_task", f"{env} has no task {task_id!r}.{near(task_id, known)}")
        places = known[task_id]
        if split is not None and split not in places:
            detail = f"The task {task_id!r} belongs to {', '.join(places)}, not to {split!r}; leave the split out."
            raise ServiceError("unknown_task", detail)
        split = next(iter(places)) if split is None else split
        return task_id, split, places[split]

    async def metadata(self, env: str) -> dict[str, Any]:
        """Returns what the adapter says of its versions and data."""
        self.facts(env)
        if env not in self._metadata:
            self._metadata[env] = await self._ask(env, "metadata")
        return self._metadata[env]

    async def gold(self, env: str, task_id: str, options: dict[str, Any]) -> Any:
        """Returns actions that solve a task. Neither sessions nor other questions wait for a search, or die of it.

        Raises:
            ServiceError: `unknown_task`, `capacity`, `worker_failed`, or what the adapter named.
        """
        task_id, _, _ = await self.pick(env, task_id, None, 0)
        return await self._ask(env, "gold", long=True, task_id=task_id, options=options)

    async def _ask(self, env: str, op: str, long: bool = False, **arguments: Any) -> Any:
        """Has a question answered by one of the benchmark's workers that hold no session."""
        with _named(env, op):
            for _ in range(_TRIES - 1):
                with suppress(BystanderError):  # it waited for its turn, and the question before it killed the worker
                    return await self._asked(env, op, long, arguments)
            return await self._asked(env, op, long, arguments)

    async def _asked(self, env: str, op: str, long: bool, arguments: dict[str, Any]) -> Any:
        worker = await self._pool.control(env, long)
        return await worker.call(op, _LONG_TIMEOUT if long else _TIMEOUT, **arguments)

    async def _tasks_by_id(self, env: str) -> dict[str, dict[str, str]]:
        """Returns the category of every task in each of its splits (a task may stand in several)."""
        if env not in self._index:
            index: dict[str, dict[str, str]] = {}
            for split in self.splits(env):
                for task_id, _, category in (await self.tasks(env, split)).tasks:
                    index.setdefault(task_id, {})[split] = category
            self._index[env] = index
        return self._index[env]


@contextmanager
def _named(env: str, op: str) -> Generator[None]:
    try:
        yield
    except NoRoomError as error:
        raise ServiceError("capacity", f"The service is full ({error}); try again.", retry_after=2) from error
    except (EpisodeFaultError, WorkerDiedError) as error:
        raise ServiceError("worker_failed", f"{env} could not answer {op!r}: {error}.") from error
