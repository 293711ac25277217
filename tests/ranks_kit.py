"""A script in two processes, as ranks of one group."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def launch(script: Path, folder: Path) -> None:
    """Runs `python SCRIPT FOLDER` as two ranks. Starting takes longest: whatever can share a launch should."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=500)[0] for rank in processes]
    finally:
        for rank in processes:
            rank.kill()
    assert [rank.returncode for rank in processes] == [0, 0], outputs
