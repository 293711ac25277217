"""The client for programs that run on asyncio and hold thousands of episodes at once.

The same calls as `client.Client`, awaited. HTTP/1.1 on asyncio's own streams: a general client would spend more time
on a request than the service does. No proxies; all else (retries, typed errors, leases) is as for the other client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

from cope_gym.client import FIRST_CONTACT, addresses
from cope_gym.errors import CopeError, InfrastructureError, InputError
from cope_gym.session import Action, Reply, SessionState, TaskInfo, start_request
from cope_gym.transport import QUICK, Patience, check_protocol, decode, encode, unreachable

logger = logging.getLogger(__name__)

_BATCH = 4096
_Headers = dict[str, str]


class AsyncSession(SessionState):
    """One running episode. One call at a time; a client's sessions are independent of each other."""

    def __init__(self, client: AsyncClient, base_url: str, data: Mapping[str, Any]) -> None:
        super().__init__(base_url, data)
        self._client = client

    async def step(self, action: Action) -> Reply:
        """Executes one action exactly once; see `Session.step`."""
        data = await self._client.call("POST", self.base_url, f"{self.path}/step", self.request(action))
        self.reply = Reply.read(data)
        return self.reply

    async def fork(self) -> AsyncSession:
        """Returns a second session in the same state."""
        data = await self._client.call("POST", self.base_url, f"{self.path}/fork", key=uuid4().hex)
        return self._client.adopt(self.base_url, data)

    async def close(self) -> None:
        """Frees the session; harmless when it is already gone."""
        await self._client.release(self)


class AsyncClient:
    """A connection to one server, or to several that share the load, within one event loop.

    Use it as an asynchronous context manager: leaving ends all its sessions.

    Args:
        base_url: Address, or several; by default `$COPE_BASE_URL`.
        token: Bearer token; by default `$COPE_TOKEN`.
        patience: How long calls wait.
        connections: Open connections a server; further calls wait for one.

    Examples:
        >>> async with AsyncClient("http://127.0.0.1:8420") as client:
        ...     session = await client.create("sciworld", "boil/0")
        ...     reply = await session.step("look around")
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        token: str | None = None,
        patience: Patience | None = None,
        connections: int = 4096,
    ) -> None:
        self.base_urls = addresses(base_url)
        self.patience = patience or Patience()
        token = token if token is not None else os.environ.get("COPE_TOKEN")
        self._servers = {base: _Server(base, token, connections) for base in self.base_urls}
        self._sessions: dict[str, AsyncSession] = {}
        self._checked: set[str] = set()
        self._beating: asyncio.Task[None] | None = None
        _allow_files(connections * len(self.base_urls))

    async def __aenter__(self) -> AsyncClient:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all sessions and connections."""
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.gather(*(session.close() for session in list(self._sessions.values())))
        for server in self._servers.values():
            server.close()

    async def envs(self) -> list[dict[str, Any]]:
        """Returns the environments of the service."""
        return (await self.call("GET", self._by_load()[0], "/v1/envs"))["envs"]

    async def tasks(self, env: str, split: str | None = None) -> list[TaskInfo]:
        """Returns the tasks of a split; see `Client.tasks`."""
        query = urlencode({"limit": 100_000, **({} if split is None else {"split": split})})
        data = await self.call("GET", self._by_load()[0], f"/v1/envs/{quote(env, safe='')}/tasks?{query}")
        return [TaskInfo(task["id"], task["split"], task["category"]) for task in data["tasks"]]

    async def create(
        self,
        env: str,
        task_id: str | None = None,
        *,
        split: str | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> AsyncSession:
        """Starts an episode on the server that holds the fewest of ours; see `Client.create`."""
        body = start_request(env, task_id, split, seed, options, max_steps)
        key = uuid4().hex
        waits = replace(self.patience, total=0.0)
        started = time.monotonic()
        attempt = 0
        while True:
            fault: InfrastructureError | None = None
            for base in self._by_load():
                try:
                    return self.adopt(base, await self.call("POST", base, "/v1/sessions", body, key, waits))
                except InfrastructureError as error:
                    fault = error
            assert fault is not None
            attempt += 1
            delay = self.patience.delay(fault, attempt, time.monotonic() - started)
            if delay is None:
                raise fault
            await asyncio.sleep(delay)

    async def resume(self, session_id: str) -> AsyncSession:
        """Takes over a running session, with its `transcript`; see `Client.resume`."""
        fault: CopeError | None = None
        for base in self._by_load():
            try:
                return self.adopt(base, await self.call("POST", base, f"/v1/sessions/{session_id}/attach"))
            except InfrastructureError as error:
                fault = error
        assert fault is not None
        raise fault

    async def call(
        self,
        method: str,
        base: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        patience: Patience | None = None,
    ) -> Any:
        """Makes one call of the protocol, repeated as `Transport.call` does."""
        if base not in self._checked:
            first = replace(self.patience, total=min(self.patience.total, FIRST_CONTACT))
            check_protocol(base, await self._repeat("GET", base, "/health", None, None, first))
            self._checked.add(base)
        content = None if body is None else encode(body)
        return await self._repeat(method, base, path, content, key, patience or self.patience)

    def adopt(self, base: str, data: Mapping[str, Any]) -> AsyncSession:
        """Makes this client the owner of a session that the service described."""
        session = self._sessions[data["session_id"]] = AsyncSession(self, base, data)
        return session

    async def release(self, session: AsyncSession) -> None:
        """Ends a session; see `AsyncSession.close`."""
        self._sessions.pop(session.id, None)
        with contextlib.suppress(InfrastructureError):  # its lease ends it
            await self._repeat("DELETE", session.base_url, session.path, None, uuid4().hex, QUICK)

    async def _repeat(
        self, method: str, base: str, path: str, content: bytes | None, key: str | None, waits: Patience
    ) -> Any:
        started = time.monotonic()
        attempt = 0
        while True:
            try:
                return await self._servers[base].request(method, path, content, key, waits)
            except CopeError as raised:
                error = raised
            attempt += 1
            delay = waits.delay(error, attempt, time.monotonic() - started)
            if delay is None:
                raise error
            await asyncio.sleep(delay)

    def _by_load(self) -> list[str]:
        load = dict.fromkeys(self.base_urls, 0)
        for session in self._sessions.values():
            load[session.base_url] += 1
        return sorted(self.base_urls, key=lambda base: (load[base], random.random()))

    async def _beat(self) -> None:
        """Renews all leases, and keeps servers that leave when idle."""
        while True:
            await asyncio.sleep(min([session.lease_seconds / 3 for session in self._sessions.values()] + [5.0]))
            for base in self.base_urls:
                ids = [session.id for session in self._sessions.values() if session.base_url == base]
                for start in range(0, len(ids) or 1, _BATCH):
                    content = encode({"session_ids": ids[start : start + _BATCH]})
                    try:
                        await self._repeat("POST", base, "/v1/heartbeat", content, None, Patience(2, 10, 5))
                    except CopeError as error:
                        if ids:
                            logger.warning("heartbeat: %s", error)


class _Server:
    """Kept connections to one server."""

    def __init__(self, base: str, token: str | None, connections: int) -> None:
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"'{base}' is no server address: write one like http://127.0.0.1:8000.", type="bad_request"
            )
        self._base = base
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._prefix = parts.path
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        self._head += f"Authorization: Bearer {token}\r\n" if token else ""
        self._free = asyncio.Semaphore(connections)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(self, method: str, path: str, content: bytes | None, key: str | None, waits: Patience) -> Any:
        """Makes one call, once."""
        async with self._free:
            try:
                async with asyncio.timeout(waits.connect):
                    reader, writer = self._idle.pop() if self._idle else await self._connect()
                try:
                    async with asyncio.timeout(waits.read):
                        writer.write(self._encode(method, path, content or b"", key))
                        status, headers, reply = await _read(reader)
                except BaseException:
                    writer.close()
                    raise
            except TimeoutError:
                raise unreachable(self._base, f"none within {waits.read:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                raise unreachable(self._base, getattr(error, "strerror", None) or type(error).__name__) from None
        if headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return decode(self._base, status, headers.get("content-type", ""), reply, headers.get("retry-after"))

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    def _encode(self, method: str, path: str, content: bytes, key: str | None) -> bytes:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n"
        head += f"Idempotency-Key: {key}\r\n" if key else ""
        return f"{head}\r\n".encode() + content


async def _read(reader: asyncio.StreamReader) -> tuple[int, _Headers, bytes]:
    """Reads one reply."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return status, headers, await _read_chunks(reader)
    return status, headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Reads a body that a proxy has cut up."""
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass  # trailers
    return b"".join(parts)


def _allow_files(wanted: int) -> None:
    """Raises this process's limit of open files, within what the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(wanted + 256, hard if hard != resource.RLIM_INFINITY else wanted + 256)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


async def step_many(steps: Sequence[tuple[AsyncSession, Action]]) -> list[Reply | CopeError]:
    """Steps several sessions side by side; an error is that of its session alone."""

    async def one(session: AsyncSession, action: Action) -> Reply | CopeError:
        try:
            return await session.step(action)
        except CopeError as error:
            return error

    return list(await asyncio.gather(*(one(session, action) for session, action in steps)))
