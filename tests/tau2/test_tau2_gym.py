"""`gym.make` on the real τ²-bench, and a conversation that outlives its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from tau2_kit import Customer

from cope_gym.errors import InputError
from cope_gym.server import LocalClient
from tests.service.conftest import Server

pytestmark = pytest.mark.engine
QUIET = {"user": "scripted", "instructions": False}


@pytest.fixture(scope="module")
def client(tau2_python: Path) -> Iterator[LocalClient]:
    """A server of its own kind: started on demand, shared, gone some seconds later. Its customer is scripted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COPE_BASE_URL", raising=False)
        with LocalClient("tau2") as client:
            yield client


def gold(client: LocalClient, task: str) -> list[Any]:
    path = client.gold("tau2", task, {})
    assert path is not None
    return list(path)


def test_a_customer_is_served_through_gymnasium(client: LocalClient) -> None:
    env = gym.make("cope/Tau2-v0", task_id="retail/5")
    check_env(env.unwrapped, skip_render_check=True)
    text, info = env.reset(seed=0)
    assert text.startswith("<policy>\n") and text.splitlines()[-1].startswith("user: ")
    assert (info["user"], info["category"], info["max_steps"], info["score"]) == ("scripted", "retail", 100, 0.0)
    rewards: list[float] = []
    for action in gold(client, "retail/5"):
        text, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0] and len(rewards) > 3
    assert (terminated, truncated, info["success"], info["termination_reason"]) == (True, False, True, "user_stop")
    assert "evaluation_criteria" not in str(info)
    env.close()


def test_the_scripted_customer_answers_and_hangs_up(client: LocalClient) -> None:
    env = gym.make("cope/Tau2-v0", task_id="retail/5", options=QUIET)
    opening, _ = env.reset()
    told, *_ = env.step("May I have your name and zip code?")
    assert told.startswith("user: ") and told != opening
    assert env.step("Shall I proceed (yes/no)?")[0] == "user: Yes."
    text, reward, terminated, truncated, info = env.step("Goodbye.")
    assert "###STOP###" in text and (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    env.close()


def test_interleaved_environments_equal_serial_ones(client: LocalClient) -> None:
    tasks = ["airline/7", "retail/5", "retail/5", client.tasks("tau2", "telecom-test")[0].id]
    paths = [gold(client, task) for task in tasks]
    envs = [gym.make("cope/Tau2-v0", task_id=task, options=QUIET) for task in tasks]
    serial = [
        [env.reset()[0], *(env.step(action)[:4] for action in path)] for env, path in zip(envs, paths, strict=True)
    ]
    together: list[list[Any]] = [[env.reset()[0]] for env in envs]
    for turn in range(max(map(len, paths))):
        for env, path, seen in zip(envs, paths, together, strict=True):
            if turn < len(path):
                seen.append(env.step(path[turn])[:4])
    assert together == serial
    assert [seen[-1][1:3] for seen in serial] == [(1.0, True)] * 4
    for env in envs:
        env.close()


def test_the_service_names_what_is_wrong(client: LocalClient) -> None:
    with pytest.raises(InputError, match="tau2 has no task 'retail/999'"):
        gym.make("cope/Tau2-v0", task_id="retail/999").reset()
    with pytest.raises(InputError, match="user=endpoint needs --set tau2.user_base_url"):
        gym.make("cope/Tau2-v0", task_id="retail/5", options={"user": "endpoint"}).reset()


def test_check_prints_what_doing_nothing_scores(client: LocalClient) -> None:
    """Task 1 of the airline is one in which refusing is right."""
    command = [sys.executable, "-m", "cope_gym", "check", "tau2", "--task", "airline/1", "--task", "retail/5"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("│")[1].strip(): line.split("│")[2:5] for line in done.stdout.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["airline"]] == ["1", "1", "1.00"]
    assert [cell.strip() for cell in rows["retail"]] == ["1", "1", "0.00"]
    assert "Solved by doing nothing, as published: airline/1" in done.stdout


def test_a_model_s_words_outlive_the_worker(tau2_python: Path, customer: Customer, tmp_path: Path) -> None:
    """The worker is killed in mid-conversation: the customer's model is not asked again for what it has said."""
    sets = {"user_base_url": customer.url, "user_model": "someone", "user_timeout": 5}
    flags = [part for key, value in sets.items() for part in ("--set", f"tau2.{key}={value}")]
    server = Server(tmp_path, "--env", "tau2", "--warm", "0", *flags)
    try:
        customer.asked.clear()
        customer.answers[:] = ["My order is late.", "I am Yusuf.", "It is order 7.", "Thanks. ###STOP###"]
        session = server.create("tau2", task_id="retail/3", options={"instructions": False})
        told = [session["observation"].splitlines()[-1]]
        for index, said in enumerate(["Who are you?", "Which order?", "It is on its way."]):
            for pid in server.workers() if index == 1 else []:
                os.kill(pid, signal.SIGKILL)
            reply = server.step(session["session_id"], index, said)
            assert reply.status_code == 200, reply.text
            told.append(reply.json()["observation"])
        assert told == [
            "user: My order is late.",
            "user: I am Yusuf.",
            "user: It is order 7.",
            "user: Thanks. ###STOP###",
        ]
        assert reply.json()["terminated"] and len(customer.asked) == 4
        spoken = [message["content"] for message in customer.asked[-1]["messages"] if message["role"] == "user"]
        assert spoken[-3:] == ["Who are you?", "Which order?", "It is on its way."]
    finally:
        server.stop()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the environment was made with a Python that upstream takes")
def test_upstream_needs_a_newer_python(tau2_python: Path) -> None:
    """Said before the server is up, in one sentence."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "env_servers.front", "--env", "tau2", "--port", "0"]
        done = subprocess.run(
            [*command, "--set", f"tau2.checkout={folder}"], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("`cope install tau2 --python 3.12`")
