"""Faults at every hop: lost replies, dead workers, hung steps, poison actions. Nothing runs twice, no other pays."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.conftest import Server, Start, marked, wait_for
from tests.service.test_protocol import problem

FAULTY = Path(__file__).with_name("faulty_front.py")


def kill_workers(server: Server) -> None:
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)


def metric(server: Server, name: str) -> float:
    """Returns a metric, summed over its labels."""
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def executions(log: Path, action: str) -> list[str]:
    """Returns the engines (process and episode) that executed an action."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.rsplit(" " + action, 1)[0] for line in lines if line.endswith(" " + action)]


def test_a_worker_killed_between_steps_goes_unnoticed(server: Server) -> None:
    before = metric(server, "cope_sessions_rebuilt_total")
    names = [server.create(seed=i)["session_id"] for i in range(6)]
    for name in names:
        server.step(name, 0, "add 1")
    for index in range(1, 4):
        kill_workers(server)
        for name in names:
            reply = server.step(name, index, "add 1")
            assert reply.json().get("observation") == f"counter {index + 1}", reply.text
    assert metric(server, "cope_sessions_rebuilt_total") - before == 18


def test_a_worker_killed_in_mid_step_goes_unnoticed(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "actions"
    server = start("--set", f"counter.log={log}", "--warm", "0")
    name = server.create()["session_id"]
    server.step(name, 0, "add 1")
    replies: list[httpx.Response] = []
    stepping = threading.Thread(target=lambda: replies.append(server.step(name, 1, "sleep 1.01")))
    stepping.start()
    wait_for(lambda: executions(log, "sleep 1.01"))
    kill_workers(server)
    stepping.join()
    assert replies[0].json()["observation"] == "counter 1"
    engines = executions(log, "sleep 1.01")
    assert len(engines) == 2 and len(set(engines)) == 2, "once in each engine, and only the second one lives"


def test_a_search_for_a_solution_holds_nobody_up_and_kills_nobody(start: Start, tmp_path: Path) -> None:
    """Neither a session nor the start of another, whatever becomes of the search."""
    server = start("--max-workers", "1")
    path, task, go = "/v1/envs/counter/gold", "count/test-1", tmp_path / "go"
    name = server.create(task_id=task)["session_id"]
    found: list[httpx.Response] = []
    params = {"task_id": task, "options": json.dumps({"await": str(go)})}
    searching = threading.Thread(target=lambda: found.append(server.http.get(path, params=params)))
    searching.start()
    wait_for(lambda: metric(server, "cope_worker_calls"), what="the search to begin")
    assert server.step(name, 0, "add 1").json()["observation"] == "counter 1"
    server.create(task_id="count/test-2")
    assert not found, "the search still goes on"
    go.touch()
    searching.join()
    assert found[0].json() == {"actions": ["add 1"] * 5}
    dying = {"task_id": task, "options": json.dumps({"fail": "die"})}
    assert problem(server.http.get(path, params=dying), "worker_failed", 503)["retryable"]
    assert server.step(name, 1, "add 1").json()["observation"] == "counter 2"
    assert metric(server, "cope_sessions_rebuilt_total") == 0
    assert server.http.get(path, params={"task_id": task}).json() == {"actions": ["add 1"] * 5}


def test_a_search_that_kills_its_worker_costs_no_search_behind_it(start: Start, tmp_path: Path) -> None:
    server = start()
    path, task, go = "/v1/envs/counter/gold", "count/test-1", tmp_path / "go"
    found: dict[str, httpx.Response] = {}

    def search(name: str, **options: str) -> threading.Thread:
        params = {"task_id": task, "options": json.dumps(options)}
        thread = threading.Thread(target=lambda: found.update({name: server.http.get(path, params=params)}))
        thread.start()
        return thread

    first = search("dies", **{"await": str(go), "then": "die"})
    wait_for(lambda: metric(server, "cope_worker_calls"), what="the search to begin")
    others = [search("second"), search("third")]
    time.sleep(0.3)
    go.touch()
    for thread in (first, *others):
        thread.join()
    problem(found["dies"], "worker_failed", 503)
    assert found["second"].json() == found["third"].json() == {"actions": ["add 1"] * 5}


def test_an_action_that_kills_costs_its_own_session_only(server: Server) -> None:
    names = [server.create(seed=i)["session_id"] for i in range(4)]
    for name in names:
        server.step(name, 0, "add 1")
    lost = problem(server.step(names[0], 1, "die"), "episode_lost", 410)
    assert not lost["retryable"]
    assert problem(server.step(names[0], 1, "die"), "episode_lost", 410)["detail"] == lost["detail"]
    problem(server.http.get(f"/v1/sessions/{names[0]}"), "episode_lost", 410)
    for name in names[1:]:
        assert server.step(name, 1, "add 1").json()["observation"] == "counter 2"


def test_an_action_that_kills_once_succeeds_at_the_second_try(server: Server, tmp_path: Path) -> None:
    name = server.create()["session_id"]
    server.step(name, 0, "add 2")
    assert server.step(name, 1, f"once {tmp_path}/marker").json()["observation"] == "counter 2"
    assert server.step(name, 2, "add 1").json()["observation"] == "counter 3"


def test_a_step_that_waited_its_turn_in_a_dying_worker_was_not_tried(server: Server, tmp_path: Path) -> None:
    """Each of these kills a worker once; whoever waited behind one must still have two tries of its own."""
    names = [server.create(seed=i)["session_id"] for i in range((os.cpu_count() or 1) + 2)]
    steps = [{"session_id": name, "step_index": 0, "action": f"once {tmp_path}/{name}"} for name in names]
    results = server.http.post("/v1/step_many", json={"steps": steps}).json()["results"]
    assert [result.get("observation") for result in results] == ["counter 0"] * len(names), results


def test_a_hung_step_is_killed_and_its_neighbours_live_on(server: Server) -> None:
    names = [server.create(seed=i)["session_id"] for i in range(3)]
    for name in names:
        server.step(name, 0, "add 1")
    began = time.monotonic()
    late = problem(server.step(names[0], 1, "sleep 60"), "step_timeout", 504)
    assert time.monotonic() - began < 12 and "2 s" in late["detail"] and not late["retryable"]
    problem(server.step(names[0], 1, "sleep 60"), "step_timeout", 504)
    for name in names[1:]:
        assert server.step(name, 1, "add 1").json()["observation"] == "counter 2"


def test_steps_side_by_side_with_a_hung_one_are_executed_in_the_end(start: Start) -> None:
    server = start(adapters=("ThreadedAdapter",))
    names = [server.create("threaded")["session_id"] for _ in range(12)]
    for name in names:
        server.step(name, 0, "add 1")
    hung: list[httpx.Response] = []
    hanging = threading.Thread(target=lambda: hung.append(server.step(names[0], 1, "sleep 60")))
    hanging.start()
    time.sleep(2.0)
    steps = [{"session_id": name, "step_index": 1, "action": "sleep 2.8"} for name in names[1:]]
    results = server.http.post("/v1/step_many", json={"steps": steps}).json()["results"]
    assert [result.get("observation") for result in results] == ["counter 1"] * 11
    hanging.join()
    problem(hung[0], "step_timeout", 504)


@pytest.mark.parametrize("action", ["raise oops", "exit", "nan", "undefined"])
def test_an_engine_that_breaks_loses_its_episode_and_no_reward_is_made_up(server: Server, action: str) -> None:
    names = [server.create(seed=i)["session_id"] for i in range(2)]
    workers = set(server.workers())
    if action == "nan":
        reply = server.step(names[0], 0, action).json()
        assert reply["info"]["raw_score"] is None  # cleaned, and no fault: the reward is a number
        return
    problem(server.step(names[0], 0, action), "episode_lost", 410)
    assert server.step(names[1], 0, "add 1").json()["observation"] == "counter 1"
    assert workers <= set(server.workers()), "an exception inside one episode kills no worker"


def test_an_episode_of_chance_is_lost_with_its_worker_and_says_so(server: Server) -> None:
    name = server.create(options={"random": True})["session_id"]
    server.step(name, 0, "add 1")
    kill_workers(server)
    assert "deterministic" in problem(server.step(name, 1, "add 1"), "episode_lost", 410)["detail"]


def test_what_a_simulated_user_said_is_said_again_when_the_episode_is_rebuilt(server: Server) -> None:
    name = server.create()["session_id"]
    said = [server.step(name, index, "talk").json() for index in range(3)]
    assert "record" not in said[0] and len({reply["observation"] for reply in said}) == 3
    kill_workers(server)
    assert server.step(name, 3, "add 1").json()["observation"] == "counter 1"
    transcript = server.http.post(f"/v1/sessions/{name}/attach").json()["transcript"]
    assert [turn["observation"] for turn in transcript[1:4]] == [reply["observation"] for reply in said]


def test_an_engine_that_comes_out_differently_is_noticed(server: Server) -> None:
    name = server.create()["session_id"]
    server.step(name, 0, "time")
    kill_workers(server)
    assert "differently" in problem(server.step(name, 1, "add 1"), "episode_lost", 410)["detail"]


def test_a_start_that_fails_leaves_nothing_behind(server: Server) -> None:
    live = metric(server, "cope_sessions_live")
    for fail in ("die", "raise"):
        for _ in range(2):
            reply = server.http.post("/v1/sessions", json={"env": "counter", "options": {"fail": fail}})
            assert problem(reply, "worker_failed", 503)["retryable"]
    assert metric(server, "cope_sessions_live") == live
    assert server.create()["step_index"] == 0


def test_pages_that_copies_share_count_once(start: Start) -> None:
    server = start("--worker-memory", "400")
    name = server.create()["session_id"]
    server.step(name, 0, "copies 120")
    wait_for(lambda: metric(server, "cope_worker_rss_bytes") > 120 * 2**20)
    time.sleep(1.5)  # the service looks once a second
    assert metric(server, "cope_worker_rss_bytes") < 400 * 2**20
    assert server.step(name, 1, "add 1").json()["observation"] == "counter 1"
    assert metric(server, "cope_sessions_rebuilt_total") == 0


def test_an_eater_of_memory_is_killed_and_its_neighbours_live_on(start: Start) -> None:
    server = start("--worker-memory", "256", adapters=("ThreadedAdapter",))
    names = [server.create("threaded")["session_id"] for _ in range(4)]
    for name in names:
        server.step(name, 0, "add 1")
    problem(server.step(names[0], 1, "eat 400"), "episode_lost", 410)
    for name in names[1:]:
        assert server.step(name, 1, "add 1").json()["observation"] == "counter 2"


def test_a_reply_that_gets_lost_is_given_again(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "actions"
    server = start("--set", f"counter.log={log}", script=FAULTY)
    headers = {"X-Fault": "drop", "Idempotency-Key": "one"}
    with pytest.raises(httpx.TransportError):
        server.http.post("/v1/sessions", json={"env": "counter"}, headers=headers)
    name = server.create(key="one")["session_id"]
    assert server.http.get("/metrics").text.count("cope_sessions_live 1.0") == 1
    body = {"step_index": 0, "action": "add 1"}
    with pytest.raises(httpx.TransportError):
        server.http.post(f"/v1/sessions/{name}/step", json=body, headers={"X-Fault": "drop"})
    assert server.step(name, 0, "add 1").json()["observation"] == "counter 1"
    many = {"steps": [{"session_id": name, "step_index": 1, "action": "add 1"}]}
    with pytest.raises(httpx.TransportError):
        server.http.post("/v1/step_many", json=many, headers={"X-Fault": "drop"})
    assert server.http.post("/v1/step_many", json=many).json()["results"][0]["observation"] == "counter 2"
    with pytest.raises(httpx.TransportError):
        server.http.post(f"/v1/sessions/{name}/fork", headers={"X-Fault": "drop", "Idempotency-Key": "two"})
    server.http.post(f"/v1/sessions/{name}/fork", headers={"Idempotency-Key": "two"})
    assert "cope_sessions_live 2.0" in server.http.get("/metrics").text
    parents = set(executions(log, "add 1"))
    assert len(executions(log, "add 1")) == 4 and len(parents) == 2, "two steps in the parent, two in the fork"


def test_two_clients_never_interleave(server: Server) -> None:
    name = server.create("threaded")["session_id"]
    outcomes: list[tuple[str, int]] = []

    def play(who: str) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            epoch = client.post(f"/v1/sessions/{name}/attach").json()["epoch"]
            for index in range(200):
                body = {"step_index": index, "action": f"say {who}", "epoch": epoch}
                status = client.post(f"/v1/sessions/{name}/step", json=body).status_code
                outcomes.append((who, status))
                if status != 200:
                    return

    threads = [threading.Thread(target=play, args=(str(i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transcript = server.http.post(f"/v1/sessions/{name}/attach").json()["transcript"]
    said = [turn["action"] for turn in transcript[1:]]
    assert len(said) == sum(status == 200 for _, status in outcomes)
    assert len([1 for before, after in zip(said, said[1:], strict=False) if before != after]) <= 1


def restart(start: Start, state: Path, *arguments: str, **options: Any) -> Server:
    return start("--state-dir", str(state), *arguments, **options)


def test_sessions_outlive_a_killed_front(start: Start, tmp_path: Path) -> None:
    log, state = tmp_path / "actions", tmp_path / "state"
    flags = ("--set", f"counter.log={log}")
    server = restart(start, state, *flags, script=FAULTY)
    name = server.create(key="one", task_id="count/test-2")["session_id"]
    server.step(name, 0, "add 1")
    body = {"step_index": 1, "action": "add 2"}
    with pytest.raises(httpx.TransportError):
        server.http.post(f"/v1/sessions/{name}/step", json=body, headers={"X-Fault": "kill"})
    server.stop()
    assert len(executions(log, "add 2")) == 1

    again = restart(start, state, *flags)
    assert again.create(key="one", task_id="count/test-2")["session_id"] == name
    retried = again.step(name, 1, "add 2").json()
    assert retried["observation"] == "counter 3" and retried["step_index"] == 2
    assert len(executions(log, "add 2")) == 1, "the reply came from the journal"
    problem(again.step(name, 1, "add 1"), "action_mismatch", 409)
    assert again.step(name, 2, "add 1").json()["observation"] == "counter 4"
    again.stop()
    # A planned stop keeps sessions, too; a closed one stays closed.
    third = restart(start, state, *flags)
    assert third.http.get(f"/v1/sessions/{name}").json()["observation"] == "counter 4"
    third.http.delete(f"/v1/sessions/{name}")
    third.stop()
    problem(restart(start, state, *flags).http.get(f"/v1/sessions/{name}"), "unknown_session", 404)


def test_how_a_session_ended_outlives_a_killed_front(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = restart(start, state, "--lease", "1")
    expired, closed = (server.create()["session_id"] for _ in range(2))
    server.http.delete(f"/v1/sessions/{closed}")
    wait_for(lambda: not any(state.glob("sessions/*.jsonl")), what="the lease to run out")
    server.stop(signal.SIGKILL)
    again = restart(start, state)
    problem(again.step(expired, 0, "add 1"), "session_expired", 410)
    assert "It was closed" in problem(again.step(closed, 0, "add 1"), "unknown_session", 404)["detail"]


def test_a_session_that_ended_just_before_the_kill_is_not_taken_up(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = restart(start, state)
    name = server.create()["session_id"]
    server.stop(signal.SIGKILL)
    (state / "ended.jsonl").write_text(json.dumps({"session": name, "reason": "expired"}) + "\n")
    again = restart(start, state)
    problem(again.step(name, 0, "add 1"), "session_expired", 410)
    assert not list((state / "sessions").iterdir())


def test_a_front_killed_during_execution(start: Start, tmp_path: Path) -> None:
    state, marker = tmp_path / "state", tmp_path / "marker"
    server = restart(start, state)
    name = server.create()["session_id"]
    server.step(name, 0, "add 1")
    with pytest.raises(httpx.TransportError):
        server.step(name, 1, f"killfront {marker}")
    server.stop()
    again = restart(start, state)
    problem(again.step(name, 1, "add 1"), "action_mismatch", 409)
    assert again.step(name, 1, f"killfront {marker}").json()["observation"] == "counter 1"
    assert again.step(name, 2, "add 1").json()["observation"] == "counter 2"


def test_another_version_does_not_rebuild(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = restart(start, state)
    name = server.create()["session_id"]
    server.step(name, 0, "add 1")
    server.stop()
    again = restart(start, state, "--set", "counter.version=2")
    assert "another version" in problem(again.step(name, 1, "add 1"), "episode_lost", 410)["detail"]


def test_kill_9_of_the_front_leaves_no_process_not_even_grandchildren(start: Start) -> None:
    server = start()
    name = server.create()["session_id"]
    server.step(name, 0, "child 1000")
    assert any(b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(server.mark))
    server.stop(signal.SIGKILL)


def test_workers_do_not_see_the_token(start: Start) -> None:
    server = start(environ={"COPE_TOKEN": "secret"})
    for pid in server.workers():
        assert b"COPE_TOKEN" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_kill_9_of_a_worker_takes_its_children_along(start: Start) -> None:
    server = start("--warm", "0")
    name = server.create()["session_id"]
    server.step(name, 0, "child 1000")
    kill_workers(server)
    wait_for(lambda: not any(b"sleep" in Path(f"/proc/{p}/cmdline").read_bytes() for p in marked(server.mark)))
    assert server.step(name, 1, "add 1").json()["observation"] == "counter 1"
