"""WebShop as users have it: installed, served, and behind `gym.make`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import cope_gym
from env_servers.install import install

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def python(home: Path) -> Path:
    return install("webshop")


@pytest.fixture
def env(python: Path) -> Iterator[gym.Env[str, Any]]:
    made = gym.make("cope/WebShop-v0", split="test")
    yield made
    made.close()


def test_gym_make(env: gym.Env[str, Any]) -> None:
    check_env(env.unwrapped)
    observation, info = env.reset(seed=7)
    assert observation.startswith("WebShop [SEP] Instruction: [SEP] ")
    assert (info["split"], info["max_steps"]) == ("test", 15)
    again, _ = env.reset(seed=7)
    assert again == observation
    for _ in range(14):
        assert not env.step("click[no such button]")[3]
    _, reward, terminated, truncated, info = env.step("search[shoes]")
    assert (reward, terminated, truncated, info["steps"]) == (0.0, False, True, 15)


def test_gold_through_the_service(env: gym.Env[str, Any]) -> None:
    _, info = env.reset(seed=1)
    client = env.unwrapped.client  # pyright: ignore[reportAttributeAccessIssue]
    for action in client.gold("webshop", info["task_id"]):
        _, reward, terminated, _, info = env.step(action)
    assert terminated and reward == 1.0 and info["success"]
    with pytest.raises(cope_gym.SessionError, match="over"):
        env.step("search[shoes]")


RESETS = """
import gc, json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from env_servers.webshop.adapter import ADAPTER
adapter = ADAPTER({})
tasks = [task.id for split in adapter.splits() for task in adapter.tasks(split)]

def usage():
    gc.collect()
    status = open("/proc/self/status").read()
    return {
        "rss": int(status.split("VmRSS:")[1].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "maps": open("/proc/self/maps").read().count("\\n"),
    }

seen = []
for number in range(200):
    task = tasks[number * 17 % len(tasks)]
    episode = adapter.start(task, None, {})
    for action in adapter.gold(task, {}) or ["search[shoes]"]:
        episode.step(action)
    episode.close()
    if number in (49, 199):
        seen.append(usage())
print(json.dumps(seen))
"""


def test_two_hundred_episodes_leave_nothing_behind(python: Path) -> None:
    """In the benchmark's own environment, where nothing but its lock is installed."""
    run = subprocess.run([python, "-I", "-c", RESETS, str(ROOT)], stdout=subprocess.PIPE, text=True, check=True)
    early, late = json.loads(run.stdout)
    assert late["rss"] <= early["rss"] * 1.03
    assert {**late, "rss": 0, "maps": 0} == {**early, "rss": 0, "maps": 0}
    assert late["maps"] <= early["maps"] * 1.03
