"""The skill object: a typed JSON schema, robust parsing of model text, and the card that conditions a solver."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast


class SkillError(ValueError):
    """A text holds no well-formed skill. Such a skill conditions nothing."""


@dataclass(frozen=True)
class WorkflowStep:
    """One step of a workflow."""

    goal: str = ""
    action: str = ""
    tools_or_strategy: str = ""
    completion_condition: str = ""


@dataclass(frozen=True)
class ErrorCase:
    """What can go wrong, why, and what to do then."""

    error: str = ""
    cause: str = ""
    response: str = ""


@dataclass(frozen=True)
class Skill:
    """A reusable piece of know-how, extracted from one episode.

    The fields are those that Evolving-RL (arXiv 2605.10663) asks its extractor for; only `name` and `description` must
    hold text, since thin evidence is better left thin.
    """

    name: str
    description: str
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    skill_overview: tuple[str, ...] = ()
    when_to_use: tuple[str, ...] = ()
    when_not_to_use: tuple[str, ...] = ()
    inputs_to_identify: tuple[str, ...] = ()
    workflow: tuple[WorkflowStep, ...] = ()
    decision_rules: tuple[str, ...] = ()
    error_handling: tuple[ErrorCase, ...] = ()
    output_requirements: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the skill as JSON data; `Skill.from_dict` reads it back."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Skill:
        """Checks and converts JSON data.

        Raises:
            SkillError: A field is missing or has another type; the message names it.
        """
        for required in ("name", "description"):
            if not isinstance(data.get(required), str) or not data[required].strip():
                raise SkillError(f'the skill has no "{required}"; it must be a non-empty string')
        values: dict[str, Any] = {"name": data["name"].strip(), "description": data["description"].strip()}
        for name, read in _READERS.items():
            if data.get(name) is not None:
                values[name] = read(name, data[name])
        return cls(**values)

    def markdown(self, limit: int | None = None, length: Callable[[str], int] = len) -> str:
        """Renders the card that is put before a solver.

        Args:
            limit: Upper bound on its length. Whole sections are dropped from the end; only where title and description
                are too long by themselves they are cut.
            length: Measures a text; characters by default, a tokenizer's count where tokens are meant.
        """
        card, *sections = [f"# {self.name}\n\n{self.description}", *self._sections()]
        for section in sections:
            longer = f"{card}\n\n{section}"
            if limit is not None and length(longer) > limit:
                break
            card = longer
        while limit is not None and card and length(card) > limit:
            card = card[: min(len(card) * limit // length(card), len(card) - 1)]
        return card

    def _sections(self) -> Iterator[str]:
        facts = [f"{label}: {self.metadata[key]}" for key, label in _METADATA.items() if self.metadata.get(key)]
        if facts:
            yield " · ".join(facts)
        for name, title in _SECTIONS.items():
            lines = list(_lines(getattr(self, name)))
            if lines:
                yield f"## {title}\n" + "\n".join(lines)


_METADATA = {
    "skill_category": "Category",
    "source_task_type": "Source",
    "abstraction_level": "Level",
    "success_signal": "Seen in a",
}
# Most useful first: a capped card loses sections from the end.
_SECTIONS = {
    "when_to_use": "When to use",
    "when_not_to_use": "When not to use",
    "workflow": "Workflow",
    "decision_rules": "Decision rules",
    "error_handling": "When something goes wrong",
    "skill_overview": "Overview",
    "inputs_to_identify": "Find out first",
    "output_requirements": "Required of the result",
}


def _lines(items: tuple[Any, ...]) -> Iterator[str]:
    number = 0
    for item in items:
        if isinstance(item, WorkflowStep):
            number += 1
            yield f"{number}. " + ": ".join(part for part in (item.goal, item.action) if part)
            if item.tools_or_strategy:
                yield f"   - How: {item.tools_or_strategy}"
            if item.completion_condition:
                yield f"   - Done when: {item.completion_condition}"
        elif isinstance(item, ErrorCase):
            yield f"- {item.error}" + (f" ({item.cause})" if item.cause else "") + f" → {item.response}"
        else:
            yield f"- {item}"


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[Any]", value)):
        raise SkillError(f'"{name}" must be a list of strings')
    return tuple(item.strip() for item in cast("list[str]", value) if item.strip())


def _objects(kind: type[Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    allowed = [f.name for f in fields(kind)]

    def read(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[Any]", value)):
            raise SkillError(f'"{name}" must be a list of objects with {", ".join(allowed)}')
        rows = cast("list[dict[str, Any]]", value)
        made = [kind(**{key: _text(row.get(key)) for key in allowed}) for row in rows]
        return tuple(item for item in made if any(asdict(item).values()))

    return read


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _mapping(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SkillError(f'"{name}" must be an object')
    return {str(key): _text(item) for key, item in cast("dict[Any, Any]", value).items()}


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "metadata": _mapping,
    "workflow": _objects(WorkflowStep),
    "error_handling": _objects(ErrorCase),
    **dict.fromkeys(
        (
            "skill_overview",
            "when_to_use",
            "when_not_to_use",
            "inputs_to_identify",
            "decision_rules",
            "output_requirements",
        ),
        _texts,
    ),
}
_KEYS = {f.name for f in fields(Skill)}
_REASONING = re.compile(r"^.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_MAX_OBJECTS = 64


def parse_skill(text: str) -> Skill:
    """Finds the skill in a model's reply: fenced, bare, nested or with prose around it.

    Of several JSON objects the one with most fields of the schema counts, the longest among equals.

    Raises:
        SkillError: There is none, or it is malformed; the message says what is wrong.
    """
    found = list(_objects_in(_REASONING.sub("", text)))
    if not found:
        raise SkillError("the reply holds no JSON object")
    best = max(found, key=lambda item: (len(_KEYS & item[0].keys()), item[1]))[0]
    return Skill.from_dict(best)


def _objects_in(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields every JSON object that starts in the text (nested ones too) with its length."""
    decoder = json.JSONDecoder(strict=False)
    position, seen = text.find("{"), 0
    while position >= 0 and seen < _MAX_OBJECTS:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            seen += 1
        else:
            seen += 1
            yield cast("dict[str, Any]", value), end - position
            if _KEYS & cast("dict[str, Any]", value).keys():
                position = end - 1
        position = text.find("{", position + 1)
