"""The client of the service: sessions over HTTP, on one server or several.

Speaks the protocol and nothing else: it knows no benchmark and parses no model text. `CopeEnv` is built on it.
"""

from __future__ import annotations

import atexit
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import parent_process, util
from typing import Any, cast
from uuid import uuid4
from weakref import WeakSet, finalize

from cope_gym.errors import CopeError, InfrastructureError, InputError, LostSession, from_problem
from cope_gym.keeper import Keeper
from cope_gym.session import Action, Reply, Session, TaskInfo, mapping, start_request
from cope_gym.transport import QUICK, Patience, Transport, check_protocol, encode

FIRST_CONTACT = 5.0
"""Seconds over which a server that has never answered is tried."""


class Client:
    """A connection to one server, or to several that share the load.

    A heartbeat keeps all its sessions alive until they are closed, dropped, or the process ends. Threads may share a
    client; it pickles (without its sessions) and survives a fork (the child owns no session of its parent's).

    Args:
        base_url: Address, or several; by default `$COPE_BASE_URL` (comma-separated).
        token: Bearer token; by default `$COPE_TOKEN`.
        patience: How long calls wait.

    Examples:
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     session = client.create("sciworld", task_id="boil/0")
        ...     reply = session.step("look around")
    """

    def __init__(
        self, base_url: str | Sequence[str] | None = None, token: str | None = None, patience: Patience | None = None
    ) -> None:
        self.base_urls = addresses(base_url)
        self.token = token if token is not None else os.environ.get("COPE_TOKEN")
        self.patience = patience or Patience()
        self._warm: float | None = None
        self._open()

    def _open(self) -> None:
        self._transport = Transport(self.token, self.patience)
        self._keeper = Keeper(self._transport, self._warm)
        self._checked: set[str] = set()
        finalize(self, self._keeper.stop).atexit = False
        _clients.add(self)
        _close_at_exit()

    # What there is

    def envs(self) -> list[dict[str, Any]]:
        """Returns the environments of the service, with splits, step limit and action format."""
        return self.call("GET", self._any(), "/v1/envs")["envs"]

    def metadata(self) -> dict[str, Any]:
        """Returns versions and data digests."""
        return self.call("GET", self._any(), "/metadata")

    def tasks(self, env: str, split: str | None = None, page: int = 5000) -> list[TaskInfo]:
        """Returns the tasks of a split in the benchmark's published order.

        Args:
            env: Short environment name.
            split: The benchmark's split; by default the first, which is the training split.
            page: Tasks a call.

        Raises:
            InputError: No such environment or split; the message has near names.
        """
        base = self._any()
        found: list[TaskInfo] = []
        while True:
            params = {"split": split, "offset": len(found), "limit": page}
            data = self.call("GET", base, f"/v1/envs/{env}/tasks", params=params)
            found += [TaskInfo(task["id"], task["split"], task["category"]) for task in data["tasks"]]
            if len(found) >= data["total"] or not data["tasks"]:
                return found

    def gold(self, env: str, task_id: str, options: Mapping[str, Any] | None = None) -> list[Action] | None:
        """Returns actions that solve the task, or `None` where the benchmark has none. Not for agents."""
        params = {"task_id": task_id, "options": _json_parameter(options)}
        return self.call("GET", self._any(), f"/v1/envs/{env}/gold", params=params)["actions"]

    # Episodes

    def create(
        self,
        env: str,
        task_id: str | None = None,
        *,
        split: str | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> Session:
        """Starts an episode on the server that holds the fewest of ours.

        Args:
            env: Short environment name, e.g. `sciworld`.
            task_id: The task; by default the seed picks one, and without a seed chance does.
            split: The split to pick from.
            seed: Seed of the task choice and of what the benchmark leaves open.
            options: Options of the benchmark.
            max_steps: Step limit; by default that of the published protocol.

        Raises:
            InputError: Unknown environment, task, split or option; the message has near names.
            InfrastructureError: No server, no room, or no worker, after the client's patience.
        """
        body = start_request(env, task_id, split, seed, options, max_steps)
        key = uuid4().hex
        started = time.monotonic()
        attempt = 0
        while True:
            fault: InfrastructureError | None = None
            for base in self._by_load():
                try:
                    # One quick retry under the same key: a lost reply must not leave a second session elsewhere.
                    waits = replace(self.patience, total=0.0)
                    return self.adopt(base, self.call("POST", base, "/v1/sessions", body, key=key, patience=waits))
                except InfrastructureError as error:
                    fault = error
            assert fault is not None
            attempt += 1
            delay = self.patience.delay(fault, attempt, time.monotonic() - started)
            if delay is None:
                raise fault
            time.sleep(delay)

    def resume(self, session_id: str) -> Session:
        """Takes over a running session, e.g. after a crash of its client, with its `transcript`.

        Another client that still uses it is told `superseded` from then on.

        Raises:
            LostSession: No server of this client has it.
        """
        fault: CopeError | None = None
        for base in self._by_load():
            try:
                return self.adopt(base, self.call("POST", base, f"/v1/sessions/{session_id}/attach"))
            except (LostSession, InfrastructureError) as error:
                fault = error
        assert fault is not None
        raise fault

    def step_many(self, steps: Sequence[tuple[Session, Action]]) -> list[Reply | CopeError]:
        """Steps several sessions in one round trip a server.

        Args:
            steps: Sessions with their actions; no session twice.

        Returns:
            In the same order, a reply, or the error of that session alone.
        """
        results: list[Reply | CopeError | None] = [None] * len(steps)
        pending = list(range(len(steps)))
        started = time.monotonic()
        attempt = 0
        while pending:
            for index, result in self._step_once(steps, pending):
                results[index] = result
            attempt += 1
            elapsed = time.monotonic() - started
            delays = {
                index: delay
                for index in pending
                if isinstance(result := results[index], CopeError)
                and (delay := self.patience.delay(result, attempt, elapsed)) is not None
            }
            pending = list(delays)
            if delays:
                time.sleep(max(delays.values()))
        return cast("list[Reply | CopeError]", results)

    def _step_once(
        self, steps: Sequence[tuple[Session, Action]], indexes: Iterable[int]
    ) -> list[tuple[int, Reply | CopeError]]:
        by_base: dict[str, list[int]] = {}
        for index in indexes:
            by_base.setdefault(steps[index][0].base_url, []).append(index)
        if len(by_base) == 1:
            return self._step_server(steps, *next(iter(by_base.items())))
        with ThreadPoolExecutor(len(by_base)) as pool:
            futures = [pool.submit(self._step_server, steps, base, group) for base, group in by_base.items()]
            return [result for future in futures for result in future.result()]

    def _step_server(
        self, steps: Sequence[tuple[Session, Action]], base: str, indexes: list[int]
    ) -> list[tuple[int, Reply | CopeError]]:
        items = [{"session_id": steps[i][0].id, **steps[i][0].request(steps[i][1])} for i in indexes]
        try:
            data = self.call("POST", base, "/v1/step_many", {"steps": items}, key=uuid4().hex)
        except CopeError as error:
            return [(index, error) for index in indexes]
        results: list[tuple[int, Reply | CopeError]] = []
        for index, item in zip(indexes, data["results"], strict=True):
            if "error" in item:
                results.append((index, from_problem(item["error"])))
            else:
                steps[index][0].reply = Reply.read(item)
                results.append((index, steps[index][0].reply))
        return results

    # Plumbing

    def call(self, method: str, base: str, path: str, body: Any = None, **kwargs: Any) -> Any:
        """Makes one call of the protocol; see `Transport.call`."""
        if base not in self._checked:
            # An address that has never answered is more likely wrong than busy.
            first = replace(self.patience, total=min(self.patience.total, FIRST_CONTACT))
            check_protocol(base, self._transport.call("GET", base, "/health", patience=kwargs.get("patience", first)))
            self._checked.add(base)
        return self._transport.call(method, base, path, body, **kwargs)

    def adopt(self, base: str, data: Mapping[str, Any]) -> Session:
        """Makes this client the owner of a session that the service described."""
        if parent_process() is not None:
            _close_when_process_ends(os.getpid())
        session = Session(self, base, data)
        self._keeper.add(session)
        return session

    def release(self, session: Session) -> None:
        """Ends a session; see `Session.close`."""
        self._keeper.forget(session.id)
        try:
            self._transport.call("DELETE", session.base_url, session.path, key=uuid4().hex, patience=QUICK)
        except InfrastructureError:
            return  # its lease ends it

    def close(self) -> None:
        """Ends all sessions of this client and its thread. A later call opens it again."""
        self._keeper.stop()
        dead: set[str] = set()
        for session in self._keeper.sessions():
            self._keeper.forget(session.id)
            if session.base_url not in dead:
                try:
                    self._transport.call("DELETE", session.base_url, session.path, key=uuid4().hex, patience=QUICK)
                except CopeError:
                    dead.add(session.base_url)
        self._keeper.join(2.0)
        self._transport.close()

    def _any(self) -> str:
        return self._by_load()[0]

    def _by_load(self) -> list[str]:
        return sorted(self._servers(), key=lambda base: (self._keeper.load(base), random.random()))

    def _servers(self) -> list[str]:
        return self.base_urls

    def after_fork(self) -> None:
        """Called in the child of a fork."""
        self._transport.after_fork()
        self._keeper.after_fork()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"base_urls": self.base_urls, "token": self.token, "patience": self.patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._warm = None
        self._open()


__all__ = ["Action", "Client", "Reply", "Session", "TaskInfo", "addresses"]


def addresses(base_url: str | Sequence[str] | None) -> list[str]:
    """Returns the servers that are meant, without a slash at the end.

    Raises:
        InputError: There is none.
    """
    given = base_url if base_url is not None else os.environ.get("COPE_BASE_URL", "")
    named = given.split(",") if isinstance(given, str) else list(given)
    found = [address.strip().rstrip("/") for address in named if address.strip()]
    if not found:
        raise InputError("Name a server: base_url='http://…', or set COPE_BASE_URL.", type="no_server")
    return found


def _json_parameter(options: Mapping[str, Any] | None) -> str | None:
    return encode(mapping(options)).decode() if options else None


_clients: WeakSet[Client] = WeakSet()


def _each_client(do: Callable[[Client], None]) -> None:
    for client in list(_clients):
        do(client)


def _close_all() -> None:
    _each_client(Client.close)


@cache
def _close_when_process_ends(pid: int) -> None:
    """A process of `multiprocessing` skips `atexit`; called again in each, hence the argument."""
    util.Finalize(None, _close_all, exitpriority=10)


@cache
def _close_at_exit() -> None:
    """Registers after the first `finalize`, so that goodbyes are said before weakref's own exit handler runs."""
    atexit.register(_close_all)


os.register_at_fork(after_in_child=lambda: _each_client(Client.after_fork))
