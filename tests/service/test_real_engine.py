"""Recovery on a real engine: ScienceWorld's JVM is killed in mid-episode, and nobody can tell from the transcript."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from env_servers.install import install
from tests.service.conftest import Server, marked, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def sciworld(tmp_path: Path) -> Generator[Server]:
    install("sciworld")
    server = Server(tmp_path, "--env", "sciworld", "--warm", "0", "--max-workers", "1")
    yield server
    server.stop()


def engines(server: Server) -> list[int]:
    return [pid for pid in marked(server.mark) if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]


def play(server: Server, actions: list[str], kill_at: set[int]) -> list[tuple[str, float, float, bool]]:
    session = server.create("sciworld", task_id="boil/0", seed=0)
    for index, action in enumerate(actions):
        if index in kill_at:
            os.kill(engines(server)[0] if index % 2 else server.workers()[-1], signal.SIGKILL)
        reply = server.step(session["session_id"], index, action)
        assert reply.status_code == 200, reply.text
    told = server.http.post(f"/v1/sessions/{session['session_id']}/attach").json()["transcript"]
    server.http.delete(f"/v1/sessions/{session['session_id']}")
    return [(turn["observation"], turn["reward"], turn["info"]["score"], turn["terminated"]) for turn in told]


def test_a_killed_jvm_makes_none_of_its_sessions_a_suspect_but_one(sciworld: Server) -> None:
    """Each had to try its step again alone, one after the other, in workers that a full service did not have."""
    opened = [sciworld.create("sciworld", task_id=f"find-plant/{number}")["session_id"] for number in range(6)]
    for session in opened:
        assert sciworld.step(session, 0, "look around").status_code == 200
    os.kill(engines(sciworld)[0], signal.SIGKILL)
    with ThreadPoolExecutor(len(opened)) as pool:
        replies = list(pool.map(lambda session: sciworld.step(session, 1, "inventory"), opened))
    assert [reply.status_code for reply in replies] == [200] * len(opened), replies[0].text
    suspects = [line for line in sciworld.log.read_text().splitlines() if "step failed" in line]
    assert len(suspects) <= 1
    for session in opened:
        sciworld.http.delete(f"/v1/sessions/{session}")


def test_a_killed_jvm_goes_unnoticed_and_none_remains(sciworld: Server) -> None:
    gold = sciworld.http.get("/v1/envs/sciworld/gold", params={"task_id": "boil/0"}).json()["actions"]
    actions = gold[:8]
    assert play(sciworld, actions, kill_at={3, 6}) == play(sciworld, actions, kill_at=set())
    assert engines(sciworld)
    sciworld.process.send_signal(signal.SIGKILL)
    sciworld.process.wait()
    wait_for(lambda: not marked(sciworld.mark), what="the JVM to end")
