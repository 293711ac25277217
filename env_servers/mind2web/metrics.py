"""What an action is worth: the training rule of Evolving-RL, and the published step metrics. Standard library only."""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from env_servers.mind2web.actions import Action


@dataclass(frozen=True)
class Gold:
    """The recorded action of a step.

    Attributes:
        op: `CLICK`, `TYPE` or `SELECT`.
        value: What was typed or selected.
        nodes: Nodes that count as its element; none for a step whose element the data set lost.
        text: The action in the data set's words, e.g. `[textbox]  Zip code -> TYPE: 10203`.
    """

    op: str
    value: str
    nodes: Collection[str]
    text: str = ""


@dataclass(frozen=True)
class Verdict:
    """How an action compares with the recorded one.

    Attributes:
        element: The element is one of the recorded ones.
        op: The operation is the recorded one.
        value: So is the value, but for blanks and capitals; always where the recorded action is a click.
        f1: Operation F1.
    """

    element: bool = False
    op: bool = False
    value: bool = False
    f1: float = 0.0

    @property
    def correct(self) -> bool:
        """The training rule: all three are right."""
        return self.element and self.op and self.value

    @property
    def step_success(self) -> bool:
        """The published rule: right element, operation F1 of 1."""
        return self.element and self.f1 == 1.0


def judge(action: Action | None, node: str | None, gold: Gold) -> Verdict:
    """Compares an action with the recorded one.

    Args:
        action: `None` if none could be read.
        node: Node of the element that it names; `None` if it names none.
        gold: The recorded action.
    """
    if action is None:
        return Verdict()
    op = action.op == gold.op
    return Verdict(
        element=bool(node) and node in gold.nodes,
        op=op,
        value=op and (gold.op == "CLICK" or _folded(action.value) == _folded(gold.value)),
        f1=operation_f1(_operation(action.op, action.value), _operation(gold.op, gold.value)),
    )


def operation_f1(predicted: str, gold: str) -> float:
    """F1 between the sets of words of two `OP value` texts; words that are punctuation do not count."""
    a, b = _words(predicted), _words(gold)
    if not a or not b:
        return float(a == b)
    common = len(a & b)
    return 2 * common / (len(a) + len(b))


def summary(verdicts: Sequence[Verdict], steps: int) -> dict[str, Any]:
    """The published metrics of one task: means over all its steps; a step that was not played counts as wrong.

    Published tables are means over tasks of these (macro average).
    """
    played = [*verdicts, *[Verdict()] * (steps - len(verdicts))]
    return {
        "element_accuracy": fmean(verdict.element for verdict in played),
        "operation_f1": fmean(verdict.f1 for verdict in played),
        "step_success": fmean(verdict.step_success for verdict in played),
        "task_success": float(all(verdict.step_success for verdict in played)),
    }


def _operation(op: str, value: str) -> str:
    return op if op == "CLICK" else f"{op} {value}"


def _folded(value: str) -> str:
    return " ".join(value.split()).lower()


def _words(text: str) -> set[str]:
    return {word for word in text.split() if word not in string.punctuation}
