"""What models write, read as messages and tool calls. No benchmark needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_servers.adapter import AdapterError
from env_servers.tau2.actions import Call, read
from env_servers.tau2.script import MAX_TURNS, Script, request

TOOLS = {"get_order", "calculate"}
ORDER = Call("get_order", {"order_id": "#W1"})


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#W1"}}\n</tool_call>',
        '<tool_call>{"name": "get_order", "arguments": {"order_id": "#W1"}}',
        '<think>hm</think><tool_call>{"name": "get_order", "arguments": {"order_id": "#W1"}}</tool_call>',
        '{"name": "get_order", "arguments": {"order_id": "#W1"}}',
        '{"name": "get_order", "arguments": "{\\"order_id\\": \\"#W1\\"}"}',
        '{"name": "get_order", "arguments": {"order_id": "#W1"}, "requestor": "user"}',
        '```json\n{"name": "get_order", "arguments": {"order_id": "#W1"}}\n```',
        '[{"name": "get_order", "arguments": {"order_id": "#W1"}}]',
        '{"type": "function", "function": {"name": "get_order", "arguments": "{\\"order_id\\": \\"#W1\\"}"}}',
        '{"tool_calls": [{"function": {"name": "get_order", "arguments": {"order_id": "#W1"}}}]}',
        '{"type": "tool_calls", "calls": [{"name": "get_order", "arguments": {"order_id": "#W1"}}]}',
        'get_order(order_id="#W1")',
        "```python\nget_order(\n    order_id='#W1',\n)\n```",
    ],
)
def test_forms_of_a_call(text: str) -> None:
    assert read(text, TOOLS).calls == [ORDER]


def test_several_calls_and_text_beside_them() -> None:
    block = '<tool_call>{"name": "get_order", "arguments": {"order_id": "#W1"}}</tool_call>'
    turn = read(f"Let me look.\n{block}\n{block}", TOOLS)
    assert turn.calls == [ORDER, ORDER] and turn.dropped == "Let me look." and not turn.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hello (Bob)", "Hello (Bob)"),
        ("greet(Bob)", "greet(Bob)"),
        ("<think>who?</think>\nWhat is your name?", "What is your name?"),
        ('{"type": "message", "content": "Hi"}', "Hi"),
        ("{braces} are fine", "{braces} are fine"),
        ('{"order": 1}', '{"order": 1}'),
        ("I moved you ###TRANSFER### now", "I moved you  now"),
        ("Bye ###STOP###", "Bye"),
    ],
)
def test_messages(text: str, message: str) -> None:
    turn = read(text, TOOLS)
    assert (turn.message, turn.calls, turn.problem) == (message, [], "")


def test_an_agent_that_may_stop_keeps_its_signal() -> None:
    assert read("Bye ###STOP###", TOOLS, may_stop=True).message == "Bye ###STOP###"
    assert read("###STOP###", TOOLS).problem


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "blank"),
        ("  \n", "blank"),
        ("<think>only thoughts</think>", "blank"),
        ("###TRANSFER###", "blank"),
        ("<tool_call>{broken</tool_call>", "not valid JSON"),
        ("<tool_call>[]</tool_call>", "empty"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ('<tool_call>{"name": "get_order", "arguments": [1]}</tool_call>', "not an object"),
        ('get_order("#W1")', "by name"),
        ("get_order(order_id=open('x'))", "no plain value"),
        ("get_order(order_id={1, 2})", "no plain value"),
        ("get_order(order_id=1) and get_order(order_id=2)", "more than one call"),
        ('calculate(expression="9**9**9")', "powers"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, hint: str) -> None:
    turn = read(text, TOOLS)
    assert hint in turn.problem and not turn.calls and not turn.message


@pytest.mark.parametrize(
    "action",
    [
        None,
        7,
        [],
        {},
        {"type": "message"},
        {"type": "message", "content": " "},
        {"type": "message", "content": "x", "calls": []},
        {"type": "tool_calls", "calls": []},
        {"type": "tool_calls", "calls": [{"arguments": {}}]},
        {"type": "tool_calls", "calls": [{"name": "x", "arguments": 3}]},
        {"type": "done"},
    ],
)
def test_objects_of_another_form_are_refused(action: Any) -> None:
    with pytest.raises(AdapterError) as caught:
        read(action, TOOLS)
    assert caught.value.type == "bad_action"


@given(st.text(max_size=80) | st.text("<tool_cal>{}[]\"':,()= ", max_size=80))
def test_no_text_raises(text: str) -> None:
    turn = read(text, TOOLS)
    assert bool(turn.message) + bool(turn.calls) + bool(turn.problem) == 1


def customer(**changes: Any) -> Script:
    given_fields = {
        "reason": "My phone is dead.",
        "known": "I am Ann, zip 12345.",
        "unknown": "You do not know your email.",
    }
    return Script(**{**given_fields, "tools": ["toggle_airplane_mode", "set_apn_settings"], **changes})


def test_the_scripted_customer() -> None:
    ann = customer()
    assert ann.opening().text == "My phone is dead. I am Ann, zip 12345."
    assert ann.answer("May I have your name and zip code?").text == "I am Ann, zip 12345."
    assert ann.answer("What is your email address?").text.startswith("I don't know.")
    assert ann.answer("Shall I proceed (yes/no)?").text == "Yes."
    assert ann.answer("Please turn off airplane mode.").tool == "toggle_airplane_mode"
    assert ann.report(["Airplane mode is OFF"]).text.endswith("Airplane mode is OFF")
    assert "###TRANSFER###" in ann.answer("I am transferring you to a human.").text
    assert "###STOP###" in ann.answer("Goodbye.").text
    asked = ann.answer(request("set_apn_settings", {"apn_settings": {"name": "x"}}))
    assert (asked.tool, asked.arguments) == ("set_apn_settings", {"apn_settings": {"name": "x"}})


def test_the_scripted_customer_gives_up() -> None:
    ann = customer()
    answers = [ann.answer("What is your name?").text for _ in range(MAX_TURNS + 1)]
    assert "###STOP###" in answers[-1] and not any("###STOP###" in answer for answer in answers[:-1])
