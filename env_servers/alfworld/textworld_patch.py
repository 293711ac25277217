"""TextWorld's PDDL engine made fast, safe and quiet, with the same output. Imported in the benchmark's process only.

Stock TextWorld translates the same problem four times an episode, parses its grammar anew for every command that it
lists (nearly all of a step's time), runs grammar text through `eval`, overwrites `sys.argv`, and keeps every fact of
every game that was ever loaded. `apply` puts a cache or a check in each of these places; a test compares all output
with an untouched engine.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportPrivateUsage=false, reportMissingTypeArgument=false

from __future__ import annotations

import ast
import copy
import sys
from functools import lru_cache
from types import CodeType
from typing import Any

import fast_downward
import mementos.core
from textworld.envs.pddl import textgen
from textworld.logic import Rule

from env_servers.alfworld.game import GameError

TRANSLATIONS = 16
"""How many games' translations a process keeps, about 2 MB each."""

_ALLOWED = (
    *(ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Constant),
    *(ast.BinOp, ast.Add, ast.BoolOp, ast.Or, ast.And),
)

_stock_pddl2sas = fast_downward.pddl2sas
_stock_parse = textgen._parse_and_convert
_stock_query = Rule.parse_conjunctive_query.__func__


def apply() -> None:
    """Patches the engine of this process."""
    fast_downward.pddl2sas = _pddl2sas
    textgen._parse_and_convert = _parse
    textgen.deepcopy = _fresh
    textgen.EvalSymbol.derive = _derive_expression
    Rule.parse_conjunctive_query = classmethod(_query)


def forget_facts() -> None:
    """Empties TextWorld's table of all facts there ever were; facts compare by value, so nothing depends on it."""
    mementos.core._memento_cache.clear()


def _pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
    # The second translation is for the planner, which no episode asks: half of the time of a load saved.
    return (None, "") if optimize else _translation(domain, problem)


@lru_cache(maxsize=TRANSLATIONS)
def _translation(domain: str, problem: str) -> tuple[Any, str]:
    arguments, output = sys.argv, sys.stdout
    try:
        return _stock_pddl2sas(domain, problem)
    finally:
        sys.argv, sys.stdout = arguments, output


def _parse(text: str, rule_name: str, trace: bool = False) -> list[textgen.Symbol]:
    return _fresh(_parsed(text, rule_name))


@lru_cache(maxsize=1024)
def _parsed(text: str, rule_name: str) -> list[textgen.Symbol]:
    return _stock_parse(text, rule_name=rule_name)


def _fresh(value: Any) -> Any:
    """Copies as deep as a derivation writes: the symbols and the dictionaries, not the entities in them."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [_fresh(symbol) for symbol in value]
    new = copy.copy(value)
    if isinstance(new, textgen.ListSymbol):
        new.symbol = _fresh(new.symbol)
    elif isinstance(new, textgen.ConditionalSymbol):
        new.expression = _fresh(new.expression)
    return new


def _query(cls: type[Rule], expression: str) -> Rule:
    return _parsed_query(expression)


@lru_cache(maxsize=1024)
def _parsed_query(expression: str) -> Rule:
    return _stock_query(Rule, expression)


def _derive_expression(self: textgen.EvalSymbol, context: Any = None) -> list[textgen.Symbol]:
    variables = (context or self.context)["variables"]
    return [textgen.TerminalSymbol(eval(_compiled(self.expression), {"__builtins__": {}}, variables))]


def names_in(expression: str) -> frozenset[str]:
    """Returns the entities that a grammar's expression speaks of."""
    return frozenset(_compiled(expression).co_names)


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> CodeType:
    """Compiles what a grammar may say: names of entities, their attributes, literal text, `+`, `or`, `and`."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise GameError(f"the grammar's expression {expression!r} cannot be read") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Attribute) and node.attr.startswith("_")):
            raise GameError(f"the grammar's expression {expression!r} may not be evaluated")
    return compile(tree, "<grammar>", "eval")
