"""Steps, endings and bad input on the real engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import AdapterFault, AdapterWorker, assert_flat, gone, kill, rss_mb, tree

pytestmark = pytest.mark.engine


@pytest.fixture
def session(worker: AdapterWorker) -> Any:
    """A running episode's `step`."""
    worker.start("s", "pin_1")
    yield lambda code: worker.step("s", code)
    worker.end("s")


def test_the_first_observation_introduces_task_and_person(worker: AdapterWorker) -> None:
    first = worker.start("first", "pin_1")
    worker.end("first")
    assert first["text"].startswith('Task: Pin my note "Packing list" in Simple Note.')
    assert "Ada Byrne (email ada.byrne@example.com, phone number 2025550101)" in first["text"]
    assert "2023-05-18 12:00:00" in first["text"] and "- venmo:" in first["text"]
    assert (first["reward"], first["terminated"], first["info"]["score"]) == (0.0, False, 0.0)


def test_steps_share_a_namespace_and_errors_are_texts(session: Any) -> None:
    assert session("x = 20\nx += 1")["text"] == "Execution successful."
    assert session("print(x * 2)")["text"].strip() == "42"
    failed = session("1 / 0")
    assert failed["text"].startswith("Execution failed. Traceback:") and "ZeroDivisionError" in failed["text"]
    assert not failed["info"]["action_valid"] and not failed["terminated"]
    assert "Syntax error" in session("print(")["text"]
    assert session("")["text"] == "No code available to execute."
    assert session("print(apis.supervisor.show_profile()['first_name'])")["text"].strip() == "Ada"


@pytest.mark.parametrize(
    "code",
    ["raise KeyboardInterrupt", "raise SystemExit", "raise BaseException('x')", "print('\\ud800')", "x = '\ud800'",
     "print('\\x00')", "%time", "!ls", "apis.venmo.nothing()", "apis.venmo.login(username='x', password='y')"],
)  # fmt: skip
def test_an_episode_survives(session: Any, code: str) -> None:
    assert not session(code)["terminated"]
    assert session("print(6 * 7)")["text"].strip() == "42"


def test_long_outputs_keep_head_and_tail(session: Any) -> None:
    text = session("print('a' * 50000 + 'z' * 50000)")["text"]
    assert text.startswith("aaa") and text.rstrip().endswith("zzz")
    assert "characters left out" in text and len(text) < 2200


def test_the_end_is_final_and_needs_the_answer(worker: AdapterWorker) -> None:
    worker.start("end", "recipes_1")
    reply = worker.step("end", "apis.supervisor.complete_task(answer=3)")
    assert (reply["reward"], reply["terminated"], reply["info"]["success"]) == (1.0, True, True)
    with pytest.raises(AdapterFault) as caught:
        worker.step("end", "print(1)")
    assert caught.value.type == "episode_over"
    worker.end("end")


@pytest.mark.parametrize("task_id", ["nothing_1", "", "../pin_1", "pin_1/", "pin_4", None, 3, ["pin_1"]])
def test_ids_are_looked_up_never_used_as_paths(worker: AdapterWorker, task_id: Any) -> None:
    with pytest.raises(AdapterFault) as caught:
        worker.start("bad", task_id)
    assert caught.value.type == "unknown_task"


@pytest.mark.parametrize("action", [None, 3, ["print(1)"], {"code": "print(1)"}])
def test_actions_that_are_no_text_change_nothing(session: Any, action: Any) -> None:
    with pytest.raises(AdapterFault) as caught:
        session(action)
    assert caught.value.type == "bad_action"
    assert session("print(1)")["text"].strip() == "1"


def test_options_and_splits(worker: AdapterWorker) -> None:
    with pytest.raises(AdapterFault) as caught:
        worker.start("bad", "pin_1", {"difficulty": 1})
    assert caught.value.type == "bad_option"
    assert len(worker.call("tasks", split="train")) == 24 and len(worker.call("tasks", split="dev")) == 12
    with pytest.raises(AdapterFault) as caught:
        worker.call("tasks", split="test_normal")
    assert caught.value.type == "unknown_split"


def test_sessions_at_the_same_time_are_independent(worker: AdapterWorker) -> None:
    names = [f"p{number}" for number in range(4)]
    worker.together("start", [{"session": name, "task_id": "debt_1", "seed": None, "options": {}} for name in names])
    worker.together("step", [{"session": name, "action": f"x = {name!r}"} for name in names])
    said = worker.together("step", [{"session": name, "action": "print(x)"} for name in names])
    assert [reply["text"].strip() for reply in said] == names
    worker.together("close", [{"session": name} for name in names])


def test_steps_and_grades_equal_those_of_the_package_s_own_class(worker: AdapterWorker, appworld_python: Path) -> None:
    with AdapterWorker(appworld_python, "appworld", "stock") as stock:
        for task in ("pin_1", "debt_2", "recipes_1"):
            tries = ["x = 20\nx += 1", "print(x * 2)", "1 / 0", "print(", "print(apis.supervisor.show_profile())"]
            [solution] = worker.call("gold", task_id=task, options={})
            for end, reward in ((solution, 1.0), ("apis.supervisor.complete_task()", 0.0)):
                ours, theirs = (transcript(one, task, [*tries, end]) for one in (worker, stock))
                assert ours[1:] == theirs[1:], task
                # Ours says beside the instruction who the supervisor is, and which apps there are.
                assert theirs[0][0] in ours[0][0] and ours[0][1:] == theirs[0][1:]
                assert theirs[-1][1:4] == (reward, True, reward == 1.0), task


def transcript(worker: AdapterWorker, task: str, actions: list[str]) -> list[tuple[Any, ...]]:
    replies = [worker.start("t", task), *(worker.step("t", action) for action in actions)]
    worker.end("t")
    kept = ("success", "tests_passed", "tests")
    return [(r["text"], r["reward"], r["terminated"], *map(r["info"].get, kept)) for r in replies]


def test_a_session_need_not_work_out_what_the_apis_are(session: Any) -> None:
    """It would take a tenth to a quarter of a second for each app, in every session anew."""
    session("from appworld.api_docs import prepare_api_docs")
    [before] = session("print(prepare_api_docs.cache_info().misses)")["text"].split()
    session("apis.supervisor.show_profile(); apis.phone.login(username='x', password='y')")
    hits, misses = session("print(prepare_api_docs.cache_info()[:2])")["text"].strip(" ()\n[]").split(",")
    assert misses.strip() == before and int(hits) >= 2


def test_nothing_is_left_of_a_worker(appworld_python: Path) -> None:
    with AdapterWorker(appworld_python, "appworld") as worker:
        worker.start("s", "pin_1")
        below = tree(worker.process.pid)
        assert len(below) >= 3  # the zygote, a session's keeper, and the session
        worker.process.kill()
        assert gone(below)


def test_a_dead_zygote_ends_its_worker(appworld_python: Path) -> None:
    """Its copies die with it. Each of their steps was taken for code that had ended its own process: a final zero."""
    with AdapterWorker(appworld_python, "appworld") as worker:
        worker.start("s", "pin_1")
        zygote, *copies = tree(worker.process.pid)[1:]
        kill(zygote)
        assert gone(copies)
        with pytest.raises(EOFError):
            worker.step("s", "print(1)")
        assert worker.process.wait(10)


def test_a_session_that_died_between_two_steps_is_a_fault_and_no_zero(appworld_python: Path) -> None:
    with AdapterWorker(appworld_python, "appworld") as worker:
        worker.start("s", "pin_1")
        _, *copies = tree(worker.process.pid)[1:]
        kill(copies[-1])
        assert gone(copies)
        with pytest.raises(AdapterFault, match="fault: BrokenPipe"):
            worker.step("s", "print(1)")


def test_who_only_asks_questions_does_not_load_appworld(appworld_python: Path) -> None:
    """Loading takes ten seconds of processor time, and every service has a worker that holds no session."""
    with AdapterWorker(appworld_python, "appworld") as worker:
        assert worker.call("gold", task_id="pin_1", options={})
        [zygote] = tree(worker.process.pid)[1:]
        idle = 0
        while idle < 10:  # until it waits to be told something
            time.sleep(0.05)
            idle = idle + 1 if _state(zygote) == "S" else 0
        assert rss_mb(zygote) < 60
        worker.call("warm")
        worker.start("s", "pin_1")
        assert rss_mb(zygote) > 120


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_200_resets_do_not_grow(appworld_python: Path, temporary: Path) -> None:
    with AdapterWorker(appworld_python, "appworld") as worker:
        ids = [task[0] for split in ("train", "dev") for task in worker.call("tasks", split=split)]

        def play(number: int) -> None:
            worker.start("s", ids[number % len(ids)])
            worker.step("s", "print(apis.supervisor.show_profile())")
            assert worker.step("s", "apis.supervisor.complete_task()")["terminated"]
            worker.end("s")

        assert_flat(worker, temporary, play)
