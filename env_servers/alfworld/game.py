"""What an ALFWorld game is made of. Standard library only.

A game file holds a PDDL domain, a grammar, a problem and a walkthrough. Domain and grammar are the same in thousands
of games but for the task sentence inside the grammar, so a `Game` keeps the sentence apart from both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

TASK_TYPES: tuple[str, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task types, in the order of the package's own numbering."""

GOAL_SLOT = "UNKNOWN GOAL"
"""What stands in a grammar in place of the task sentence: the package's own word for it."""

_TASK_LINE = re.compile(r'(Your task is to: )([^"]*?)(\.")')
# No sign that the grammar gives a meaning to may come in with a sentence.
_SENTENCE = re.compile(r"[A-Za-z0-9 ,'-]{1,300}")
_FOLDER = re.compile(r"([a-z_]+)-(\w+)-(\w+)-(\w+)-(\d+)")
_TRIAL = re.compile(r"\w{1,80}")


class GameError(ValueError):
    """A file that is no playable game; the message says why."""


@dataclass(frozen=True)
class Game:
    """One game.

    Attributes:
        folder: Type, object, movable receptacle, target and scene, e.g. `look_at_obj_in_light-Mug-None-DeskLamp-308`.
        trial: Name within the folder.
        sentence: The task in words, without the full stop.
        problem: PDDL problem.
        walkthrough: Commands that win, in the style of the grammar.
        domain: PDDL domain.
        grammar: Grammar with `GOAL_SLOT` for the sentence.
    """

    folder: str
    trial: str
    sentence: str
    problem: str
    walkthrough: tuple[str, ...]
    domain: str
    grammar: str

    @property
    def category(self) -> str:
        """The task type."""
        return category_of(self.folder)

    def digest(self) -> str:
        """Returns a sha256 over everything that the game is."""
        parts = [self.folder, self.trial, self.sentence, self.problem, self.walkthrough, self.domain, self.grammar]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def to_file(self) -> dict[str, Any]:
        """Returns what a `game.tw-pddl` file holds, as JSON."""
        return {
            "pddl_domain": self.domain,
            "grammar": self.grammar.replace(GOAL_SLOT, self.sentence),
            "pddl_problem": self.problem,
            "solvable": True,
            "walkthrough": list(self.walkthrough),
        }

    def in_style(self, style: str) -> Game:
        """Returns the game with the commands of ALFWorld 0.4 (`move`) or of 0.3 (`put`: `put X in/on Y`)."""
        if style == "move":
            return self
        walkthrough = tuple(_MOVE.sub(r"put \1 in/on \2", command) for command in self.walkthrough)
        return replace(self, grammar=_old_style(self.grammar), walkthrough=walkthrough)


_MOVE = re.compile(r"^move (.+) to (.+)$")
_OLD_STYLE = (
    ('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"'),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
    ("move (object) to (receptacle):", "put (object) in/on (receptacle):"),
)


def _old_style(grammar: str) -> str:
    for new, old in _OLD_STYLE:
        grammar = grammar.replace(new, old)
    return grammar


def category_of(folder: str) -> str:
    """Returns the task type that a folder name starts with.

    Raises:
        GameError: It has another form, or no known type.
    """
    match = _FOLDER.fullmatch(folder)
    if match is None or match[1] not in TASK_TYPES:
        raise GameError(f"the folder name {folder!r} is not `type-Object-Movable-Receptacle-scene` of a known type")
    return match[1]


def is_playable(folder: str, data: Mapping[str, Any]) -> bool:
    """Returns whether ALFWorld itself lists the game: not with movable receptacles, slicing, or no solution."""
    return "movable" not in folder and "Sliced" not in folder and bool(data.get("solvable"))


def parse(folder: str, trial: str, data: Mapping[str, Any]) -> Game:
    """Returns the game that a `game.tw-pddl` file holds.

    Raises:
        GameError: Something is missing or has another form.
    """
    category_of(folder)
    if not _TRIAL.fullmatch(trial):
        raise GameError(f"{trial!r} is no name of a trial")
    texts: list[str] = []
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        value = data.get(key)
        if not isinstance(value, str):
            raise GameError(f"the file has no text {key!r}")
        texts.append(value)
    domain, grammar, problem = texts
    sentences = _TASK_LINE.findall(grammar)
    if len(sentences) != 1 or not _SENTENCE.fullmatch(sentences[0][1]):
        raise GameError("its grammar has no plain sentence 'Your task is to: …'")
    walkthrough: Any = data.get("walkthrough") or []
    if not isinstance(walkthrough, list) or not all(isinstance(one, str) for one in cast(list[Any], walkthrough)):
        raise GameError("its walkthrough is no list of commands")
    commands = tuple(cast(list[str], walkthrough))
    template = _TASK_LINE.sub(rf"\g<1>{GOAL_SLOT}\g<3>", grammar)
    return Game(folder, trial, sentences[0][1], problem, commands, domain, template)
