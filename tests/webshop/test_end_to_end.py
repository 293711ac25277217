"""WebShop as users have it: installed, served, and behind `gym.make`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from adapter_kit import AdapterWorker, assert_flat
from gymnasium.utils.env_checker import check_env

import cope_gym
from env_servers.install import install
from env_servers.webshop.adapter import WebShopAdapter
from tests.service.conftest import Server

pytestmark = pytest.mark.engine


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


def test_agentgym_s_numbers_are_places_in_the_published_order(
    python: Path, adapter: WebShopAdapter, tmp_path: Path
) -> None:
    """Through the routes that its clients call; `session_id` is what it calls a goal's number."""
    server = Server(tmp_path, "--env", "webshop", "--warm", "0")
    try:

        def post(path: str, **body: Any) -> Any:
            return server.http.post(f"/agentgym/webshop/{path}", json=body)

        first = server.http.get("/v1/envs/webshop/tasks", params={"split": "test", "limit": 4}).json()["tasks"]
        number = post("create").json()
        for place in (3, 0):
            shown, _ = post("reset", env_idx=number, session_id=place).json()
            same = server.create("webshop", task_id=f"agentgym/{place}")
            assert (same["observation"], same["task_id"]) == (shown, first[place]["id"])
        assert post("step", env_idx=number, action="click[nothing]").json() == {
            "state": shown,
            "reward": 0.0,
            "done": False,
            "info": None,
        }
        missing = post("reset", env_idx=number, session_id=10**6)
        assert missing.status_code == 404 and "numbered from 0" in missing.json()["detail"]
        assert post("close", env_idx=number).json() is True
    finally:
        server.stop()


@pytest.mark.soak
def test_200_resets_do_not_grow(python: Path, temporary: Path) -> None:
    with AdapterWorker(python, "webshop") as worker:
        splits = worker.call("hello")["splits"]
        ids = [task[0] for split in splits for task in worker.call("tasks", split=split)]

        def play(number: int) -> None:
            task = ids[number * 17 % len(ids)]
            worker.start("s", task)
            for action in worker.call("gold", task_id=task, options={}) or ["search[shoes]"]:
                worker.step("s", action)
            worker.end("s")

        assert_flat(worker, temporary, play)
