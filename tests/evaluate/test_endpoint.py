"""The OpenAI-compatible policy against a real HTTP server on the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from evaluate_toy import evaluation, walk

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate import PolicySpec, Prompt, evaluate, make
from cope_gym.evaluate.endpoint import Endpoint

Answer = tuple[int, Any, dict[str, str]]


class Server:
    """Answers with what `script` returns for the number of the call and the request's body."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.bodies.append(body)
                    server.headers.append(dict(self.headers))
                    server.paths.append(self.path)
                    status, reply, headers = script(len(server.bodies), body)
                content = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Answer]], Server]]:
    servers: list[Server] = []

    def start(script: Callable[[int, dict[str, Any]], Answer]) -> Server:
        servers.append(Server(script))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def says(text: str | None, finish: str = "stop") -> Answer:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 4}}, {}


def fails(status: int, code: str = "x", headers: dict[str, str] | None = None) -> Answer:
    return status, {"error": {"code": code, "message": f"because of {code}"}}, headers or {}


def endpoint(server: Server, waits: list[float] | None = None, **settings: Any) -> Endpoint:
    spec = PolicySpec("tiny", "walk", lambda _task, _options: None, {"base_url": server.url, **settings})
    return Endpoint(spec, sleep=(waits if waits is not None else []).append)


PROMPT = Prompt([{"role": "user", "content": "Walk."}], "walk", "near/1", {}, "react", 0, 0, seed=5)


def test_whole_panel_through_a_server(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda _n, _body: says("Thought: on.\nAction: go"))
    policy = make(
        "openai:tiny", PolicySpec("", "walk", lambda _t, _o: None, {"base_url": server.url, "temperature": "0"})
    )
    result = evaluate(evaluation(), policy, walk, tmp_path)
    assert result["metrics"]["success"]["value"] == 1.0
    assert result["metrics"]["tokens"]["value"] == 4 * result["metrics"]["turns"]["value"]
    assert result["policy"]["name"] == "tiny" and result["policy"]["settings"]["temperature"] == 0.0
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "Walk. Say `Action: go`."}
    assert set(server.paths) == {"/v1/chat/completions"}
    assert any(len(body["messages"]) > 4 for body in server.bodies)


def test_key_is_sent_and_never_recorded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALK_KEY", "secret-of-the-test")
    server = serve(lambda _n, _body: says("Action: go"))
    policy = endpoint(server, api_key_env="WALK_KEY")
    policy.act([PROMPT])
    assert server.headers[0]["Authorization"] == "Bearer secret-of-the-test"
    assert "secret" not in json.dumps(dict(policy.settings)) and "WALK_KEY" not in json.dumps(dict(policy.settings))


@pytest.mark.parametrize("bad", [fails(429), fails(500), fails(503), (200, "no json", {}), (200, {"choices": []}, {})])
def test_passing_faults_are_tried_again(serve: Any, bad: Answer) -> None:
    server = serve(lambda n, _body: bad if n < 3 else says("Action: go"))
    waits: list[float] = []
    reply = endpoint(server, waits).act([PROMPT])[0]
    assert (reply.text, reply.tokens) == ("Action: go", 4)
    assert len(waits) == 2 and 1 <= waits[0] <= 1.25 and 2 <= waits[1] <= 2.5


def test_server_says_how_long_to_wait(serve: Any) -> None:
    server = serve(lambda n, _body: fails(429, headers={"Retry-After": "7"}) if n == 1 else says("Action: go"))
    waits: list[float] = []
    endpoint(server, waits).act([PROMPT])
    assert 7 <= waits[0] <= 7 * 1.25


def test_attempts_are_bounded_and_end_as_infrastructure(serve: Any) -> None:
    server = serve(lambda _n, _body: fails(503))
    with pytest.raises(InfrastructureError, match=r"HTTP 503: because of x \(3 attempts\)") as caught:
        endpoint(server, attempts=3).act([PROMPT])
    assert caught.value.retryable and len(server.bodies) == 3


def test_no_server_is_infrastructure() -> None:
    spec = PolicySpec("tiny", "walk", lambda _t, _o: None, {"base_url": "http://127.0.0.1:9/v1", "attempts": 2})
    with pytest.raises(InfrastructureError, match="ConnectionError"):
        Endpoint(spec, sleep=lambda _: None).act([PROMPT])


@pytest.mark.parametrize("answer", [fails(429, "insufficient_quota"), fails(402)])
def test_exhausted_quota_stops_the_run_and_keeps_what_was_played(serve: Any, tmp_path: Path, answer: Answer) -> None:
    server = serve(lambda n, _body: says("Action: go") if n <= 3 else answer)
    policy = endpoint(server)
    with pytest.raises(InputError, match="quota of tiny is exhausted"):
        evaluate(evaluation(concurrency=1), policy, walk, tmp_path)
    assert len(server.bodies) == 4, "an exhausted quota is not asked again"
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_wrong_key_or_model_stops_with_a_sentence(serve: Any, status: int) -> None:
    server = serve(lambda _n, _body: fails(status, "model_not_found"))
    with pytest.raises(InputError, match="check base_url, key and model name"):
        endpoint(server).act([PROMPT])
    assert len(server.bodies) == 1


def test_full_context_ends_the_episode_and_counts_as_the_agents(serve: Any) -> None:
    server = serve(lambda _n, _body: fails(400, "context_length_exceeded"))
    reply = endpoint(server).act([PROMPT])[0]
    assert reply.give_up and reply.truncated


def test_refused_request_is_listed_apart_at_once(serve: Any) -> None:
    server = serve(lambda _n, _body: fails(400, "content_filter"))
    with pytest.raises(InfrastructureError) as caught:
        endpoint(server).act([PROMPT])
    assert not caught.value.retryable and len(server.bodies) == 1


def test_empty_and_cut_turns_are_turns(serve: Any) -> None:
    server = serve(lambda _n, _body: says(None, "length"))
    reply = endpoint(server).act([PROMPT])[0]
    assert (reply.text, reply.truncated, reply.give_up) == ("", True, False)


def test_request_bodies(serve: Any) -> None:
    server = serve(lambda _n, _body: says("Action: go"))
    endpoint(server, max_tokens=9, send_seed=True).act([PROMPT])
    endpoint(server, max_tokens=4096, reasoning_effort="low").act([PROMPT])
    assert server.bodies[0]["max_tokens"] == 9 and server.bodies[0]["seed"] == 5
    assert server.bodies[1] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Walk."}],
        "max_completion_tokens": 4096,
        "reasoning_effort": "low",
    }
