"""The protocol as a client sees it, on a real server with real workers."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import httpx
import pytest

from tests.service.conftest import Server


def problem(reply: httpx.Response, type: str, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    document = reply.json()
    assert document["type"] == type and document["status"] == status
    assert isinstance(document["retryable"], bool) and document["detail"].endswith((".", "?"))
    return document


def executed(server: Server, action: str) -> int:
    log = server.folder / "actions"
    return sum(line.endswith(" " + action) for line in log.read_text().splitlines()) if log.exists() else 0


def test_an_episode_from_start_to_end(server: Server) -> None:
    session = server.create(task_id="count/train-3", seed=7)
    assert session["observation"] == "count/train-3 seed 7 counter 0"
    assert (session["split"], session["category"], session["step_index"], session["epoch"]) == ("train", "count", 0, 1)
    for index in range(5):
        reply = server.step(session["session_id"], index, "add 1").json()
        assert reply["step_index"] == index + 1
        assert reply["info"]["steps"] == index + 1
    assert reply["terminated"] and not reply["truncated"] and reply["reward"] == 1.0
    assert reply["info"]["success"] and reply["info"]["score"] == 1.0
    assert reply["info"]["task_id"] == "count/train-3" and reply["info"]["max_steps"] == 20
    # The last step stays repeatable after the end; a new one is refused.
    assert server.step(session["session_id"], 4, "add 1").json() == reply
    problem(server.step(session["session_id"], 5, "add 1"), "episode_over", 409)
    assert server.http.delete(f"/v1/sessions/{session['session_id']}").status_code == 204
    assert server.http.delete(f"/v1/sessions/{session['session_id']}").status_code == 204
    problem(server.step(session["session_id"], 4, "add 1"), "unknown_session", 404)


def test_step_index_table(server: Server) -> None:
    session = server.create()["session_id"]
    first = server.step(session, 0, "say 0")
    assert server.step(session, 0, "say 0").json() == first.json()
    problem(server.step(session, 0, "say other"), "action_mismatch", 409)
    problem(server.step(session, 2, "say 2"), "step_gap", 409)
    server.step(session, 1, "say 1")
    problem(server.step(session, 0, "say 0"), "stale_step", 409)
    problem(server.step("nonsense", 0, "say 0"), "unknown_session", 404)


def test_actions_compare_as_canonical_json(server: Server) -> None:
    session = server.create()["session_id"]
    server.step(session, 0, "say \u00e9")
    url = f"/v1/sessions/{session}/step"
    raw = b'{"epoch": 1, "action": "say \\u00e9", "step_index": 0}'
    assert server.http.post(url, content=raw, headers={"content-type": "application/json"}).status_code == 200


def test_a_refused_action_uses_no_step(server: Server) -> None:
    session = server.create()["session_id"]
    problem(server.step(session, 0, "refuse"), "bad_action", 422)
    problem(server.step(session, 0, {"not": "text"}), "bad_action", 422)
    assert server.step(session, 0, "add 1").json()["step_index"] == 1


def test_service_step_limit_truncates(server: Server) -> None:
    session = server.create(max_steps=2)["session_id"]
    assert not server.step(session, 0, "say").json()["truncated"]
    last = server.step(session, 1, "say").json()
    assert last["truncated"] and not last["terminated"]
    problem(server.step(session, 2, "say"), "episode_over", 409)


def test_reaching_the_goal_at_the_limit_is_no_truncation(server: Server) -> None:
    session = server.create(max_steps=1)["session_id"]
    last = server.step(session, 0, "add 5").json()
    assert last["terminated"] and not last["truncated"]


def test_the_seed_picks_the_task(server: Server) -> None:
    number = int(hashlib.sha256(b"counter:test:11").hexdigest(), 16) % 10
    session = server.create(split="test", seed=11)
    assert session["task_id"] == f"count/test-{number}"
    assert server.create(split="test", seed=11)["task_id"] == session["task_id"]
    drawn = server.create()
    assert server.create(seed=drawn["seed"])["task_id"] == drawn["task_id"]


@pytest.mark.parametrize(
    ("body", "type", "status", "hint"),
    [
        ({"env": "cuonter"}, "unknown_env", 404, "counter"),
        ({"env": "sciworld"}, "not_installed", 503, "cope install sciworld"),
        ({"env": "counter", "split": "tset"}, "unknown_split", 404, "test"),
        ({"env": "counter", "task_id": "count/tran-3"}, "unknown_task", 404, "count/train-3"),
        ({"env": "counter", "task_id": "count/train-3", "split": "test"}, "unknown_task", 404, "train"),
        ({"env": "counter", "options": {"dirt": True}}, "bad_option", 422, "dirty"),
        ({"env": "counter", "max_steps": 0}, "bad_request", 422, "max_steps"),
        ({"env": "counter", "seed": -1}, "bad_request", 422, "seed"),
        ({"env": "counter", "task": "count/train-3"}, "bad_request", 422, "task"),
        ({}, "bad_request", 422, "env"),
    ],
)
def test_bad_creations_say_how_to_mend_them(
    server: Server, body: dict[str, Any], type: str, status: int, hint: str
) -> None:
    assert hint in problem(server.http.post("/v1/sessions", json=body), type, status)["detail"]


def test_malformed_requests(server: Server) -> None:
    json_type = {"content-type": "application/json"}
    problem(server.http.post("/v1/sessions", content=b"{", headers=json_type), "bad_request", 422)
    deep = b'{"env":"counter","options":{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}}"
    problem(server.http.post("/v1/sessions", content=deep, headers=json_type), "bad_request", 422)
    problem(server.http.get("/v2/nothing"), "unknown_route", 404)
    problem(server.http.put("/v1/sessions"), "method_not_allowed", 405)
    problem(server.http.get("/v1/envs/counter/gold?task_id=count/train-1&options=[]"), "bad_request", 422)
    problem(server.http.post("/v1/sessions", content=b" " * 5_000_000, headers=json_type), "too_large", 413)
    chunks = (b" " * 1_000_000 for _ in range(6))
    problem(server.http.post("/v1/sessions", content=chunks, headers=json_type), "too_large", 413)
    problem(server.http.get("/health", headers={"host": "evil.example"}), "forbidden_host", 403)


def test_too_long_or_deep_actions(server: Server) -> None:
    session = server.create()["session_id"]
    problem(server.step(session, 0, "say " + "x" * 300_000), "bad_action", 422)
    nested: Any = 0
    for _ in range(900):
        nested = [nested]
    problem(server.step(session, 0, nested), "bad_action", 422)
    assert server.step(session, 0, "add 1").status_code == 200


def test_what_json_cannot_carry_is_cleaned(server: Server) -> None:
    session = server.create(options={"dirty": True})
    assert session["info"]["dirty"] == [None, None, "lone \ufffd", {"1": [2, 3]}]
    url = f"/v1/sessions/{session['session_id']}/step"
    raw = b'{"step_index": 0, "action": "say \\ud800"}'
    reply = server.http.post(url, content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == 200 and reply.json()["observation"] == "counter 0 \ufffd"


def test_what_an_engine_prints_harms_nothing(server: Server) -> None:
    session = server.create()["session_id"]
    assert server.step(session, 0, "print 200000").json()["observation"] == "counter 0"


def test_idempotency_key_of_create(server: Server) -> None:
    session = server.create(key="k1", seed=1)
    assert server.create(key="k1", seed=1) == session
    reply = server.http.post("/v1/sessions", json={"env": "counter", "seed": 2}, headers={"Idempotency-Key": "k1"})
    problem(reply, "key_reuse", 409)
    # A failed request does not use its key up.
    body = {"env": "counter", "task_id": "wrong"}
    assert server.http.post("/v1/sessions", json=body, headers={"Idempotency-Key": "k2"}).status_code == 404
    assert server.create(key="k2", seed=3)["seed"] == 3


def test_attach_supersedes_and_tells_the_transcript(server: Server) -> None:
    session = server.create()
    name = session["session_id"]
    second = server.step(name, 0, "add 2").json()
    attached = server.http.post(f"/v1/sessions/{name}/attach").json()
    assert attached["epoch"] == 2 and attached["step_index"] == 1
    assert [turn["action"] for turn in attached["transcript"]] == [None, "add 2"]
    assert attached["transcript"][0]["observation"] == session["observation"]
    assert attached["transcript"][1]["observation"] == second["observation"]
    problem(server.step(name, 1, "add 1", epoch=1), "superseded", 409)
    problem(server.step(name, 1, "add 1", epoch=3), "bad_request", 422)
    assert server.step(name, 1, "add 1", epoch=2).json()["observation"] == "counter 3"
    assert server.http.get(f"/v1/sessions/{name}").json()["observation"] == "counter 3"


def test_fork_has_the_same_state_and_its_own_future(server: Server) -> None:
    parent = server.create()["session_id"]
    server.step(parent, 0, "add 2")
    headers = {"Idempotency-Key": "fork-1"}
    fork = server.http.post(f"/v1/sessions/{parent}/fork", headers=headers)
    assert fork.status_code == 201 and fork.json()["step_index"] == 1 and fork.json()["observation"] == "counter 2"
    assert server.http.post(f"/v1/sessions/{parent}/fork", headers=headers).json() == fork.json()
    child = fork.json()["session_id"]
    assert child != parent
    assert server.step(child, 1, "add 2").json()["observation"] == "counter 4"
    assert server.step(parent, 1, "add 1").json()["observation"] == "counter 3"
    problem(server.http.post("/v1/sessions/none/fork"), "unknown_session", 404)
    chance = server.create(options={"random": True})["session_id"]
    assert "deterministic" in problem(server.http.post(f"/v1/sessions/{chance}/fork"), "bad_request", 422)["detail"]


def test_step_many_steps_side_by_side(server: Server) -> None:
    names = [server.create("threaded")["session_id"] for _ in range(6)]
    steps = [{"session_id": name, "step_index": 0, "action": "sleep 0.5"} for name in names]
    steps.append({"session_id": "gone", "step_index": 0, "action": "say"})
    began = time.monotonic()
    results = server.http.post("/v1/step_many", json={"steps": steps}).json()["results"]
    assert time.monotonic() - began < 2.5
    assert [result.get("step_index") for result in results[:6]] == [1] * 6
    assert results[6]["error"]["type"] == "unknown_session"
    assert server.http.post("/v1/step_many", json={"steps": steps}).json()["results"] == results


def test_a_retry_during_execution_joins_it(server: Server) -> None:
    session = server.create("counter")["session_id"]
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(server.step(session, 0, "sleep 0.61"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    problem(server.step(session, 0, "say other"), "action_mismatch", 409)
    problem(server.step(session, 1, "say next"), "step_gap", 409)
    for thread in threads:
        thread.join()
    assert len({reply.text for reply in replies}) == 1 and replies[0].status_code == 200
    assert executed(server, "sleep 0.61") == 1


def test_a_client_that_hangs_up_finds_its_reply(server: Server) -> None:
    session = server.create()["session_id"]
    with pytest.raises(httpx.ReadTimeout):
        body = {"step_index": 0, "action": "sleep 0.62"}
        server.http.post(f"/v1/sessions/{session}/step", json=body, timeout=0.2)
    assert server.step(session, 0, "sleep 0.62").status_code == 200
    assert executed(server, "sleep 0.62") == 1


def test_heartbeat(server: Server) -> None:
    session = server.create()["session_id"]
    reply = server.http.post("/v1/heartbeat", json={"session_ids": [session, "gone"]}).json()
    assert reply == {"alive": [session], "gone": ["gone"]}


def test_tasks_and_gold(server: Server) -> None:
    page = server.http.get("/v1/envs/counter/tasks", params={"split": "test", "offset": 8, "limit": 5}).json()
    assert page["total"] == 10 and [task["id"] for task in page["tasks"]] == ["count/test-8", "count/test-9"]
    assert page["digest"] == server.http.get("/v1/envs/counter/tasks", params={"split": "test"}).json()["digest"]
    gold = server.http.get("/v1/envs/counter/gold", params={"task_id": "count/test-1"}).json()
    assert gold == {"actions": ["add 1"] * 5}
    problem(server.http.get("/v1/envs/counter/gold", params={"task_id": "count/tst-1"}), "unknown_task", 404)


def test_information_routes(server: Server) -> None:
    assert server.http.get("/health").json() == {"status": "ok", "protocol": "v1"}
    assert server.http.get("/ready").status_code == 200
    envs = server.http.get("/v1/envs").json()["envs"]
    assert [env["name"] for env in envs] == ["counter", "threaded"]
    assert envs[0]["splits"] == ["train", "test"] and envs[0]["max_steps"] == 20
    metadata = server.http.get("/metadata").json()
    assert metadata["protocol"] == "v1" and len(metadata["envs"]["counter"]["data_digest"]) == 64
    server.create()
    metrics = server.http.get("/metrics").text
    for name in ("cope_sessions_opened_total", "cope_step_seconds_bucket", "cope_workers", "cope_worker_rss_bytes"):
        assert name in metrics
    assert server.http.get("/openapi.json").status_code == 200


def test_ids_cannot_be_guessed(server: Server) -> None:
    names = {server.create()["session_id"] for _ in range(3)}
    assert len(names) == 3 and all(len(name) >= 32 for name in names)
