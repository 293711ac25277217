"""The published action grammar, and what an action is worth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_servers.mind2web.actions import Action, ActionError, parse
from env_servers.mind2web.metrics import Gold, Verdict, judge, operation_f1, summary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CLICK [e3]", Action("CLICK", "e3")),
        ("  click e3  ", Action("CLICK", "e3")),
        ("HOVER [e3]", Action("CLICK", "e3")),
        ("ENTER [e3]", Action("CLICK", "e3")),
        ("TYPE [e12] [New York]", Action("TYPE", "e12", "New York")),
        ("TYPE [e1] [a [b] c]", Action("TYPE", "e1", "a [b] c")),
        ("TYPE e1 10:30", Action("TYPE", "e1", "10:30")),
        ("TYPE e1: 10:30 | late", Action("TYPE", "e1", "10:30 | late")),
        ("SELECT e4 | 2 guests", Action("SELECT", "e4", "2 guests")),
        ("TYPE [e1] [one\ntwo]", Action("TYPE", "e1", "one\ntwo")),
        ("CLICK [e3] the button", Action("CLICK", "e3")),
        ('{"op": "TYPE", "ref": "e5", "value": "Oslo"}', Action("TYPE", "e5", "Oslo")),
        ({"op": "CLICK", "ref": "[e5]"}, Action("CLICK", "e5")),
        ({"op": "CLICK", "ref": "e5", "value": None}, Action("CLICK", "e5")),
    ],
)
def test_actions_that_can_be_read(text: Any, expected: Action) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no action"),
        ("None", "no action"),
        ("CLICK", "no action"),
        ("CLICK [12]", "no action"),
        ("CLICK the button", "no action"),
        ("DRAG [e3]", "no operation 'DRAG'"),
        ("TYPE [e3]", "TYPE needs a value"),
        ("TYPE [e3] []", "TYPE needs a value"),
        ("SELECT [e3] [  ]", "SELECT needs a value"),
        ("CLICK [e3]\nCLICK [e4]", "several actions"),
        ("TYPE [e3] [x]; CLICK [e4]", "several actions"),
        ("{", "no JSON"),
        ("{" * 5000, "no JSON"),
        ('{"op": "CLICK"}', "are texts"),
        ('{"op": "CLICK", "ref": 3}', "are texts"),
        ('{"op": "TYPE", "ref": "e3", "value": ["a"]}', "are texts"),
        ('{"op": "CLICK", "ref": "e3", "selector": "#x"}', "not 'selector'"),
        (["CLICK", "e3"], "no action"),
        (None, "no action"),
    ],
)
def test_actions_that_cannot_be_read(text: Any, why: str) -> None:
    with pytest.raises(ActionError, match=why):
        parse(text)


VALUES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1).map(str.strip).filter(bool)


@settings(deadline=None)
@given(st.sampled_from(["TYPE", "SELECT"]), st.integers(1, 9999), VALUES)
def test_what_is_written_is_read(op: str, number: int, value: str) -> None:
    action = Action(op, f"e{number}", value)
    assert parse(str(action)) == action
    assert parse({"op": op, "ref": f"e{number}", "value": value}) == action


@settings(deadline=None)
@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of))
)
def test_nothing_else_is_raised(action: Any) -> None:
    try:
        assert parse(action).ref
    except ActionError as error:
        assert str(error).endswith(".")


@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [
        ("CLICK", "CLICK", 1.0),
        ("CLICK", "TYPE Oslo", 0.0),
        ("TYPE Oslo", "TYPE Oslo", 1.0),
        ("TYPE oslo", "TYPE Oslo", 0.5),
        ("TYPE New York City", "TYPE New York", 6 / 7),
        ("TYPE York New", "TYPE New York", 1.0),  # sets of words
        ("TYPE a , b", "TYPE a b", 1.0),  # punctuation does not count
        ("SELECT 2 guests", "TYPE 2 guests", 2 / 3),
        ("", "", 1.0),
        ("", "CLICK", 0.0),
        ("!", "?", 1.0),
    ],
)
def test_operation_f1(predicted: str, gold: str, expected: float) -> None:
    assert operation_f1(predicted, gold) == pytest.approx(expected)
    assert operation_f1(gold, predicted) == pytest.approx(expected)


CLICK = Gold("CLICK", "", ("7", "8"))
TYPE = Gold("TYPE", "New  York", ("5",))


@pytest.mark.parametrize(
    ("action", "node", "gold", "correct", "step_success"),
    [
        (Action("CLICK", "e1"), "8", CLICK, True, True),
        (Action("CLICK", "e1"), "9", CLICK, False, False),
        (Action("CLICK", "e1"), "", CLICK, False, False),
        (Action("CLICK", "e1"), None, CLICK, False, False),
        (Action("TYPE", "e1", "x"), "7", CLICK, False, False),
        (Action("TYPE", "e1", "New York"), "5", TYPE, True, True),
        (Action("TYPE", "e1", "new york"), "5", TYPE, True, False),  # the published rule minds capitals
        (Action("TYPE", "e1", "York New"), "5", TYPE, False, True),  # and not the order
        (Action("SELECT", "e1", "New York"), "5", TYPE, False, False),
        (Action("CLICK", "e1"), "5", Gold("CLICK", "", ()), False, False),  # the data set lost the element
        (None, None, CLICK, False, False),
    ],
)
def test_both_rules(action: Action | None, node: str | None, gold: Gold, correct: bool, step_success: bool) -> None:
    verdict = judge(action, node, gold)
    assert (verdict.correct, verdict.step_success) == (correct, step_success)


def test_summary_counts_what_was_not_played_as_wrong() -> None:
    right, wrong = Verdict(True, True, True, 1.0), Verdict(False, True, True, 1.0)
    assert summary([right, wrong], 4) == {
        "element_accuracy": 0.25,
        "operation_f1": 0.5,
        "step_success": 0.25,
        "task_success": 0.0,
    }
    assert summary([right] * 3, 3)["task_success"] == 1.0
