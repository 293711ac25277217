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
        self._pipes: tuple[IO[bytes], IO[bytes]] | None = None
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
        if self._pipes is not None:
            given, told = self._pipes
            with contextlib.suppress(BrokenPipeError):
                given.close()
            told.read()  # until it has ended
            told.close()
            self._pipes = None

    def _tell(self, line: str) -> None:
        try:
            self._write(line)
        except BrokenPipeError:  # it was killed: another one gets the whole list
            self.close()
            self._start()

    def _write(self, lines: str) -> None:
        if self._pipes is None:
            raise BrokenPipeError
        self._pipes[0].write(lines.encode())
        self._pipes[0].flush()

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        process.wait()  # it goes on as an orphan, see `main`
        self._pipes = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        self._write("".join(f"+{group}\n" for group in self._groups))


def kill_group(group: int) -> None:
    """Kills every process of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """The reaper process: reads the list until the service is gone.

    It is no child of the service: some who end a process (Ray does) kill its children first.
    """
    if os.fork():
        os._exit(0)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group)


if __name__ == "__main__":
    main()
