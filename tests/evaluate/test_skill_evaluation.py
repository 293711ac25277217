"""Evaluation with and without skills: paired by task, by type, seen and unseen; greedy extraction; a bank's table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from evaluate_runs import write_run
from evaluate_toy import evaluation, walk
from test_cli import Cope, cope, panel, server  # noqa: F401, fixtures
from test_viewer import Parsed

from cope_gym.evaluate import Prompt, Reply, evaluate, policies, runs
from cope_gym.evaluate.report import report
from cope_gym.evaluate.skills import bank_lift, bank_rows, skill_lift, write_lift
from cope_gym.skills import Skill
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.lookup import BankLookup

pytest.importorskip("bm25s", reason="the `skills` extra is not installed")


class Reader:
    """Does what the skill says, and without one the wrong thing; writes such skills when asked for one."""

    name, batch_size = "reader", 1

    def __init__(self, right: str, wrong: str) -> None:
        self.right, self.wrong = right, wrong
        self.settings: dict[str, Any] = {}

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        return [Reply(self.reply(prompt.messages[0]["content"]), 1) for prompt in prompts]

    def reply(self, system: str) -> str:
        if "You study one episode" in system:
            return json.dumps({"name": "walk-on", "description": f"Always {self.right}."})
        return f"Action: {self.right if f'Always {self.right}.' in system else self.wrong}"

    def close(self) -> None:
        """Nothing to free."""


def filled(path: Path, *tasks: str, env: str = "walk", right: str = "go") -> SkillBank:
    bank = SkillBank(path)
    for task in tasks:
        category, number = task.split("/")
        query = f"Walk to the {category} tree, {int(number) * (2 if category == 'far' else 1)} steps."
        bank.add(env, task, Skill("walk-on", f"Always {right}."), query, category)
    return bank


def test_lift_by_type_seen_and_unseen(tmp_path: Path) -> None:
    bank = filled(tmp_path / "bank.sqlite", "near/1", "near/7")
    lookup = BankLookup(bank, "walk", "bm25")
    reader = Reader("go", "jump")
    evaluate(evaluation(), reader, walk, tmp_path / "without")
    evaluate(evaluation(skills=lookup), reader, walk, tmp_path / "with")
    without, skilled = runs.evaluation(tmp_path / "without"), runs.evaluation(tmp_path / "with")
    assert skilled.result["skills"]["digest"] and "skills" not in without.result
    for episode in skilled.episodes:
        assert episode.extra["skill_source"] != episode.task_id
        assert "Always go." in episode.messages[0]["content"]
    rows = {row["group"]: row for row in skill_lift(without, skilled)}
    assert list(rows) == ["all", "seen types", "unseen types", "far", "near"]
    assert rows["all"]["difference"]["value"] == 1.0 and rows["all"]["tasks_with_skill"] == 6
    assert rows["seen types"]["difference"]["tasks"] == rows["near"]["difference"]["tasks"] == 3
    assert rows["unseen types"]["without"] == 0.0 and rows["far"]["with"] == 1.0


def test_a_useless_skill_has_no_lift(tmp_path: Path) -> None:
    lookup = BankLookup(filled(tmp_path / "bank.sqlite", "near/7", right="dance"), "walk", "bm25")
    evaluate(evaluation(), Reader("go", "jump"), walk, tmp_path / "without")
    evaluate(evaluation(skills=lookup), Reader("go", "jump"), walk, tmp_path / "with")
    bank = SkillBank(tmp_path / "bank.sqlite")
    rows = write_lift(runs.evaluation(tmp_path / "without"), runs.evaluation(tmp_path / "with"), bank, tmp_path)
    assert rows[0]["difference"]["value"] == 0.0
    found = Parsed((tmp_path / "lift.html").read_text()).block("index")
    assert found["comparisons"][0]["measure"] == "success, all" and found["skills"][0]["name"] == "walk-on"


def test_an_evaluation_with_other_skills_is_another_evaluation(tmp_path: Path) -> None:
    bank = filled(tmp_path / "bank.sqlite", "near/7")
    evaluate(evaluation(skills=BankLookup(bank, "walk", "bm25")), Reader("go", "jump"), walk, tmp_path / "out")
    filled(tmp_path / "bank.sqlite", "near/8")
    with pytest.raises(Exception, match="skills"):
        evaluate(evaluation(skills=BankLookup(bank, "walk", "bm25")), Reader("go", "jump"), walk, tmp_path / "out")


def test_lift_of_a_bank_is_clustered_by_task(tmp_path: Path) -> None:
    bank = filled(tmp_path / "bank.sqlite", "near/1", "far/1")
    worst, best = (skill.id for skill in bank.skills())
    for task, outcomes in (("near/2", [1.0, 1.0, 1.0, 1.0]), ("near/3", [0.0])):
        for outcome in outcomes:
            bank.record(best, task, outcome, 0.0)
    bank.record(worst, "near/2", 0.0)
    lift = bank_lift(bank, best)
    assert lift and (lift.value, lift.tasks) == (0.5, 2) and lift.low == 0.0 and lift.high == 1.0
    assert bank_lift(bank, worst) is None
    bank.retire(worst, "too vague")
    rows = {row["id"]: row for row in bank_rows(bank)}
    assert rows[worst]["retired"] == "too vague" and rows[worst]["lift"] is None
    assert rows[best]["uses"] == 5 and rows[best]["lift"]["value"] == 0.5


def test_the_report_of_a_run_shows_its_bank(tmp_path: Path) -> None:
    write_run(tmp_path, [True, False] * 6, [True] * 12)
    bank = filled(tmp_path / "skills.sqlite", "near/1")
    bank.record(bank.skills()[0].id, "near/2", 1.0, 0.0)
    found = Parsed(report(tmp_path).read_text()).block("index")
    assert [skill["source"] for skill in found["skills"]] == ["near/1"]
    assert "Always go." in found["skills"][0]["card"]


def test_from_episodes_to_lift_on_the_command_line(cope: Cope, panel: str) -> None:  # noqa: F811
    policies.register("reader", lambda spec: Reader("forward", "back"))
    code, text = cope("eval", "--panel", "toy/train", "--policy", "gold", "--limit", "3", "--out", "sources")
    assert code == 0, text
    code, text = cope("skills", "extract", "sources", "--policy", "reader", "--bank", "bank.sqlite")
    assert code == 0 and "3 skills of 3 episodes" in text, text
    origin = SkillBank(Path("bank.sqlite")).skills()[0].provenance
    assert origin["policy"] == "reader" and origin["player"] == "gold" and origin["source_success"] is True
    arguments = ("eval", "--panel", panel, "--policy", "reader", "--encoder", "bm25", "--out", "both")
    code, text = cope(*arguments, "--skills", "bank.sqlite")
    assert code == 0 and "seen types" in text and "+1.000" in text, text
    assert json.loads(Path("both/lift.json").read_text())[0]["with"] == 1.0
    assert Path("both/lift.html").stat().st_size > 40_000
    code, text = cope("skills", "show", SkillBank(Path("bank.sqlite")).skills()[0].id, "--bank", "bank.sqlite")
    assert code == 0 and "Always forward." in text
    assert "There is no skill bank" in cope(*arguments, "--skills", "none.sqlite")[1]
