"""Experts of the real benchmarks: their solutions win in our prompts and formats, and can be cloned as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cope_gym import trajectory
from cope_gym.actions import parse
from env_servers.install import install

FORMATS = {"alfworld": "react", "webshop": "react", "appworld": "code", "tau2": "plain"}  # ScienceWorld: docs/data.md


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("env", FORMATS)
def test_solutions_are_kept(env: str, tmp_path: Path) -> None:
    install(env)
    command = [sys.executable, "-m", "cope_gym", "data", "experts", env, "--limit", "2", "--out", "experts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = list(trajectory.read(tmp_path / "experts" / "experts.jsonl"))
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.success and episode.terminated and episode.score == 1.0 and episode.versions["data_digest"]
        assert episode.messages[0]["role"] == "system" and not episode.messages[1]["content"].endswith(" …")
        for turn in episode.turns:
            assert parse(episode.messages[turn.message]["content"], FORMATS[env]).action == turn.action
