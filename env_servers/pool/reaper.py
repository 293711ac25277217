"""Kills workers' process groups after the service itself was killed.

A worker dies with its parent (`worker/parent.py`), but a JVM that it started does not. So one small process beside the
service holds the list of process groups and, when its pipe closes for whatever reason, kills them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import IO, cast


class Reaper:
    """The service's side."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        """Puts a process group on the list."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Takes a group, already killed, off the list (its number may be used again)."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends the reaper, and with it every group still on the list."""
        if self._process is not None:
            cast("IO[bytes]", self._process.stdin).close()
            self._process.wait()
            self._process = None

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._write(line)

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._write("".join(f"+{group}\n" for group in self._groups))

    def _write(self, lines: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        # A reaper that was killed is started again, with the whole list, at the next change.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(lines.encode())
            self._process.stdin.flush()


def kill_group(group: int) -> None:
    """Kills every process of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """The reaper process: reads the list until the service is gone."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group)


if __name__ == "__main__":
    main()
