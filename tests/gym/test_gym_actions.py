"""The action parser: the label is what ran, whatever the text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cope_gym.actions import FORMATS, parse, render

PIECES = [
    "Action:", "action :", "Thought:", "Observation:", "**Action:**", "<action>", "</action>", "<tool_call>",
    "</tool_call>", "<think>", "</think>", "```", "```python", "````", "\n", "\r\n", " ", "\t", "open door",
    '{"name": "f", "arguments": {}}', '{"name":', "{", "}", '"', "[", "\u2028", "\ud800", "\x00", "é", "9" * 50,
]  # fmt: skip
CALL = '{"name": "f", "arguments": {}}'
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
formats = st.sampled_from(FORMATS)


@given(texts, formats)
@example("[" * 100_000, "json")
@example('{"a":' * 100_000, "json")
@example('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", "json")
def test_any_text_gives_a_literal_span(text: str, format: str) -> None:
    found = parse(text, format)
    assert found.action == text[found.start : found.end]
    assert (found.error is None) == (found.action != "") == (found.count > 0)
    assert found.action == found.action.rstrip()


@given(texts, formats, st.booleans())
def test_reasoning_is_never_part_of_a_span(thought: str, format: str, opened: bool) -> None:
    thought = thought.replace("think", "")
    head = ("<think>" if opened else "") + thought + "</think>"
    found = parse(head + "\nAction: look\n<action>look</action>", format)
    assert found.start >= len(head)
    assert parse("<think>" + thought + "Action: look", format).action == ""


lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(str.strip).filter(bool)
ordinary = lines.filter(lambda s: "<" not in s and "`" not in s and ":" not in s)


@given(ordinary, ordinary, st.sampled_from(["react", "tag", "plain"]))
def test_a_rendered_action_comes_back(action: str, thought: str, format: str) -> None:
    found = parse(render(action, format, thought), format)
    assert (found.action, found.count) == (action, 1)


@given(st.lists(ordinary, min_size=1), ordinary)
def test_rendered_code_comes_back(lines: list[str], thought: str) -> None:
    code = "\n".join(lines)
    assert parse(render(code, "code", thought), "code").action == code


arguments = st.dictionaries(
    st.text(max_size=9), st.none() | st.integers() | st.text() | st.lists(st.floats()), max_size=4
)


@given(st.text(), arguments, st.sampled_from(["json", "tool_call"]))
def test_a_rendered_tool_call_comes_back(name: str, arguments: dict[str, object], format: str) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    assume("think" not in call.lower())  # a reasoning tag hides what follows, also in a call
    assert parse(render(call, format, "I call it."), format).action == call


@pytest.mark.parametrize(
    ("format", "text", "action", "count"),
    [
        ("react", "Thought: I look.\nAction: look around", "look around", 1),
        ("react", "Thought:\nhm\n\nAction:\n\n  open door  \nrest", "open door", 1),
        ("react", "Action: a\nObservation: x\nAction: b", "a", 2),
        ("react", "The Action: is clear.\nAction: b", "b", 1),
        ("react", "I think. Action: go north", "go north", 1),
        ("react", "**Action:** look", "look", 1),
        ("react", "### Action: look", "look", 1),
        ("react", "Action:\nThought: again\nAction: b", "b", 1),
        ("react", "Action:", "", 0),
        ("react", "open door", "", 0),
        ("react", "transaction: 5", "", 0),
        ("react", "<think>Action: a</think>Action: b", "b", 1),
        ("react", "Action: open<think>x</think> door", "open", 1),
        ("tag", "<action> search[a\nb] </action>", "search[a\nb]", 1),
        ("tag", "<action>a</action><action>b</action>", "a", 2),
        ("tag", "<action>a<action>b</action>", "b", 1),
        ("tag", "<action>a", "", 0),
        ("tag", "<action></action>", "", 0),
        ("code", "a\n```python\nx = 1\n```\nb\n```\n\n  y = 2\n\n```", "  y = 2", 2),
        ("code", "```json\n{}\n```", "", 0),
        ("code", "```python\nx = 1", "", 0),
        ("code", "````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''", 1),
        ("json", 'so {x} {"name": "f", "arguments": {"a": 1}} end', '{"name": "f", "arguments": {"a": 1}}', 1),
        ("json", '{"name": "f", "arguments": "x"}', "", 0),
        (
            "json",
            '{"name": "f", "arguments": {"a": "two\nlines"}}',
            '{"name": "f", "arguments": {"a": "two\nlines"}}',
            1,
        ),
        ("tool_call", CALL, "", 0),
        ("tool_call", f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", CALL, 2),
        ("plain", "<think>hm</think>\n hello \n", "hello", 1),
        ("plain", "<think>never closed", "", 0),
    ],
)
def test_documented_rules(format: str, text: str, action: str, count: int) -> None:
    found = parse(text, format)
    assert (found.action, found.count) == (action, count)
    assert action or (found.error and found.error.endswith("."))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("piece", [p for p in PIECES if len(p) > 1])
def test_long_repetitive_text_stays_fast(format: str, piece: str) -> None:
    started = time.perf_counter()
    parse(piece * 4000, format)
    assert time.perf_counter() - started < 2


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'xml'; there are: react, tag"):
        parse("x", "xml")
