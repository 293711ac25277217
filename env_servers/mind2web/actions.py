"""Reads an agent's action: `CLICK [e3]`, `TYPE [e5] [Oslo]`, `SELECT [e7] [Economy]`. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

# The data set files hovering and pressing Enter under CLICK.
_OPERATIONS = {"CLICK": "CLICK", "TYPE": "TYPE", "SELECT": "SELECT", "HOVER": "CLICK", "ENTER": "CLICK"}
_ACTION = re.compile(r"\s*([A-Za-z]+)\s*(?:\[\s*(e\d+)\s*\]|(e\d+)\b)(.*)", re.DOTALL)
_ANOTHER = re.compile(r"[\n;]\s*(?:CLICK|TYPE|SELECT|HOVER|ENTER)\s*\[?\s*e\d+\b")
_HOW = "write CLICK [e3], TYPE [e3] [text] or SELECT [e3] [option]"


class ActionError(Exception):
    """The text is no action; the message says why, as a sentence for the agent."""


@dataclass(frozen=True)
class Action:
    """What to do.

    Attributes:
        op: `CLICK`, `TYPE` or `SELECT`.
        ref: Reference of an element.
        value: Text to type, or option to select; "" for a click.
    """

    op: str
    ref: str
    value: str = ""

    def __str__(self) -> str:
        """Writes it in the published form."""
        return f"{self.op} [{self.ref}]" + (f" [{self.value}]" if self.op != "CLICK" else "")


def parse(action: object) -> Action:
    """Reads an action: text in the published form, with or without brackets, or `{"op", "ref", "value"}`.

    Raises:
        ActionError: It is none, or more than one.
    """
    if isinstance(action, str) and action.lstrip().startswith("{"):
        try:
            action = json.loads(action)
        except (ValueError, RecursionError):
            raise ActionError(f"That is no JSON; {_HOW}.") from None
    if isinstance(action, Mapping):
        return _from_fields(cast("Mapping[str, Any]", action))
    if not isinstance(action, str):
        raise ActionError(f"That is no action; {_HOW}.")
    return _from_text(action)


def _from_text(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ActionError(f"That is no action; {_HOW}.")
    if _ANOTHER.search(text, match.start(4)):
        raise ActionError("Those are several actions; give one at a time.")
    return _checked(match[1], match[2] or match[3], _value(match[4].strip()))


def _value(text: str) -> str:
    if text.startswith("[") and text.endswith("]") and len(text) > 1:
        return text[1:-1].strip()
    # Evolving-RL's form: `TYPE e5: Oslo` or `TYPE e5 | Oslo`; later colons and bars belong to the value.
    return text[1:].strip() if text[:1] in (":", "|") else text


def _from_fields(fields: Mapping[str, Any]) -> Action:
    if unknown := set(fields) - {"op", "ref", "value"}:
        raise ActionError(f"An action has op, ref and value, not {str(min(unknown, key=str))[:40]!r}.")
    op, ref, value = fields.get("op"), fields.get("ref"), fields.get("value", "")
    if not isinstance(op, str) or not isinstance(ref, str) or not isinstance(value, (str, type(None))):
        raise ActionError("An action's op, ref and value are texts.")
    return _checked(op, ref.strip().strip("[]"), (value or "").strip())


def _checked(op: str, ref: str, value: str) -> Action:
    known = _OPERATIONS.get(op.strip().upper())
    if known is None:
        raise ActionError(f"There is no operation {op.strip()[:20]!r}; {_HOW}.")
    if known == "CLICK":
        return Action(known, ref)
    if not value:
        raise ActionError(f"{known} needs a value; {_HOW}.")
    return Action(known, ref, value)
