"""A worker never outlives the service, however that dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies; ends at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        die()


def die() -> NoReturn:
    """Kills this process and, where it leads a process group of its own, all of its children."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
