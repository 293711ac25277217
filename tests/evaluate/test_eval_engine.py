"""`cope eval` on the real ScienceWorld engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from env_servers.install import install


@pytest.mark.slow
@pytest.mark.engine
def test_sciworld_interrupted_and_continued_on_the_real_engine(tmp_path: Path) -> None:
    install("sciworld")
    cope = str(Path(sys.executable).with_name("cope"))
    command = [cope, "eval", "--panel", "sciworld_quickstart", "--limit", "4", "--policy", "gold", "--out"]
    process = subprocess.Popen(
        [*command, "run", "--concurrency", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    episodes = tmp_path / "run" / "trajectories.jsonl"
    end = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < end and not (episodes.exists() and episodes.read_text()):
        time.sleep(0.05)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    if process.returncode:
        assert process.returncode == 130 and "What was played is kept" in text and "Traceback" not in text, text
    kept = len(episodes.read_text().splitlines())
    assert kept >= 1
    for folder in ("run", "fresh"):
        done = subprocess.run([*command, folder], cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
    results = [(tmp_path / folder / "result.json").read_bytes() for folder in ("run", "fresh")]
    trajectories = [(tmp_path / folder / "trajectories.jsonl").read_bytes() for folder in ("run", "fresh")]
    assert len(set(results)) == 1 and len(set(trajectories)) == 1
    assert json.loads(results[0])["metrics"]["success"]["value"] == 1.0
