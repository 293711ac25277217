"""Mind2Web as users have it: installed, served, behind `gym.make` and on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adapter_kit
import gymnasium as gym
import pytest
import requests
from adapter_kit import AdapterWorker
from gymnasium.utils.env_checker import check_env

import cope_gym
from cope_gym.evaluate.episode import play
from cope_gym.evaluate.policies import PolicySpec
from cope_gym.evaluate.results import summarise
from cope_gym.evaluate.runner import Item
from cope_gym.evaluate.scripted import Gold
from cope_gym.evaluate.service import Service

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("python")]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(python: Path) -> Iterator[gym.Env[str, Any]]:
    made = gym.make("cope/Mind2Web-v0")
    yield made
    made.close()


def test_gym_make_needs_no_download(env: gym.Env[str, Any]) -> None:
    check_env(env.unwrapped)
    observation, info = env.reset(seed=7)
    assert observation.startswith("Task: ") and "[ref=e1]" in observation
    assert (info["split"], info["max_steps"], info["score"], info["success"]) == ("sample", 50, 0.0, False)
    again, _ = env.reset(seed=7)
    assert again == observation
    other, _ = env.reset(seed=8)
    assert other != observation


def test_gold_through_the_service_pays_each_step(env: gym.Env[str, Any]) -> None:
    _, info = env.reset(options={"task_id": "northgate-1"})
    client = env.unwrapped.client  # pyright: ignore[reportAttributeAccessIssue]
    rewards: list[float] = []
    for action in client.gold("mind2web", "northgate-1"):
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
    assert rewards == [1.0] * 6 and terminated and not truncated and info["success"]
    assert info["raw_score"] == 6 and info["score"] == 1.0
    assert set(info["step_metrics"].values()) == {1.0}
    with pytest.raises(cope_gym.SessionError, match="over"):
        env.step("CLICK [e1]")


def test_an_evaluation_reports_the_published_metrics(env: gym.Env[str, Any]) -> None:
    """The gold policy on one task, and one that errs at its second step on another: means over tasks."""
    client = env.unwrapped.client  # pyright: ignore[reportAttributeAccessIssue]
    service = Service("mind2web", client)
    rules = service.rules()
    assert (rules.max_turns, rules.observation_chars, rules.action_format) == (50, 16_000, "react")
    golden = Gold(PolicySpec("", "mind2web", lambda task, options: client.gold("mind2web", task, options)))
    erring = Gold(PolicySpec("", "mind2web", lambda task, _: [*client.gold("mind2web", task)[:1], "CLICK [e1]"]))
    episodes = [
        play(env, lambda prompt, policy=policy: policy.act([prompt])[0], Item(task, 0, 0), rules, {}, "gold")
        for task, policy in (("skyhop-0", golden), ("skyhop-1", erring))
    ]
    assert [(one.success, one.score, one.reward) for one in episodes] == [(True, 1.0, 5.0), (False, 0.2, 1.0)]
    metrics = summarise(episodes, 2, {})["metrics"]
    found = {name: metrics[name]["value"] for name in ("element_accuracy", "step_success", "task_success", "success")}
    assert found == pytest.approx({"element_accuracy": 0.6, "step_success": 0.6, "task_success": 0.5, "success": 0.5})
    assert 0.6 <= metrics["operation_f1"]["value"] <= 0.7


SESSIONS: list[tuple[str, dict[str, Any]]] = [
    ("skyhop-0", {}),
    ("skyhop-0", {"mode": "teacher_forced"}),
    ("skyhop-0", {"mode": "teacher_forced", "gold_history": True, "max_chars": 300}),
    ("northgate-3", {"show_total_steps": True}),
    ("railpass-2", {}),
    ("potsandlids-5", {"mode": "teacher_forced"}),
]


def _script(worker: AdapterWorker, number: int) -> list[str]:
    task, options = SESSIONS[number]
    gold = worker.call("gold", task_id=task, options={})
    if options.get("mode") == "teacher_forced":
        return ["CLICK [e1]", "nonsense", *gold[2:]]
    return [*gold[:3], f"CLICK [e{number + 1}]"] if number % 2 else gold


def _seen(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True)


def _alone(worker: AdapterWorker, number: int) -> list[str]:
    task, options = SESSIONS[number]
    shown = [_seen(worker.start("alone", task, options))]
    for action in _script(worker, number):
        result = worker.step("alone", action)
        shown.append(_seen(result))
        if result["terminated"]:
            break
    worker.end("alone")
    return shown


def test_interleaved_sessions_equal_serial_ones(worker: AdapterWorker) -> None:
    serial = [_alone(worker, n) for n in range(len(SESSIONS))]
    shown = [[_seen(worker.start(f"i{n}", *SESSIONS[n]))] for n in range(len(SESSIONS))]
    scripts = [_script(worker, n) for n in range(len(SESSIONS))]
    for turn in range(max(map(len, scripts))):
        for place in range(len(SESSIONS)):
            n = (place * 5 + turn) % len(SESSIONS)
            if len(shown[n]) < len(serial[n]):
                shown[n].append(_seen(worker.step(f"i{n}", scripts[n][turn])))
    for n in range(len(SESSIONS)):
        worker.end(f"i{n}")
    assert shown == serial


def test_a_session_expires_with_its_lease(python: Path, tmp_path: Path) -> None:
    """The original never expires one."""
    port, state = tmp_path / "port", tmp_path / "state"
    command = [sys.executable, "-m", "env_servers.front", "--env", "mind2web", "--lease", "1"]
    command += ["--port", "0", "--port-file", str(port), "--state-dir", str(state)]
    server = subprocess.Popen(command, cwd=ROOT, stderr=(tmp_path / "log").open("wb"))
    try:
        _wait(port.exists)
        url = f"http://127.0.0.1:{port.read_text().strip()}/v1/sessions"
        told = requests.post(url, json={"env": "mind2web", "task_id": "skyhop-0"}, timeout=120).json()
        _wait(lambda: not any(state.glob("sessions/*.jsonl")))
        body = {"step_index": 0, "action": "CLICK [e1]", "epoch": told["epoch"]}
        reply = requests.post(f"{url}/{told['session_id']}/step", json=body, timeout=60)
        assert (reply.status_code, reply.json()["type"]) == (410, "session_expired")
    finally:
        server.terminate()
        server.wait(60)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_play_and_check_on_the_command_line(python: Path) -> None:
    cope = [sys.executable, "-m", "cope_gym"]
    lines = "TYPE [e8] [Lisbon]\n:hint\nTYPE [e9] [Nowhere]\n"
    played = subprocess.run(
        [*cope, "play", "mind2web", "--task", "skyhop-3"], input=lines, capture_output=True, text=True, env=os.environ
    )
    assert "TYPE [e9] [Oslo]" in played.stdout and "Not solved: score 0.20 in 2 steps." in played.stdout
    checked = subprocess.run([*cope, "check", "mind2web"], capture_output=True, text=True, env=os.environ)
    assert checked.returncode == 0 and "11 tasks, all as they should be" in checked.stdout


@pytest.mark.soak
def test_200_resets_do_not_grow(python: Path, temporary: Path) -> None:
    with AdapterWorker(python, "mind2web") as worker:
        tasks = [id for id, _, _ in worker.call("tasks", split="sample")]

        def one(number: int) -> None:
            task = tasks[number * 7 % len(tasks)]
            worker.start("s", task, {"mode": "teacher_forced"} if number % 2 else {})
            for action in worker.call("gold", task_id=task, options={}):
                worker.step("s", action)
            worker.end("s")

        adapter_kit.assert_flat(worker, temporary, one)
