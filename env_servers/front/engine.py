"""Has episodes executed by workers, and rebuilds them after a death: session rule 3.

A rebuilt episode is the recorded actions played again, each reply compared with what the client saw. A step during
which its worker died is issued once more, in a worker of its own; so an action that kills costs its own session only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from env_servers.errors import ServiceError
from env_servers.front.actions import parse
from env_servers.front.catalogue import Catalogue
from env_servers.front.journal import Journal
from env_servers.front.metrics import Metrics
from env_servers.front.session import Reply, Session, Turn, digest, reply_of
from env_servers.pool.base import (
    BystanderError,
    EpisodeFaultError,
    NoRoomError,
    Pool,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
)

log = logging.getLogger(__name__)

_REBUILD_ATTEMPTS = 3
_BYSTANDER_TRIES = 5
_SUSPECTS_AT_A_TIME = 4
_CLOSE_TIMEOUT = 30.0
_RETRY_AFTER = 2

_Fault = (WorkerDiedError, EpisodeFaultError)


class Engine:
    """Executes steps; the rules of who may step are the caller's."""

    def __init__(
        self, pool: Pool, catalogue: Catalogue, journal: Journal, metrics: Metrics, start_timeout: float
    ) -> None:
        self._pool = pool
        self._catalogue = catalogue
        self._journal = journal
        self._metrics = metrics
        self._start_timeout = start_timeout
        self._isolation = asyncio.Semaphore(_SUSPECTS_AT_A_TIME)

    async def open(self, session: Session) -> None:
        """Starts the episode.

        Raises:
            ServiceError: `capacity`, `worker_failed`, or what the adapter named.
        """
        cause: Exception | None = None
        for alone in (False, True):
            try:
                worker = await self._acquire(session, alone)
                first = await self._start(session, worker)
            except _Fault as error:
                self._detach(session)
                cause = error
                continue
            except ServiceError:
                await self.let_go(session)
                raise
            self._pool.share(worker)
            session.replayable = first["replayable"]
            session.add("", reply_of(session.origin, 0, first["first"]), first["first"]["record"])
            if session.over:
                await self.let_go(session)
            return
        detail = f"{session.origin.env} could not start the task {session.origin.task_id!r}: {cause}."
        raise ServiceError("worker_failed", detail) from cause

    async def step(self, session: Session, action: str) -> Reply:
        """Executes the next action and records it.

        Raises:
            ServiceError: Nothing was executed (`bad_action`, `capacity`, …), or the session has come to its end
                (`episode_lost`, `step_timeout`).
        """
        session.intent = action
        self._journal.intent(session, action)
        try:
            result = await self._execute(session, action)
        except ServiceError:
            if session.failure is None:
                session.intent = None
                self._journal.rejected(session)
            raise
        reply = reply_of(session.origin, session.steps + 1, result)
        self._journal.turn(session, session.add(action, reply, result["record"]))
        if session.over:
            await self.let_go(session)
        return reply

    async def rebuild(self, session: Session, alone: bool = False) -> Worker:
        """Plays the recorded actions in another worker.

        Raises:
            ServiceError: `capacity` (try again), or `episode_lost` (recorded as the session's failure).
        """
        if not session.replayable:
            raise self._lose(session, "its worker died and this episode is not deterministic")
        if await self._catalogue.metadata(session.origin.env) != session.origin.versions:
            raise self._lose(session, "it was started with another version of the adapter or its data")
        cause: Exception | None = None
        for last in (False,) * (_REBUILD_ATTEMPTS - 1) + (True,):
            try:
                # At last without neighbours: theirs may be what kills.
                worker = await self._acquire(session, alone or last)
                await self._replay(session, worker)
            except _Fault as error:
                self._detach(session)
                cause = error
                continue
            except ServiceError:
                await self.let_go(session)
                raise
            if not alone:
                self._pool.share(worker)
            self._metrics.rebuilt(session.origin.env)
            log.info("session rebuilt", extra={"session": session.id, "steps": session.steps})
            return worker
        raise self._lose(session, f"it could not be rebuilt: {cause}")

    async def let_go(self, session: Session) -> None:
        """Closes the episode in its worker and gives its place back."""
        worker, session.worker = session.worker, None
        if worker is None:
            return
        if worker.alive:
            with contextlib.suppress(*_Fault, ServiceError):
                await worker.call("close", _CLOSE_TIMEOUT, session=session.id)
        self._pool.release(worker, session.id)

    async def _execute(self, session: Session, action: str) -> dict[str, Any]:
        for _ in range(_BYSTANDER_TRIES):
            worker = session.worker
            if worker is None or not worker.alive:
                self._detach(session)
                worker = await self.rebuild(session)
            try:
                return await self._call_step(session, worker, action)
            except BystanderError:
                continue
            except _Fault as error:
                log.warning("step failed", extra={"session": session.id, "error": str(error)})
                self._detach(session)
                break
        async with self._isolation:
            worker, result = await self._second_try(session, action)
        self._pool.share(worker)
        return result

    async def _second_try(self, session: Session, action: str) -> tuple[Worker, dict[str, Any]]:
        for _ in range(_REBUILD_ATTEMPTS):
            worker = await self.rebuild(session, alone=True)
            try:
                return worker, await self._call_step(session, worker, action)
            except BystanderError:  # it died before it was asked
                self._detach(session)
            except WorkerTimeoutError as error:
                self._detach(session)
                raise self._lose(session, f"{error}, at the second try too", "step_timeout") from error
            except _Fault as error:
                self._detach(session)
                raise self._lose(session, f"the step failed twice: {error}") from error
        raise self._lose(session, "the workers for the second try of its step died before they were asked")

    async def _call_step(self, session: Session, worker: Worker, action: str, **again: Any) -> dict[str, Any]:
        timeout = self._catalogue.facts(session.origin.env).step_timeout
        with self._metrics.step_seconds(session.origin.env):
            return await worker.call("step", timeout, session=session.id, action=parse(action), **again)

    async def _start(self, session: Session, worker: Worker, **again: Any) -> dict[str, Any]:
        origin = session.origin
        arguments = {"task_id": origin.task_id, "seed": origin.seed, "options": origin.options, **again}
        return await worker.call("start", self._start_timeout, session=session.id, **arguments)

    async def _replay(self, session: Session, worker: Worker) -> None:
        try:
            start, *steps = session.turns
            first = await self._start(session, worker, record=json.loads(start.record))
            self._compare(session, 0, start, first["first"])
            for index, turn in enumerate(steps, 1):
                record = json.loads(turn.record)
                result = await self._call_step(session, worker, turn.action, record=record)
                self._compare(session, index, turn, result)
        except ServiceError as error:
            if error.retryable or error is session.failure:
                raise
            raise self._lose(session, f"the adapter refused a recorded action: {error.detail}") from error

    def _compare(self, session: Session, index: int, turn: Turn, result: dict[str, Any]) -> None:
        if digest(reply_of(session.origin, index, result)) != digest(json.loads(turn.reply)):
            raise self._lose(session, f"step {index} came out differently when it was played again")

    async def _acquire(self, session: Session, alone: bool) -> Worker:
        origin = session.origin
        try:
            session.worker = await self._pool.acquire(origin.env, session.id, origin.task_id, alone)
        except NoRoomError as error:
            detail = f"The service is full ({error}); try again in a few seconds, or raise its limits."
            raise ServiceError("capacity", detail, retry_after=_RETRY_AFTER) from error
        return session.worker

    def _detach(self, session: Session) -> None:
        if session.worker is not None:
            self._pool.release(session.worker, session.id)
            session.worker = None

    def _lose(self, session: Session, why: str, type: str = "episode_lost") -> ServiceError:
        detail = f"The episode cannot go on: {why}. Start a new session; this one counts as a failure of the service."
        session.failure = ServiceError(type, detail, retryable=False, session_id=session.id)
        self._journal.failed(session)
        log.error("session lost", extra={"session": session.id, "env": session.origin.env, "why": why})
        return session.failure
