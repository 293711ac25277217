"""Clients of other projects play our episodes: OpenEnv's own client unchanged, AgentGym's requests as recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.service.conftest import Server, Start, wait_for
from tests.service.test_protocol import problem


def live(server: Server) -> str:
    lines = server.http.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("cope_sessions_known "))


def test_openenv_client_plays_an_episode(server: Server) -> None:
    openenv = pytest.importorskip("openenv.core.generic_client", reason="openenv is not installed")
    before = live(server)

    async def play() -> list[Any]:
        results = []
        async with openenv.GenericEnvClient(base_url=f"{server.url}/openenv/counter") as env:
            results.append(await env.reset(seed=3, task_id="count/train-1"))
            for _ in range(5):
                results.append(await env.step({"action": "add 1"}))
            state = await env.state()
            assert state["step_count"] == 5 and state["task_id"] == "count/train-1"
            again = await env.reset(task_id="count/test-2", options={"dirty": True})
            assert again.observation["text"].startswith("count/test-2")
            with pytest.raises(RuntimeError, match="unknown_task"):
                await env.reset(task_id="nonsense")
        return results

    results = asyncio.run(play())
    assert results[0].observation["text"] == "count/train-1 seed 3 counter 0" and not results[0].done
    assert [result.done for result in results] == [False] * 5 + [True]
    assert results[-1].reward == 1.0 and results[-1].observation["info"]["success"]
    wait_for(lambda: live(server) == before, what="the episodes to end with the connection")


def test_openenv_information(server: Server) -> None:
    base = "/openenv/counter"
    assert server.http.get(f"{base}/health").json() == {"status": "healthy"}
    assert server.http.get(f"{base}/metadata").json()["name"] == "counter"
    assert server.http.get(f"{base}/schema").json()["action"]["required"] == ["action"]
    problem(server.http.get("/openenv/nothing/health"), "unknown_env", 404)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"action": "add 1"}}', "SESSION_ERROR"),
        ('{"type": "reset", "data": {"seed": "x"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": 3}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"options": {"fail": "raise"}}}', "FACTORY_ERROR"),
    ],
)
def test_openenv_errors_leave_the_connection_usable(server: Server, message: str, code: str) -> None:
    with connect(f"{server.url.replace('http', 'ws')}/openenv/counter/ws") as socket:
        socket.send(message)
        assert json.loads(socket.recv())["data"]["code"] == code
        socket.send('{"type": "reset"}')
        assert json.loads(socket.recv())["type"] == "observation"
        socket.send('{"type": "step", "data": {}}')
        assert json.loads(socket.recv())["data"]["code"] == "VALIDATION_ERROR"
        socket.send('{"type": "step", "data": {"action": "add 1"}}')
        assert json.loads(socket.recv())["data"]["observation"]["text"] == "counter 1"


def test_openenv_needs_the_token_and_keeps_a_thinking_client(start: Start) -> None:
    server = start("--lease", "0.6", environ={"COPE_TOKEN": "secret"})
    address = f"{server.url.replace('http', 'ws')}/openenv/counter/ws"
    with pytest.raises(InvalidStatus, match="403"), connect(address):
        pass
    with connect(address, additional_headers={"Authorization": "Bearer secret"}) as socket:
        socket.send('{"type": "reset"}')
        socket.recv()
        with pytest.raises(TimeoutError):
            socket.recv(timeout=1.5)
        socket.send('{"type": "step", "data": {"action": "add 1"}}')
        assert json.loads(socket.recv())["data"]["observation"]["text"] == "counter 1"


def post(server: Server, path: str, body: Any = None) -> Any:
    reply = server.http.post(f"/agentgym/counter/{path}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_agentgym_requests(server: Server) -> None:
    number = post(server, "create")["id"]
    assert isinstance(number, int)
    first = post(server, "reset", {"id": number, "data_idx": 12})
    assert first["observation"].startswith("count/test-2") and first["done"] is False
    reply = post(server, "step", {"id": number, "action": "add 4"})
    assert reply == {"observation": "counter 4", "reward": 0.0, "done": False, "score": 0.8}
    assert server.http.get("/agentgym/counter/observation", params={"id": number}).json() == "counter 4"
    assert post(server, "step", {"id": number, "action": "add 1"})["done"] is True
    over = server.http.post("/agentgym/counter/step", json={"id": number, "action": "add 1"})
    problem(over, "episode_over", 409)
    assert post(server, "reset", {"id": number, "data_idx": 0})["observation"].startswith("count/train-0")
    assert number in server.http.get("/agentgym/counter/list_envs").json()
    assert post(server, "close", {"id": number}) is True
    assert post(server, "close", {"id": number}) is False
    gone = server.http.post("/agentgym/counter/step", json={"id": number, "action": "add 1"})
    problem(gone, "unknown_session", 404)


def test_agentgym_bad_requests(server: Server) -> None:
    number = post(server, "create")["id"]

    def ask(path: str, body: Any) -> httpx.Response:
        return server.http.post(f"/agentgym/counter/{path}", json=body)

    problem(ask("step", {"id": number, "action": "add 1"}), "unknown_session", 404)
    problem(ask("reset", {"data_idx": 0}), "bad_request", 422)
    problem(ask("reset", {"id": "x", "data_idx": 0}), "bad_request", 422)
    problem(ask("reset", {"id": number, "data_idx": 20}), "unknown_task", 404)
    problem(ask("reset", {"id": number, "data_idx": "../x"}), "bad_request", 422)
    problem(ask("reset", [1]), "bad_request", 422)
    problem(server.http.post("/agentgym/nothing/create"), "unknown_route", 404)
    post(server, "close", {"id": number})
