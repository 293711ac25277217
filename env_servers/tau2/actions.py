"""From what a model writes to a message for the customer or to tool calls. Standard library only.

An action is a JSON value, `{"type": "message", "content": …}` or `{"type": "tool_calls", "calls": [{"name": …,
"arguments": {…}}]}`, or text in one of the forms that models write: `<tool_call>` blocks, a JSON call or a list of
them, `tool(name="value")` for a tool that exists, and anything else as a message. The benchmark forbids a message and
calls in one turn.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from env_servers.adapter import AdapterError

# What ends a conversation when a customer says it; an agent must not put it into the customer's mouth.
STOP = "###STOP###"
SIGNALS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_REASONING = re.compile(r"<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"\A```[a-z]*\s*\n(.*?)\n?```\Z", re.DOTALL)
_FUNCTION = re.compile(r"\A([A-Za-z_]\w*)\s*\(.*\)\Z", re.DOTALL)
_SCHEMA = (
    'send {"type": "message", "content": "…"} or {"type": "tool_calls", "calls": [{"name": "…", "arguments": {}}]}'
)


@dataclass(frozen=True)
class Call:
    """One tool call of the agent."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """What the agent does in one turn: exactly one of the three.

    Attributes:
        message: Text for the customer.
        calls: Tool calls.
        problem: Why it is neither; nothing happens then.
        dropped: Text beside tool calls, which nobody receives.
    """

    message: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    problem: str = ""
    dropped: str = ""


class _Malformed(Exception):
    """A call that cannot be read; the message is for the model."""


def read(action: Any, tools: Collection[str], may_stop: bool = False) -> Turn:
    """Reads an action.

    Args:
        action: A JSON value as described above, or text.
        tools: Names of the agent's tools, for calls written as `tool(…)`.
        may_stop: Whether the agent may end the conversation; else its `###STOP###` is taken out of the text.

    Raises:
        AdapterError: `bad_action` for a JSON value of another form. Text never raises.
    """
    described = _object(action)
    if described is None and not isinstance(action, str):
        raise AdapterError("bad_action", f"a τ² action is text or an object: {_SCHEMA}")
    turn = _read_text(action, tools) if described is None else _read_object(described)
    return turn if may_stop or not turn.message else _message(turn.message.replace(STOP, ""))


def write(call: Call) -> str:
    """Returns a call as the text form that `read` knows."""
    written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _read_object(action: Mapping[str, Any]) -> Turn:
    kind = action.get("type")
    fields = {"message": {"type", "content"}, "tool_calls": {"type", "calls"}}.get(str(kind))
    if fields is None or set(action) != fields:
        raise AdapterError("bad_action", f"not a τ² action; {_SCHEMA}")
    if kind == "message":
        if not isinstance(action["content"], str) or not action["content"].strip():
            raise AdapterError("bad_action", "the content of a message is text that is not blank")
        return _message(action["content"])
    calls = _array(action["calls"])
    if not calls:
        raise AdapterError("bad_action", "calls is a list with at least one call")
    try:
        return Turn(calls=[_call(call) for call in calls])
    except _Malformed as error:
        raise AdapterError("bad_action", str(error)) from error


def _read_text(text: str, tools: Collection[str]) -> Turn:
    text = _REASONING.sub("", text).rpartition("</think>")[2].strip()
    try:
        if "<tool_call>" in text:
            calls = [call for block in _BLOCK.findall(text) for call in _calls(_json(block))]
            return Turn(calls=calls, dropped=_BLOCK.sub("", text).strip())
        return _read_bare(text, tools)
    except _Malformed as error:
        return Turn(problem=str(error))


def _read_bare(text: str, tools: Collection[str]) -> Turn:
    fenced = _FENCE.match(text)
    body = fenced[1].strip() if fenced else text
    function = _FUNCTION.match(body)
    if function and function[1] in tools:
        return Turn(calls=[_function(body)])
    if body[:1] in ("{", "["):
        value = _maybe_json(body)
        described = _object(value) or {}
        if described.get("type") == "message" and isinstance(described.get("content"), str):
            return _message(described["content"])
        listed = _array(described.get("calls", described.get("tool_calls")))
        if listed is not None:
            return Turn(calls=_calls(listed))
        if _looks_like_calls(value):
            return Turn(calls=_calls(value))
    return _message(text)


def _message(text: str) -> Turn:
    for signal in SIGNALS[1:]:
        text = text.replace(signal, "")
    if not text.strip():
        return Turn(problem="the turn is blank; write a message or call a tool")
    return Turn(message=text.strip())


def _looks_like_calls(value: Any) -> bool:
    items = [_object(item) or {} for item in _array(value) or [value]]
    return all("arguments" in item or "function" in item for item in items)


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _array(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _maybe_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _Malformed(f"the tool call is not valid JSON: {error}") from error


def _calls(value: Any) -> list[Call]:
    calls = _array(value)
    if calls is None:
        return [_call(value)]
    if not calls:
        raise _Malformed("the list of tool calls is empty")
    return [_call(call) for call in calls]


def _call(value: Any) -> Call:
    """Reads one call; who asks is never read from it, so that an agent cannot use the customer's tools."""
    call = _object(value) or {}
    call = _object(call.get("function")) or call
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        raise _Malformed('a tool call is an object with "name" and "arguments"')
    given = _object(_json(arguments) if isinstance(arguments, str) else arguments)
    if given is None:
        raise _Malformed(f"the arguments of {name} are not an object")
    return _checked(Call(name, given))


def _checked(call: Call) -> Call:
    """The benchmark's calculator evaluates what it is given: a tower of powers would never end."""
    if call.name == "calculate" and "**" in str(call.arguments.get("expression", "")):
        raise _Malformed("calculate knows +, -, *, / and parentheses, not powers")
    return call


def _function(text: str) -> Call:
    name, arguments = _parse_function(text)
    return _checked(Call(name, arguments))


def _parse_function(text: str) -> tuple[str, dict[str, Any]]:
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _Malformed(f"the call cannot be read: {error}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _Malformed("the text is more than one call; write one call, or use JSON for several")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _Malformed(f"give the arguments of {node.func.id} by name: {node.func.id}(name=value)")
    try:
        return node.func.id, {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    except (TypeError, ValueError) as error:
        raise _Malformed(f"an argument of {node.func.id} is no plain value") from error


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    value = ast.literal_eval(node)
    json.dumps(value)  # a set or bytes is no value that a tool knows
    return value
