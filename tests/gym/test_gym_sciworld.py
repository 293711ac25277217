"""`gym.make` on the real ScienceWorld, with nothing else said."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import cope_gym
from cope_gym.client import Client
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.server import LocalClient, LocalServer
from env_servers.install import install
from tests.gym.conftest import HOME

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _real_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the benchmark is installed; other tests here use a cache folder of their own."""
    monkeypatch.delenv("COPE_BASE_URL", raising=False)
    if HOME is None:
        monkeypatch.delenv("COPE_HOME", raising=False)
    else:
        monkeypatch.setenv("COPE_HOME", HOME)
    install("sciworld")


@pytest.fixture
def client() -> Iterator[Client]:
    with LocalClient("sciworld") as client:
        yield client


def javas(session: int) -> list[int]:
    """JVMs that a server started: they keep its environment variables, whoever their parent is."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                marked = f"COPE_TEST_MARK={session}".encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"java" in command.split(b"\0")[0] and marked:
                found.append(int(entry.name))
    return found


def until_none(mark: int, seconds: float = 40) -> bool:
    deadline = time.monotonic() + seconds
    while javas(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not javas(mark)


def test_check_env_and_the_ten_lines_of_the_readme() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("cope/SciWorld-v0", task_id="boil/0", render_mode="ansi")
        check_env(env.unwrapped, skip_close_check=True)
        observation, info = env.reset(seed=0)
        assert observation.startswith("Your task is to boil water") and info["score"] == 0.0
        for _ in range(40):
            observation, _, terminated, truncated, info = env.step("look around")
            if terminated or truncated:
                break
        assert (terminated, truncated, info["steps"]) == (False, True, info["max_steps"])
        env.close()


def test_fork_and_tasks(client: Client) -> None:
    env = CopeEnv("sciworld", client=client, task_id="boil/0")
    env.reset(seed=0)
    env.step("open door to kitchen")
    twin = env.fork()
    assert twin.step("go to kitchen") == env.step("go to kitchen")
    assert "kitchen" in env.step("look around")[0]
    dev = cope_gym.tasks("cope/SciWorld-v0", split="dev")
    assert (dev.env, dev.split, dev[0]) == ("sciworld", "dev", "boil/14")
    assert dev.to_dataset().column_names == ["env", "task_id", "split", "category"]
    with pytest.raises(InputError, match="boil/0"):
        env.reset(options={"task_id": "boill/0"})


def test_a_killed_server_leaves_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPE_TEST_MARK", str(os.getpid()))
    server = LocalServer("sciworld", idle_exit=9)
    with LocalClient(server) as client:
        CopeEnv("sciworld", client=client).reset(seed=0)
        assert javas(os.getpid())
        os.kill(server.address().pid, signal.SIGKILL)
        assert until_none(os.getpid())
