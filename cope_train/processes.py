"""Child processes in groups of their own, so that ending one ends all that came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

GRACE = 20.0
"""Seconds between the request to end and the end by force."""


@contextmanager
def group(
    command: Sequence[str], environ: Mapping[str, str], log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in its own process group; at the end nobody of the group is left.

    Args:
        command: Program and arguments.
        environ: Its environment.
        log: File for what it says; by default our own output.
    """
    out = log.open("ab") if log else None
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)
    finally:
        if out:
            out.close()


def _end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    deadline = time.monotonic() + grace
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()  # a child that nobody waits for would count as there
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def orderly() -> Iterator[None]:
    """Turns the signals that end a process into an exception, so that what was started is ended too."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
