"""The skill bank: provenance, lift, retirement, travel, and `kill -9` in the middle of a write."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cope_gym.skills import Skill, SkillError
from cope_gym.skills.bank import SkillBank


def _skill(name: str) -> Skill:
    return Skill(name, "Does something.", when_to_use=("Always.",))


def test_lift_is_measured_against_the_same_tasks_without_a_skill(tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "bank.sqlite")
    good = bank.add("sciworld", "boil/0", _skill("good"), "Boil water.", "boil", {"step": 3})
    bad = bank.add("sciworld", "boil/1", _skill("bad"), "Boil lead.", "boil")
    for task, outcome, baseline in (("boil/2", 1.0, 0.5), ("boil/3", 1.0, 0.0), ("boil/4", 0.0, None)):
        bank.record(good, task, outcome, baseline)
    for task in ("boil/2", "boil/3"):
        bank.record(bad, task, 0.0, 0.5)
    best, worst = bank.skills("sciworld")
    assert (best.id, best.uses, best.lift) == (good, 3, pytest.approx(0.75))
    assert best.outcome == pytest.approx(2 / 3)
    assert best.provenance == {"step": 3}
    assert worst.lift == pytest.approx(-0.5)
    assert bank.retire_harmful(min_uses=2) == [bad]
    assert [s.id for s in bank.skills()] == [good]
    assert bank.get(bad).retired


def test_the_same_skill_is_stored_once(tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "bank.sqlite")
    assert bank.add("e", "t", _skill("a"), "q") == bank.add("e", "t", _skill("a"), "q")
    assert len(bank.skills()) == 1


def test_export_and_load(tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "a.sqlite")
    key = bank.add("sciworld", "boil/0", _skill("a"), "Boil ünïcode.", "boil", {"model": "m"})
    bank.record(key, "boil/5", 1.0, 0.0)
    other = SkillBank(tmp_path / "b.sqlite")
    assert other.load(bank.export()) == 1
    loaded = other.get(key)
    assert loaded.skill == _skill("a") and loaded.uses == 0
    assert loaded.provenance == {"model": "m", "lift": 1.0, "uses": 1}
    with pytest.raises(SkillError, match="line 1"):
        other.load(['{"no": "skill"}'])


def test_unknown_ids_and_foreign_files_are_named(tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "bank.sqlite")
    for call in (lambda: bank.get("x"), lambda: bank.retire("x", "why"), lambda: bank.record("x", "t", 1.0)):
        with pytest.raises(KeyError, match="no skill x"):
            call()
    (tmp_path / "foreign").write_text("not a database, but long enough to look like one" * 50)
    with pytest.raises(ValueError, match="not a skill bank"):
        SkillBank(tmp_path / "foreign")


WRITER = """
import sys
from cope_gym.skills import Skill
from cope_gym.skills.bank import SkillBank
bank = SkillBank(sys.argv[1])
for i in range(100000):
    key = bank.add("e", f"t{i}", Skill(f"s{i}", "d" * 2000), "q")
    bank.record(key, "t", 1.0, 0.0)
    print(i, flush=True)
"""


def test_killed_in_the_middle_of_a_write_the_bank_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        done = [int(writer.stdout.readline()) for _ in range(20)]
        time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        done += [int(line) for line in writer.stdout]
        writer.wait()
        writer.stdout.close()
        bank = SkillBank(path)
        names = {s.skill.name for s in bank.skills()}
        assert names >= {f"s{i}" for i in done}
        assert all(s.uses >= 1 for s in bank.skills() if int(s.skill.name[1:]) in done)
