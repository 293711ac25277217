"""The automatically started server: shared, gone after its last client, and honest when it cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import pytest

from cope_gym.env import CopeEnv
from cope_gym.errors import InfrastructureError, InputError, LostSession
from cope_gym.server import LocalClient, LocalServer
from tests.gym.conftest import ADAPTER, ROOT

CHILD = """
from cope_gym.env import CopeEnv
from cope_gym.server import LocalClient, LocalServer
server = LocalServer("toy", adapter="tests.gym.toy:ToyAdapter", idle_exit={idle}, lease={lease})
env = CopeEnv("toy", client=LocalClient(server))
env.reset(seed=0)
print(server.address().pid, flush=True)
{then}
"""


def until(done: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.1)
    return False


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        return [int(child) for child in listed.read().split()]


def start(idle: float, lease: float, then: str = "") -> subprocess.Popen[str]:
    code = CHILD.format(idle=idle, lease=lease, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_processes_share_one_server_which_leaves_after_the_last(cope_home: Path) -> None:
    clients = [start(3, 30, "import time; time.sleep(4)") for _ in range(3)]
    pids = {client.communicate(timeout=90)[0].strip() for client in clients}
    assert [client.returncode for client in clients] == [0, 0, 0]
    assert len(pids) == 1
    pid = int(pids.pop())
    workers = children(pid) if alive(pid) else []
    assert until(lambda: not alive(pid) and not any(map(alive, workers)))


def test_a_killed_client_leaves_nothing(cope_home: Path) -> None:
    client = start(2, 3, "import time; time.sleep(60)")
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    workers = children(pid)
    assert workers
    client.kill()
    client.communicate()
    assert until(lambda: not alive(pid) and not any(map(alive, workers)))


def test_a_killed_server_leaves_no_worker_and_the_next_reset_starts_another(cope_home: Path) -> None:
    server = LocalServer("toy", adapter=ADAPTER, idle_exit=5, lease=31)
    with LocalClient(server) as client:
        env = CopeEnv("toy", client=client)
        env.reset(seed=0)
        first = server.address().pid
        workers = children(first)
        os.kill(first, signal.SIGKILL)
        assert until(lambda: not any(map(alive, [first, *workers])))
        with pytest.raises(LostSession, match="`reset` starts another"):
            env.step("forward")
        env.reset(seed=0)
        assert env.step("forward")[0] == "You are at door 1."
        assert server.address().pid != first


def test_it_stays_while_a_client_is_open(cope_home: Path) -> None:
    server = LocalServer("toy", adapter=ADAPTER, idle_exit=4, lease=32)
    with LocalClient(server) as client:
        client.envs()
        pid = server.address().pid
        time.sleep(8)
        assert alive(pid)
    assert until(lambda: not alive(pid))


def test_the_token_is_private(cope_home: Path, address: object) -> None:
    for file in (cope_home / "servers" / str(os.geteuid())).iterdir():
        if file.suffix in (".token", ".json"):
            assert file.stat().st_mode & 0o077 == 0


def test_a_failed_start_quotes_the_log(cope_home: Path) -> None:
    server = LocalServer("toy", adapter="tests.gym.nowhere:ToyAdapter")
    with pytest.raises(InfrastructureError, match="nowhere") as caught:
        server.address()
    assert caught.value.type == "server_start"
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_benchmark_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COPE_HOME", str(tmp_path))
    monkeypatch.delenv("COPE_BASE_URL", raising=False)
    env = gym.make("cope/SciWorld-v0")
    with pytest.raises(InfrastructureError, match="`cope install sciworld`") as caught:
        env.reset()
    assert caught.value.type == "not_installed"


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="COPE_HOME"):
        LocalServer("toy", adapter=ADAPTER).address()


def test_without_the_server_extra_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "import cope_gym, gymnasium as gym\n"
        "try: gym.make('cope/SciWorld-v0')\n"
        "except cope_gym.InfrastructureError as error: print(error.type, error)\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "COPE_BASE_URL"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert said.startswith("no_server") and "pip install 'cope-gym[server]'" in said


def test_a_name_that_no_environment_has_is_the_caller_s_error(cope_home: Path) -> None:
    with pytest.raises(InputError, match="no environment 'sciword'; there are: sciworld") as caught:
        LocalServer("sciword").address()
    assert caught.value.type == "unknown_env"
