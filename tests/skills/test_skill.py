"""Skills: parsing model text, the card, and the audit on hard text."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_gym.skills import Skill, SkillError, audit, parse_skill

DATA = {
    "name": "find-living-things",
    "description": "Find a living thing and focus on it.",
    "metadata": {"success_signal": "success", "skill_category": "search"},
    "when_to_use": ["The task names a living thing."],
    "workflow": [
        {"step": 1, "goal": "Go outside", "action": "go to outside", "completion_condition": "You see plants"},
        {"step": 2, "goal": "Focus", "action": "focus on dove", "tools_or_strategy": "name it exactly"},
    ],
    "decision_rules": ["If the focus is ambiguous, answer with the number."],
    "error_handling": [{"error": "No known action", "cause": "typo", "response": "copy the name"}],
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(DATA),
        "Some analysis first.\n```json\n" + json.dumps(DATA, indent=1) + "\n```\nThat is all.",
        "{ broken\n" + json.dumps(DATA) + " trailing } prose",
        '{"skill": ' + json.dumps(DATA) + "}",
        '<think>{"name": "draft"}</think>' + json.dumps(DATA),
        '{"name": "short", "description": "x"} and better: ' + json.dumps(DATA),
    ],
    ids=["bare", "fenced", "prose", "nested", "reasoning", "several"],
)
def test_a_skill_is_found_wherever_it_stands(text: str) -> None:
    skill = parse_skill(text)
    assert skill.name == "find-living-things"
    assert [step.action for step in skill.workflow] == ["go to outside", "focus on dove"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no object here", "no JSON object"),
        ('{"name": "x"}', '"description"'),
        ('{"name": " ", "description": "y"}', '"name"'),
        ('{"name": "x", "description": "y", "workflow": ["go"]}', '"workflow"'),
        ('{"name": "x", "description": "y", "when_to_use": [1]}', '"when_to_use"'),
        ('{"name": "x", "description": "y", "metadata": []}', '"metadata"'),
        ("{" * 10_000, "no JSON object"),
        ("", "no JSON object"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(SkillError, match=says):
        parse_skill(text)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(SkillError):
        parse_skill(text)


def test_round_trip_through_json() -> None:
    skill = Skill.from_dict(DATA)
    assert Skill.from_dict(skill.to_dict()) == skill


def test_the_card_names_everything_and_a_cap_drops_whole_sections() -> None:
    skill = Skill.from_dict(DATA)
    card = skill.markdown()
    for part in ("# find-living-things", "1. Go outside: go to outside", "Done when: You see plants", "copy the name"):
        assert part in card
    short = skill.markdown(len(card) - 1)
    assert len(short) < len(card) and card.startswith(short)
    assert short.endswith(card[: len(short)].splitlines()[-1])
    assert skill.markdown(20) == card[:20]
    assert skill.markdown(0) == ""


@given(st.integers(0, 400))
def test_the_cap_holds_in_any_measure(limit: int) -> None:
    def words(text: str) -> int:
        return len(text.split())

    skill = Skill.from_dict(DATA)
    card = skill.markdown(limit, words)
    assert words(card) <= limit
    assert skill.markdown().startswith(card)


@pytest.mark.parametrize(
    "card",
    [
        "# Skill\n\nGo to the kitchen, then focus on the dove.",
        "",
        "A price of 5 € – or ½ of it … “quoted” → done ★",
        "----------------\n| a | b |\n|--------|--------|\n================",
        "look around. look around. look around.",
        "1. Open the door\n2. Open the box\n3. Open the jar",
    ],
)
def test_plain_english_passes(card: str) -> None:
    result = audit(card)
    # ½ is a digit of category No: not English prose, so this one card is expected to fail.
    assert result.passed is ("½" not in card), result.reasons


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ("open the 门", r"not English: U\+95E8"),
        ("откройте", "not English"),
        ("ouvrez la fenêtre", "U\\+00EA"),
        ("zero\u200bwidth", "U\\+200B"),
        ("bell\x07", "U\\+0007"),
        ("replacement \ufffd", "U\\+FFFD"),
        ("ｆｕｌｌ", "suspicious"),
        ("𝐛𝐨𝐥𝐝", "suspicious"),
        ("lone \ud800 surrogate", "U\\+D800"),
        ("family 👨\u200d👩", "U\\+200D"),
        ("aaaaaaaaaa", "eight times"),
        ("go " * 8, "'go'"),
        ("open the door " * 4, "open the door"),
        ("\n".join(["The same line again"] * 3), "half of the text"),
    ],
)
def test_hard_text_fails(card: str, says: str) -> None:
    result = audit(card)
    assert not result.passed
    assert any(re.search(says, reason) for reason in result.reasons), result.reasons


@given(st.text(max_size=400))
def test_the_audit_takes_any_text(card: str) -> None:
    result = audit(card)
    assert result.passed is (not result.reasons)
