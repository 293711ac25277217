"""Memory of worker process groups and of the machine, read from /proc (0 or unlimited where there is none)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else 4096


def group_rss() -> dict[int, int]:
    """Returns the resident bytes of every process group on this machine, children included."""
    total: dict[int, int] = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        group, pages = int(fields[2]), int(fields[21])
        total[group] = total.get(group, 0) + pages * _PAGE
    return total


def group_pss(group: int) -> int:
    """Returns the bytes of a process group, pages that processes share divided among them.

    Slower than `group_rss`. A process that the kernel does not tell of counts with its resident bytes.
    """
    total = 0
    for pid in _pids():
        try:
            if os.getpgid(int(pid)) == group:
                total += _process_pss(pid) or process_rss(int(pid))
        except ProcessLookupError:  # it ended meanwhile
            continue
    return total


def process_rss(pid: int) -> int:
    """Returns the resident bytes of one process."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def _process_pss(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return 0


def tree_rss(pid: int) -> int:
    """Returns the resident bytes of a process and all of its descendants."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    total = process_rss(pid)
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                total += sum(tree_rss(int(child)) for child in file.read().split())
        except OSError:  # it ended meanwhile
            continue
    return total


def available() -> float:
    """Returns the bytes that can still be had without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float("inf")


def _pids() -> Iterator[str]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return iter(())
    return (name for name in names if name.isdigit())
