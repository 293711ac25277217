"""One running game: TextWorld's own environment, fed from a `Game` and used again for the next one.

An environment object maps a private copy of the planner's library and is never given back by TextWorld (3.8 MB each),
hence the pool. Imported in the benchmark's process only, and for one thread: TextWorld's parsers are global.
"""

# pyright: reportAttributeAccessIssue=false
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportPrivateUsage=false, reportUntypedBaseClass=false

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from textworld import EnvInfos
from textworld.envs import PddlEnv
from textworld.envs.pddl import logic, textgen
from textworld.logic import Rule, TypeHierarchy

from env_servers.alfworld import textworld_patch
from env_servers.alfworld.game import GOAL_SLOT, Game, GameError
from env_servers.alfworld.package import AlfredDemangler


def versions() -> dict[str, str]:
    """Returns the versions of the packages that decide what a game says."""
    return {name: metadata.version(name) for name in ("alfworld", "textworld", "fast-downward-textworld", "tatsu")}


@dataclass(frozen=True)
class Turn:
    """What the engine says after a command.

    Attributes:
        text: The observation.
        won: Whether the goal holds now.
        valid: Whether the command was one that the game could execute.
        commands: All commands that it can execute next, sorted.
    """

    text: str
    won: bool
    valid: bool
    commands: tuple[str, ...]


class World:
    """An environment object; `start` may be called again and again."""

    def __init__(self) -> None:
        self.inner = _GameEnv(EnvInfos(won=True, admissible_commands=True))
        # The package's own naming: "cabinet 3" for `Cabinet_bar__plus_00…`.
        self._env = AlfredDemangler(self.inner, shuffle=False)

    def start(self, game: Game) -> Turn:
        """Loads a game and returns its first observation."""
        textworld_patch.forget_facts()
        self._env.load(game)
        return self._turn(self._env.reset(), True)

    def step(self, command: str) -> Turn:
        """Executes a command; one that the game does not know changes nothing."""
        state, _, _ = self._env.step(command)
        return self._turn(state, state["_last_action"] is not None)

    @staticmethod
    def _turn(state: Mapping[str, Any], valid: bool) -> Turn:
        return Turn(str(state["feedback"]), bool(state["won"]), valid, tuple(state["admissible_commands"]))


class Pool:
    """Environment objects that no episode uses now."""

    def __init__(self) -> None:
        textworld_patch.apply()
        self._idle: list[World] = []

    def take(self) -> World:
        """Returns an environment object."""
        return self._idle.pop() if self._idle else World()

    def give(self, world: World) -> None:
        """Takes it back."""
        self._idle.append(world)


class _GameEnv(PddlEnv):
    """TextWorld's environment, loading a `Game`: the grammar is parsed once a process and not once an episode."""

    def load(self, game: Game) -> None:
        """Loads a game; the names of its entities are what TextWorld's own `load` gives them."""
        self._game_data = {"pddl_problem": game.problem}
        self._game_file = None
        self.walkthrough = list(game.walkthrough)
        self._logic = _Logic(game)
        self._pddl_state = logic.PddlState(self.downward_lib, game.problem, self._logic)
        self._entity_infos = self._get_entity_infos()
        self._logic.grammar.changing = _changing(self._pddl_state.task)


class _Logic(logic.GameLogic):
    """What `GameLogic` makes of domain and grammar, with the task sentence put into the parsed grammar."""

    def __init__(self, game: Game) -> None:
        actions, rules = _parsed_grammar(game.grammar)
        self.domain = game.domain
        self.types = TypeHierarchy()
        self.actions = dict(actions)
        self.grammar = _Grammar()
        self.grammar._rules.update(rules)
        self.grammar._rules["task"] = [_with_sentence(rule, game.sentence) for rule in rules["task"]]


@lru_cache(maxsize=8)
def _parsed_grammar(text: str) -> tuple[dict[str, logic.Action], dict[str, list[textgen.ProductionRule]]]:
    parsed = logic.GameLogic("", text)
    return parsed.actions, dict(parsed.grammar._rules)


def _with_sentence(rule: textgen.ProductionRule, sentence: str) -> textgen.ProductionRule:
    symbols = copy.deepcopy(rule.rhs)
    found = [symbol for symbol in symbols if GOAL_SLOT in symbol.symbol]
    if len(found) != 1 or not isinstance(found[0], textgen.TerminalSymbol):
        raise GameError("the grammar's task sentence is no plain text")
    found[0].symbol = found[0].symbol.replace(GOAL_SLOT, sentence)
    return textgen.ProductionRule(rule.lhs, symbols, rule.weight, rule.condition)


class _Grammar(textgen.ContextSensitiveGrammar):
    """Remembers the commands that it has worded.

    A command's words depend on its entities and on facts that no action changes (where a receptacle stands), so they
    are the same all through a game; texts that depend on anything else are derived anew.
    """

    changing: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self._worded: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def derive(self, start: str, context: Mapping[str, Any] = {}) -> str:  # noqa: B006 (TextWorld's signature)
        """Returns the text that a start symbol comes to."""
        entities = _lasting(start, self.changing)
        if entities is None:
            return super().derive(start, context)
        known = tuple((key.name, value.name) for key, value in context["mapping"].items() if key.name in entities)
        if (start, known) not in self._worded:
            self._worded[start, known] = super().derive(start, context)
        return self._worded[start, known]


@lru_cache(maxsize=1024)
def _lasting(text: str, changing: frozenset[str]) -> frozenset[str] | None:
    """Returns the entities that a text depends on, or `None` if it depends on what a game's actions change."""
    parts = [_depends(symbol, changing) for symbol in textgen._parse_and_convert(text, rule_name="symbols")]
    return None if None in parts else frozenset[str]().union(*(part for part in parts if part is not None))


def _depends(symbol: textgen.Symbol, changing: frozenset[str]) -> frozenset[str] | None:
    if isinstance(symbol, textgen.TerminalSymbol):
        return frozenset()
    if isinstance(symbol, textgen.ListSymbol):
        return _depends(symbol.symbol, changing)
    if isinstance(symbol, textgen.EvalSymbol):
        return textworld_patch.names_in(symbol.expression)
    if not isinstance(symbol, textgen.ConditionalSymbol):
        return None
    inner = _depends(symbol.expression, changing)
    if inner is None or not symbol.given:
        return inner
    asked = Rule.parse_conjunctive_query(symbol.given).preconditions
    if changing.intersection(predicate.name for predicate in asked):
        return None
    return inner.union(placeholder.name for predicate in asked for placeholder in predicate.parameters)


def _changing(task: Any) -> frozenset[str]:
    """Returns the predicates that some action changes, under both names that TextWorld knows them by."""
    names = {effect.literal.predicate for action in task.actions for effect in action.effects}
    return frozenset(names | {f"not_{name}" for name in names})
