"""The client under faults: nothing runs twice, nothing is left behind, every fault has its type."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
import requests

from cope_gym.client import Client, Session
from cope_gym.env import CopeEnv
from cope_gym.errors import CopeError, InfrastructureError, InputError, LostSession, SessionError, from_problem
from cope_gym.server import Address, LocalServer
from cope_gym.transport import Patience
from tests.gym.conftest import ADAPTER, ROOT
from tests.gym.proxy import Proxy


@pytest.fixture
def proxy(address: Address) -> Iterator[Proxy]:
    proxy = Proxy(address.url)
    yield proxy
    proxy.close()


@pytest.fixture
def through(proxy: Proxy, address: Address) -> Iterator[Client]:
    with Client(proxy.url, address.token, Patience(connect=2, read=5, total=5)) as client:
        yield client


def exists(address: Address, session_id: str) -> bool:
    headers = {"Authorization": f"Bearer {address.token}"}
    return requests.get(f"{address.url}/v1/sessions/{session_id}", headers=headers, timeout=5).status_code == 200


def live_sessions(address: Address) -> int:
    headers = {"Authorization": f"Bearer {address.token}"}
    text = requests.get(f"{address.url}/metrics", headers=headers, timeout=5).text
    return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("cope_sessions_live"))


def until(done: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return False


def once(what: str, part: str) -> Callable[[str, str], str]:
    """Does something to the first call whose path holds `part`."""
    left = [what]
    return lambda method, path: left.pop() if part in path and left else "pass"


# Exactly once


@pytest.mark.parametrize("fault", ["drop", "refuse"])
def test_a_lost_reply_never_runs_an_action_twice(proxy: Proxy, through: Client, log: Path, fault: str) -> None:
    session = through.create("toy", "hall/train-0")
    proxy.rule = once(fault, "/step")
    note = f"note {session.id}"
    assert session.step(note).step_index == 1
    assert log.read_text().count(note) == 1
    proxy.rule = once(fault, "/step_many")
    (reply,) = through.step_many([(session, note)])
    assert not isinstance(reply, CopeError) and reply.step_index == 2
    assert log.read_text().count(note) == 2


def test_a_lost_reply_never_leaves_a_second_session(address: Address, proxy: Proxy, through: Client) -> None:
    before = live_sessions(address)
    proxy.rule = once("drop", "/v1/sessions")
    session = through.create("toy")
    proxy.rule = once("drop", "/fork")
    twin = session.fork()
    assert live_sessions(address) == before + 2
    proxy.rule = once("drop", session.id)
    session.close()
    twin.close()
    assert live_sessions(address) == before


def test_a_retry_joins_the_step_in_execution(address: Address, log: Path) -> None:
    with Client(address.url, address.token, Patience(read=0.5, total=10)) as client:
        session = client.create("toy")
        started = time.monotonic()
        assert session.step("wait 1.5").step_index == 1
        assert time.monotonic() - started < 4
    assert log.read_text().count("wait 1.5") == 1


def test_retry_after_is_honoured(proxy: Proxy, through: Client) -> None:
    session = through.create("toy")
    proxy.rule = once("refuse", "/step")
    started = time.monotonic()
    session.step("forward")
    assert 1.0 <= time.monotonic() - started < 3


def test_two_clients_on_one_session(address: Address, client: Client) -> None:
    session = client.create("toy")
    session.step("forward")
    with Client(address.url, address.token) as other:
        taken = other.resume(session.id)
        with pytest.raises(SessionError) as caught:
            session.step("back")
        assert caught.value.type == "superseded"
        assert taken.step("forward").observation == "You are at door 2."


def test_an_interrupted_step_is_not_lost(address: Address, client: Client) -> None:
    """Ctrl-C in a step: another action is refused, the same one goes on."""
    session = client.create("toy")
    body = session.request("forward")
    client.call("POST", address.url, f"/v1/sessions/{session.id}/step", body)  # the reply never arrived
    with pytest.raises(SessionError) as caught:
        session.step("back")
    assert caught.value.type == "action_mismatch"
    assert session.step("forward").observation == "You are at door 1."


# Typed faults


def test_no_server(client: Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InfrastructureError, match=r"No reply from .*Connection refused.*cope serve") as caught:
        Client(url, patience=Patience(total=0.3)).create("toy")
    assert caught.value.type == "connection" and caught.value.retryable


def test_not_a_cope_server(proxy: Proxy, through: Client) -> None:
    proxy.rule = lambda method, path: "garble"
    with pytest.raises(InfrastructureError, match="which no CoPE server does") as caught:
        through.envs()
    assert caught.value.type == "protocol" and not caught.value.retryable


def test_server_of_another_version(monkeypatch: pytest.MonkeyPatch, address: Address) -> None:
    monkeypatch.setattr("cope_gym.transport.PROTOCOL", "v7")
    with pytest.raises(InfrastructureError, match="speaks protocol v1 and this client speaks v7"):
        Client(address.url, address.token).envs()


@pytest.mark.parametrize("token", ["", "wrong"])
def test_wrong_token(address: Address, token: str) -> None:
    with pytest.raises(InputError, match="COPE_TOKEN") as caught:
        Client(address.url, token).envs()
    assert caught.value.status == 401


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://"])
def test_no_address(url: str) -> None:
    with pytest.raises(InputError, match="no server address"):
        Client(url).envs()


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPE_BASE_URL", raising=False)
    with pytest.raises(InputError, match="COPE_BASE_URL"):
        Client()


def test_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, address: Address) -> None:
    monkeypatch.setenv("COPE_BASE_URL", f"{address.url}/, http://127.0.0.1:9")
    monkeypatch.setenv("COPE_TOKEN", address.token)
    client = Client()
    assert client.base_urls == [address.url, "http://127.0.0.1:9"]
    env = CopeEnv("toy")
    assert env.client.base_urls == client.base_urls and env.client.token == address.token


def test_lost_sessions(client: Client) -> None:
    session = client.create("toy")
    session.close()
    session.close()
    with pytest.raises(LostSession):
        session.step("forward")
    with pytest.raises(LostSession):
        client.resume("nobody")


def test_a_dead_worker_costs_no_episode(client: Client) -> None:
    sessions = [client.create("toy", f"hall/train-{i}") for i in range(3)]
    for session in sessions:
        session.step("forward")
    with pytest.raises(LostSession) as caught:
        sessions[0].step("die")
    assert caught.value.type == "episode_lost"
    assert [session.step("forward").observation for session in sessions[1:]] == ["You are at door 2."] * 2


@pytest.mark.parametrize("kind", ["unknown_task", "episode_over", "episode_lost", "capacity", "brand_new"])
def test_errors_pickle(kind: str) -> None:
    error = from_problem({"type": kind, "detail": "So.", "retryable": True, "retry_after": 3, "near": ["x"]}, 429)
    error.add_note("kept by Python, not by us")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.type, again.detail, again.retry_after, again.extra, str(again)) == (
        type(error), kind, "So.", 3.0, {"near": ["x"]}, "So.",
    )  # fmt: skip


# Nothing is left behind


def test_a_dropped_environment_frees_its_session(address: Address, client: Client) -> None:
    env = CopeEnv("toy", client=client)
    env.reset()
    id = env.running().id
    assert exists(address, id)
    del env
    gc.collect()
    assert until(lambda: not exists(address, id))


def test_heartbeat_outlives_the_lease(cope_home: Path) -> None:
    server = LocalServer("toy", adapter=ADAPTER, idle_exit=6, lease=3)
    address = server.address()
    with Client(address.url, address.token, Patience(total=5)) as client:
        session = client.create("toy")
        time.sleep(4.5)
        assert session.step("forward").step_index == 1
        client._keeper.stop()  # pyright: ignore[reportPrivateUsage]
        time.sleep(4)
        with pytest.raises(LostSession) as caught:
            session.step("forward")
        assert caught.value.type == "session_expired"
    assert until(lambda: server.running() is None), "it leaves after its last client"


CHILD = """
import os, sys, time
from cope_gym.client import Client
from cope_gym.transport import Patience
client = Client(os.environ["URL"], os.environ["TOKEN"], Patience(total=5))
session = client.create("toy")
print(session.id, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then",
    ["", "raise RuntimeError('boom')", "import signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"],
    ids=["exit", "exception", "ctrl-c"],
)
def test_nothing_is_left_when_a_process_ends(address: Address, then: str) -> None:
    env = {**os.environ, "URL": address.url, "TOKEN": address.token}
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(then=then)], env=env, capture_output=True, text=True, timeout=60
    )
    assert not exists(address, done.stdout.strip()), done.stderr


def _in_child(env: CopeEnv, pipe: object) -> None:
    assert env.session is not None
    twin = CopeEnv("toy", client=env.client)
    twin.reset(seed=1)
    pipe.send((twin.running().id, twin.step("forward")[0]))  # type: ignore[attr-defined]


def test_a_forked_process_has_sessions_of_its_own(address: Address, env: CopeEnv) -> None:
    env.reset(seed=0)
    here, there = get_context("fork").Pipe()
    child = get_context("fork").Process(target=_in_child, args=(env, there))
    child.start()
    assert here.poll(20)
    id, observation = here.recv()
    child.join(20)
    assert (child.exitcode, observation) == (0, "You are at door 1.")
    assert not exists(address, id), "the child freed its own"
    assert env.step("forward")[0] == "You are at door 1.", "and left its parent's alone"


# Sharing


def test_several_servers_share_the_load(address: Address, proxy: Proxy) -> None:
    with Client([address.url, proxy.url], address.token, Patience(connect=2, total=3)) as client:
        sessions = [client.create("toy") for _ in range(6)]
        assert sorted(session.base_url for session in sessions) == sorted([address.url] * 3 + [proxy.url] * 3)
        replies = client.step_many([(session, "forward") for session in sessions])
        assert [getattr(reply, "step_index", reply) for reply in replies] == [1] * 6
        proxy.rule = lambda method, path: "refuse"
        assert {client.create("toy").base_url for _ in range(3)} == {address.url}
        assert client.resume(sessions[0].id).id == sessions[0].id


def test_threads_share_a_client(client: Client) -> None:
    observations: list[str] = []

    def play(number: int) -> None:
        session = client.create("toy", f"hall/train-{number % 12}")
        for _ in range(3):
            session.step("forward")
        observations.append(session.reply.observation)
        session.close()

    threads = [threading.Thread(target=play, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert observations == ["You are at door 3."] * 24


def test_one_bad_step_of_many_is_that_sessions_alone(client: Client) -> None:
    sessions: list[Session] = [client.create("toy") for _ in range(3)]
    sessions[1].close()
    replies = client.step_many([(session, "forward") for session in sessions])
    assert isinstance(replies[1], LostSession)
    assert [getattr(replies[i], "step_index", None) for i in (0, 2)] == [1, 1]


def test_client_pickles(address: Address, client: Client) -> None:
    client.create("toy")
    with pickle.loads(pickle.dumps(client)) as twin:
        assert twin.tasks("toy") == client.tasks("toy", page=5)
        assert twin.gold("toy", "hall/train-0", {}) == ["forward"] * 4


def test_a_plain_import_is_light() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import gymnasium; g = time.perf_counter(); import cope_gym; "
        "own = time.perf_counter() - g; cope_gym.CopeEnv; "
        "heavy = {'torch', 'pyarrow', 'pandas', 'fastapi', 'datasets', 'transformers'} & set(sys.modules); "
        "print(sorted(heavy), own)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    heavy, own = said.rsplit(" ", 1)
    assert heavy == "[]"
    assert float(own) < 0.5


def test_a_process_ends_without_a_warning(address: Address) -> None:
    env = {**os.environ, "URL": address.url, "TOKEN": address.token}
    command = [sys.executable, "-X", "dev", "-c", CHILD.format(then="session.step('forward')")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_neither_a_proxy_nor_a_netrc_comes_between(
    address: Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Client(address.url, address.token, Patience(total=0)) as client:
        assert client.create("toy").step("forward").step_index == 1
