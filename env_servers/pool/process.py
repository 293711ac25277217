"""One worker process, as the service sees it: requests by number over a socket pair, deadlines, death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from env_servers.adapter import Facts
from env_servers.errors import ServiceError
from env_servers.pool.base import (
    BystanderError,
    EpisodeFaultError,
    Hello,
    WorkerDiedError,
    WorkerSpec,
    WorkerTimeoutError,
)
from env_servers.pool.reaper import Reaper, kill_group
from env_servers.pool.workers import PoolWorker
from env_servers.worker import framing

log = logging.getLogger(__name__)

_MAIN = Path(__file__).resolve().parents[1] / "worker" / "main.py"
_LAST_WORDS = 20


class _Pipe(asyncio.Protocol):
    """The end of the socket pair; a stream with a task that reads it would take two more turns of the loop."""

    def __init__(self, answered: Callable[[dict[str, Any]], None], gone: Callable[[], None]) -> None:
        self._answered = answered
        self._gone = gone
        self._frames = framing.Frames()

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._frames.feed(data):
                self._answered(reply)
        except (framing.FrameError, ValueError) as error:
            log.error("unreadable reply", extra={"error": str(error)})
            self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()  # the end of the stream is how a death shows


class WorkerProcess(PoolWorker):
    """A child process in a session and process group of its own."""

    def __init__(self, spec: WorkerSpec, reaper: Reaper) -> None:
        super().__init__(spec)
        self._reaper = reaper
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: asyncio.Transport | None = None
        self._listening: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._turn = asyncio.Lock()
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)

    @property
    def calls(self) -> int:
        """Number of calls that wait for their reply."""
        return len(self._waiting)

    async def start(self, timeout: float) -> None:
        """See `PoolWorker.start`."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [self.spec.python, *([] if self.spec.paths else ["-I"]), str(_MAIN)]
            command += ["--adapter", self.spec.adapter, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            command += ["--settings", json.dumps(dict(self.spec.settings))]
            command += [part for path in self.spec.paths for part in ("--path", path)]
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**_inherited(), "PYTHONUNBUFFERED": "1", **self.spec.environ},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._reaper.add(self.pid)
        loop = asyncio.get_running_loop()
        self._pipe, _ = await loop.create_connection(lambda: _Pipe(self._answered, self.kill), sock=ours)
        self._listening = asyncio.create_task(self._listen())
        try:
            said = await self.call("hello", timeout)
        except EpisodeFaultError as error:
            self.kill()
            raise WorkerDiedError(f"the adapter of {self.spec.name} failed to start: {error}") from error
        except ServiceError:
            self.kill()
            raise
        facts = Facts(**said["facts"])
        self.hello = Hello(facts, tuple(said["splits"]), said["python"])

    async def call(self, op: str, timeout: float, **arguments: Any) -> Any:
        """See `Worker.call`."""
        threads = self.hello is not None and self.hello.facts.concurrency == "threads"
        # The deadline counts execution only: where calls run one after another, they queue here and not in the worker.
        async with contextlib.nullcontext() if threads else self._turn:
            return await self._exchange(op, timeout, arguments)

    async def _exchange(self, op: str, timeout: float, arguments: dict[str, Any]) -> Any:
        if not self.alive or self._pipe is None:
            # Nothing was sent: what killed it was not this call, which may have waited for its turn.
            raise BystanderError(self._obituary())
        self._number += 1
        number = self._number
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._pipe.write(framing.encode({"id": number, "op": op, "args": arguments}))
            async with asyncio.timeout(timeout):
                reply = await waiting
        except TimeoutError:
            self.kill(BystanderError(f"the worker of {self.spec.name} was killed for another session's step"))
            raise WorkerTimeoutError(f"{op} took longer than {timeout:g} s; its worker was killed") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            error = reply["error"]
            raise ServiceError(error["type"], error["detail"], error["retryable"], **error["extra"])
        if "fault" in reply:
            raise EpisodeFaultError(reply["fault"])
        return reply["ok"]

    def kill(self, others: WorkerDiedError | None = None) -> None:
        """See `PoolWorker.kill`."""
        if self._process is None or self._dead.is_set():
            return
        self._dead.set()
        kill_group(self.pid)
        self._reaper.remove(self.pid)
        if self._pipe is not None:
            self._pipe.abort()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(others or WorkerDiedError(self._obituary()))

    async def close(self, timeout: float = 5.0) -> None:
        """See `PoolWorker.close`."""
        if self.alive and not self.calls:
            with contextlib.suppress(WorkerDiedError, EpisodeFaultError, ServiceError):
                await self.call("shutdown", timeout)
        self.kill()
        if self._process is not None:
            await self._process.wait()
        if self._listening is not None:
            await asyncio.gather(self._listening, return_exceptions=True)

    def _answered(self, reply: dict[str, Any]) -> None:
        waiting = self._waiting.get(reply["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        reader = self._process.stderr
        while line := await _line(reader):
            text = line.decode(errors="replace").rstrip()
            self._last_words.append(text)
            log.debug("worker says", extra={"worker": self.id, "text": text})

    def last_words(self) -> str:
        """See `PoolWorker.last_words`."""
        return next((line for line in reversed(self._last_words) if line.strip()), "")

    def _obituary(self) -> str:
        words = self.last_words()
        return f"the worker of {self.spec.name} died" + (f" ({words[:300]})" if words else "")


def _inherited() -> dict[str, str]:
    # Code that a model wrote may run in there: the service's token is not for it.
    return {name: value for name, value in os.environ.items() if name != "COPE_TOKEN"}


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:  # a line beyond the buffer's limit
        return b"(long line)\n"
