"""A random walk over create, step, retry, fork, attach, close, expire and worker death, against a model of the rules.

The service and its workers are real; only the clock of the leases is the test's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from env_servers.errors import ServiceError
from env_servers.front.models import CreateSession, Step, StepOf
from env_servers.front.service import Service
from env_servers.front.settings import FrontSettings
from env_servers.pool.base import WorkerSpec
from env_servers.pool.local import LocalLauncher
from env_servers.pool.managed import ManagedPool, PoolLimits
from tests.service.adapters import GOAL
from tests.service.conftest import MARK, ROOT, marked, wait_for

T = TypeVar("T")
LEASE = 100.0


class Running:
    """A service on an event loop of its own thread, which is also the parent of its workers."""

    def __init__(self, state: Path) -> None:
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        target = "tests.service.adapters:CounterAdapter"
        spec = WorkerSpec("counter", sys.executable, target, environ={MARK: str(id(self))}, paths=(str(ROOT),))
        chosen = FrontSettings((spec,), lease_seconds=LEASE, max_sessions=1000, state_dir=state)
        self.service = Service(
            chosen, ManagedPool([spec], PoolLimits(max_workers=8), LocalLauncher()), lambda: self.now
        )
        self.do(self.service.start())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def refused(self, work: Coroutine[Any, Any, Any]) -> str:
        with pytest.raises(ServiceError) as error:
            self.do(work)
        return error.value.type

    def kill_workers(self) -> None:
        for worker in self.service.pool.stats():
            if worker["sessions"]:
                with suppress(ProcessLookupError):  # its death is not yet known to the pool
                    os.kill(worker["pid"], signal.SIGKILL)

    def stop(self) -> None:
        self.do(self.service.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        wait_for(lambda: not marked(str(id(self))))


@dataclass
class Model:
    """What a session must be like."""

    name: str
    epoch: int = 1
    value: int = 0
    actions: list[str] = field(default_factory=list[str])
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    renewed: float = 0.0

    @property
    def over(self) -> bool:
        return self.value >= GOAL


class Machine(RuleBasedStateMachine):
    running: Running
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, str] = {}

    @initialize(target=sessions)
    def first(self) -> Model:
        return self._created(0)

    @rule(target=sessions, seed=st.integers(0, 5))
    def create(self, seed: int) -> Model:
        return self._created(seed)

    @rule(model=sessions, action=st.sampled_from(["add 1", "add 2", "say hello", "print 9"]), many=st.booleans())
    def step(self, model: Model, action: str, many: bool) -> None:
        index = len(model.actions)
        if self._is_gone(model, index, action):
            return
        if model.over:
            assert self.running.refused(self._step(model, index, action)) == "episode_over"
            return
        if many:
            request = StepOf(session_id=model.name, step_index=index, action=action, epoch=model.epoch)
            (reply,) = self.running.do(self.running.service.step_many([request]))
        else:
            reply = self.running.do(self._step(model, index, action))
        model.value += int(action.split()[1]) if action.startswith("add") else 0
        model.actions.append(action)
        model.last = reply
        self._renew(model)
        assert reply["step_index"] == index + 1
        assert reply["observation"] == f"counter {model.value}"
        assert reply["terminated"] == model.over

    @rule(model=sessions)
    def refuse(self, model: Model) -> None:
        if not self._is_gone(model, len(model.actions), "refuse") and not model.over:
            assert self.running.refused(self._step(model, len(model.actions), "refuse")) == "bad_action"
            self._renew(model)

    @rule(model=sessions)
    def retry(self, model: Model) -> None:
        if model.actions and not self._is_gone(model, 0, "say"):
            assert self.running.do(self._step(model, len(model.actions) - 1, model.actions[-1])) == model.last
            self._renew(model)

    @rule(model=sessions, offset=st.sampled_from([-2, -1, 1, 5]))
    def wrong_step(self, model: Model, offset: int) -> None:
        index = len(model.actions) + offset
        if index < 0 or self._is_gone(model, 0, "say"):
            return
        expected = {-2: "stale_step", -1: "action_mismatch"}.get(offset, "episode_over" if model.over else "step_gap")
        assert self.running.refused(self._step(model, index, "never said")) == expected
        self._renew(model)

    @rule(target=sessions, model=sessions)
    def fork(self, model: Model) -> Model:
        if model.name in self.gone:
            assert self.running.refused(self.running.service.fork(model.name, None)) == self.gone[model.name]
            return self._created(0)
        key = uuid4().hex  # a new machine may get the id of a dead one
        document = self.running.do(self.running.service.fork(model.name, key))
        assert self.running.do(self.running.service.fork(model.name, key)) == document
        self._renew(model)
        step = {name: document[name] for name in ("step_index", "observation", "reward", "terminated", "truncated")}
        assert step["step_index"] == len(model.actions) and step["terminated"] == model.over
        child = replace(model, name=document["session_id"], epoch=1, actions=list(model.actions))
        self._renew(child)
        return child

    @rule(model=sessions)
    def attach(self, model: Model) -> None:
        if model.name in self.gone:
            assert self.running.refused(self.running.service.attach(model.name)) == self.gone[model.name]
            return
        document = self.running.do(self.running.service.attach(model.name))
        self._renew(model)
        assert [turn["action"] for turn in document["transcript"][1:]] == model.actions
        old = replace(model)
        model.epoch = document["epoch"]
        assert self.running.refused(self._step(old, len(model.actions), "say")) == "superseded"

    @rule(model=sessions)
    def close(self, model: Model) -> None:
        self.running.do(self.running.service.close(model.name))
        self.gone.setdefault(model.name, "unknown_session")

    @rule(seconds=st.floats(1, LEASE * 1.5), kept=st.lists(sessions, max_size=3))
    def time_passes(self, seconds: float, kept: list[Model]) -> None:
        self._pass(seconds / 2)
        alive = self.running.service.heartbeat([model.name for model in kept])["alive"]
        for model in kept:
            assert (model.name in alive) == (model.name not in self.gone)
            self._renew(model)
        self._pass(seconds / 2)

    @rule()
    def workers_die(self) -> None:
        self.running.kill_workers()

    def teardown(self) -> None:
        for model in self.models:
            self.running.do(self.running.service.close(model.name))
        wait_for(lambda: self.running.service.live == 0)

    # Helpers

    @property
    def models(self) -> list[Model]:
        return [value for value in self.names_to_values.values() if isinstance(value, Model)]

    def _created(self, seed: int) -> Model:
        key = uuid4().hex  # a new machine may get the id of a dead one
        body = CreateSession(env="counter", seed=seed)
        document = self.running.do(self.running.service.create(body, key))
        assert self.running.do(self.running.service.create(body, key)) == document
        model = Model(document["session_id"], last=document)
        self._renew(model)
        return model

    def _pass(self, seconds: float) -> None:
        self.running.now += seconds
        self.running.do(self._expire())
        for model in self.models:
            if self.running.now - model.renewed >= LEASE:
                self.gone.setdefault(model.name, "session_expired")

    async def _expire(self) -> None:
        self.running.service.expire()

    def _step(self, model: Model, index: int, action: str) -> Coroutine[Any, Any, Any]:
        return self.running.service.step(model.name, Step(step_index=index, action=action, epoch=model.epoch))

    def _renew(self, model: Model) -> None:
        model.renewed = self.running.now

    def _is_gone(self, model: Model, index: int, action: str) -> bool:
        if model.name not in self.gone:
            return False
        assert self.running.refused(self._step(model, index, action)) == self.gone[model.name]
        return True


def test_any_sequence_of_requests_follows_the_rules(tmp_path: Path) -> None:
    Machine.running = Running(tmp_path)
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=25,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        journals = list((tmp_path / "sessions").iterdir())
        assert not journals, "a closed session leaves no journal"
    finally:
        Machine.running.stop()
