"""The session service behind the routes: who may do what, and when. Knows no HTTP and executes nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from env_servers.errors import ServiceError
from env_servers.front.actions import canonical
from env_servers.front.catalogue import Catalogue
from env_servers.front.engine import Engine
from env_servers.front.journal import FileJournal, Journal, Key, MemoryJournal
from env_servers.front.keys import Document, Keys
from env_servers.front.leases import Leases
from env_servers.front.metrics import Metrics
from env_servers.front.models import CreateSession, Step, StepOf
from env_servers.front.rules import Decision, decide
from env_servers.front.session import Origin, Reply, Running, Session
from env_servers.front.settings import FrontSettings
from env_servers.front.tombstones import Tombstones
from env_servers.pool.base import Pool

log = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP = 0.5
_CLOSE_WAIT = 2.0


class Service:
    """All sessions of one process.

    Args:
        settings: The service's settings.
        pool: Its workers, not yet started.
        clock: Monotonic clock of the leases.
    """

    def __init__(self, settings: FrontSettings, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.pool = pool
        self.metrics = Metrics()
        self.catalogue = Catalogue(pool, [spec.name for spec in settings.specs])
        self.draining = False
        self.ready = False
        self.in_flight = 0
        self.last_used = time.monotonic()
        self._journal: Journal = FileJournal(settings.state_dir) if settings.state_dir else MemoryJournal()
        self._engine = Engine(pool, self.catalogue, self._journal, self.metrics, settings.start_timeout)
        self._sessions: dict[str, Session] = {}
        self._live: set[str] = set()
        self._tombstones = Tombstones(settings.state_dir / "ended.jsonl" if settings.state_dir else None)
        self._leases = Leases(settings.lease_seconds, clock)
        self._keys = Keys()
        self._background: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    # Life of the service

    async def start(self) -> None:
        """Starts the workers and takes up the sessions of an earlier process.

        Raises:
            ServiceError: An adapter refused its settings.
            WorkerDiedError: An adapter could not be started.
        """
        await self.pool.start()
        for session, key in self._journal.load():
            if session.id in self._tombstones:  # it had ended, and its journal was about to be removed
                self._journal.removed(session.id)
                continue
            self._adopt(session)
            if key is not None:
                created = session.document(self.settings.lease_seconds, session.born)
                self._keys.restore(*key, {**created, "epoch": 1})
        self._sweeper = asyncio.create_task(self._sweep())
        self.last_used = time.monotonic()
        self.ready = True

    async def stop(self) -> None:
        """Ends everything; journals on disk stay."""
        self.ready = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        # First: a step that is cut off must keep its intent, not take the end of its worker for a fault.
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.pool.close()

    async def drain(self) -> None:
        """Refuses new sessions, lets live ones go on for `drain_seconds`, then waits for the steps in execution."""
        self.draining = True
        deadline = time.monotonic() + self.settings.drain_seconds
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self.ready = False
        running = [session.running.task for session in self._sessions.values() if session.running]
        await asyncio.gather(*running, return_exceptions=True)

    @property
    def idle_seconds(self) -> float:
        """How long there has been neither a session nor a request."""
        return 0.0 if self._sessions or self.in_flight else time.monotonic() - self.last_used

    @property
    def live(self) -> int:
        """Number of sessions that can be stepped."""
        return len(self._live)

    def metrics_text(self) -> bytes:
        """Returns the metrics in Prometheus' text form."""
        return self.metrics.text(self.pool, len(self._live), len(self._sessions))

    # Sessions

    async def create(self, body: CreateSession, key: str | None) -> Document:
        """Starts an episode.

        Raises:
            ServiceError: Nothing was started.
        """
        request = {"create": body.model_dump()}
        return await self._keys.once(key, request, lambda: self._apart(self._create(body, self._tag(key, request))))

    async def step(self, session_id: str, body: Step) -> Reply:
        """Executes, joins or repeats a step, see `rules.py`.

        Raises:
            ServiceError: Refused, or it could not be executed.
        """
        session = self._find(session_id)
        action = canonical(body.action, self.settings.max_action)
        self._leases.renew(session.id)
        decision = decide(session, body.step_index, action, body.epoch)
        if decision is Decision.REPEAT:
            return session.last
        if decision is Decision.EXECUTE:
            if self.draining and not self.ready:
                raise ServiceError("draining", "The service is shutting down; repeat this step when it is back.")
            task = self._spawn(self._run_step(session, action))
            session.running = Running(body.step_index, action, task)
        assert session.running is not None
        # A client that hangs up does not stop the step: its retry finds the reply.
        return await asyncio.shield(session.running.task)

    async def step_many(self, steps: list[StepOf]) -> list[Document]:
        """Executes steps of several sessions side by side; each has a reply or an error of its own."""
        results = await asyncio.gather(*(self.step(step.session_id, step) for step in steps), return_exceptions=True)
        return [self._result(result) for result in results]

    def read(self, session_id: str) -> Document:
        """Returns a session with its last reply.

        Raises:
            ServiceError: There is no such session, or it failed.
        """
        session = self._find(session_id)
        self._leases.renew(session.id)
        if session.failure is not None:
            raise session.failure.again()
        return self._document(session)

    async def attach(self, session_id: str) -> Document:
        """Gives the session to the caller alone and tells what has happened in it.

        Raises:
            ServiceError: There is no such session, or it failed.
        """
        session = self._find(session_id)
        session.epoch += 1
        self._journal.epoch(session)
        self._leases.renew(session.id)
        await self._settled(session)
        if session.failure is not None:
            raise session.failure.again()
        return {**self._document(session), "transcript": session.transcript()}

    async def fork(self, session_id: str, key: str | None) -> Document:
        """Starts a second session in the same state, by playing the first one's actions.

        Raises:
            ServiceError: There is no such session, or its episode cannot be played again.
        """
        request = {"fork": session_id}
        return await self._keys.once(
            key, request, lambda: self._apart(self._fork(session_id, self._tag(key, request)))
        )

    async def close(self, session_id: str) -> None:
        """Ends a session; one that is gone already is fine."""
        if session_id in self._sessions:
            closing = self._remove(session_id, "closed")
            await asyncio.wait({closing}, timeout=_CLOSE_WAIT)

    def heartbeat(self, session_ids: list[str]) -> Document:
        """Renews leases and tells which sessions are gone."""
        alive = [session for session in session_ids if session in self._sessions]
        for session in alive:
            self._leases.renew(session)
        return {"alive": alive, "gone": [session for session in session_ids if session not in self._sessions]}

    def expire(self) -> None:
        """Ends the sessions whose lease has run out."""
        for session_id in self._leases.expired():
            if self._sessions[session_id].running is not None:
                self._leases.renew(session_id)  # a long step is not a dead client
            else:
                self._remove(session_id, "expired")

    # Work

    async def _create(self, body: CreateSession, tag: Key | None) -> Document:
        self._check_draining()
        env = body.env
        facts = self.catalogue.facts(env)
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        task_id, split, category = await self.catalogue.pick(env, body.task_id, body.split, seed)
        versions = await self.catalogue.metadata(env)
        steps = facts.max_steps if body.max_steps is None else body.max_steps
        origin = Origin(env, task_id, split, category, seed, body.options, steps, versions)
        session = Session(secrets.token_urlsafe(24), origin, body.client_id)
        with self._place(session):
            await self._engine.open(session)
        return self._enter(session, tag)

    async def _fork(self, session_id: str, tag: Key | None) -> Document:
        self._check_draining()
        parent = self._find(session_id)
        self._leases.renew(parent.id)
        await self._settled(parent)
        if parent.failure is not None:
            raise parent.failure.again()
        if not parent.replayable:
            detail = "This episode is not deterministic, so it cannot be played again and not be forked."
            raise ServiceError("bad_request", detail, session_id=session_id)
        session = parent.fork(secrets.token_urlsafe(24))
        if not session.over:
            with self._place(session):
                await self._engine.rebuild(session)
        return self._enter(session, tag)

    def _enter(self, session: Session, tag: Key | None) -> Document:
        self._journal.created(session, tag)
        self._adopt(session)
        self.metrics.opened(session.origin.env)
        log.info("session opened", extra={"session": session.id, "env": session.origin.env})
        return self._document(session)

    async def _run_step(self, session: Session, action: str) -> Reply:
        try:
            return await self._engine.step(session, action)
        finally:
            session.running = None
            if session.id in self._sessions:
                self._leases.renew(session.id)
            if not session.live:
                self._live.discard(session.id)

    def _remove(self, session_id: str, reason: str) -> asyncio.Task[None]:
        session = self._sessions.pop(session_id)
        self._leases.drop(session_id)
        self.last_used = time.monotonic()
        self._tombstones.add(session_id, reason)
        self._journal.removed(session_id)
        self.metrics.closed(session.origin.env, reason)
        log.info("session ended", extra={"session": session_id, "reason": reason, "steps": session.steps})
        return self._spawn(self._dispose(session))

    async def _dispose(self, session: Session) -> None:
        await self._settled(session)
        await self._engine.let_go(session)
        self._live.discard(session.id)

    async def _settled(self, session: Session) -> None:
        """Waits for the step in execution, whatever comes of it."""
        if session.running is not None:
            await asyncio.wait({session.running.task})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP, self._leases.seconds / 4))
            self.expire()

    # Small parts

    def _adopt(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._leases.renew(session.id)
        if session.live:
            self._live.add(session.id)

    def _find(self, session_id: str) -> Session:
        if session_id in self._sessions:
            return self._sessions[session_id]
        if self._tombstones.reason(session_id) == "expired":
            detail = "The session's lease ran out; send heartbeats while you think, and start a new session now."
            raise ServiceError("session_expired", detail, session_id=session_id)
        closed = " It was closed." if session_id in self._tombstones else ""
        raise ServiceError("unknown_session", f"There is no such session.{closed} Start a new one.")

    @contextlib.contextmanager
    def _place(self, session: Session) -> Generator[None]:
        if len(self._live) >= self.settings.max_sessions:
            detail = (
                f"All {self.settings.max_sessions} sessions are in use; close some, or try again in a few seconds."
            )
            raise ServiceError("capacity", detail, retry_after=2)
        self._live.add(session.id)
        try:
            yield
        except BaseException:
            self._live.discard(session.id)
            raise
        if not session.live:
            self._live.discard(session.id)

    def _check_draining(self) -> None:
        if self.draining:
            raise ServiceError("draining", "The service is shutting down; try again when it is back.")

    def _document(self, session: Session) -> Document:
        return session.document(self.settings.lease_seconds)

    def _result(self, result: Reply | BaseException) -> Document:
        if isinstance(result, ServiceError):
            self.metrics.error(result.type)
            return {"error": result.problem()}
        if isinstance(result, BaseException):
            log.error("step failed inside the service", exc_info=result)
            return {"error": ServiceError("internal", "A defect of the service; its log has the details.").problem()}
        return result

    def _tag(self, key: str | None, request: Any) -> Key | None:
        return None if key is None else (key, self._keys.fingerprint(request))

    async def _apart(self, work: Coroutine[Any, Any, Document]) -> Document:
        """Does the work to its end even if the client hangs up."""
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
