"""`cope skills` and `cope retrieval`, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cope_gym.cli import build
from cope_gym.cli.common import out
from cope_gym.errors import InputError
from cope_gym.skills import Skill
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.retrieval import Document, TaskIndex


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console took its width when it was made; a narrow one would break words in tables."""
    monkeypatch.setattr(out, "_width", 200)


def cope(*words: str) -> str:
    result = CliRunner().invoke(build(), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "bank.sqlite"
    made = SkillBank(path)
    key = made.add("sciworld", "boil/0", Skill("boil-things", "Boil what is asked for."), "Boil water.", "boil")
    made.record(key, "boil/7", 1.0, 0.25)
    return path


def test_list_show_retire(bank: Path) -> None:
    listed = cope("skills", "list", "--bank", str(bank))
    assert "boil-things" in listed and "+0.750" in listed
    key = SkillBank(bank).skills()[0].id
    assert "Boil what is asked for." in cope("skills", "show", key, "--bank", str(bank))
    cope("skills", "retire", key, "--bank", str(bank), "--reason", "too vague")
    assert "boil-things" not in cope("skills", "list", "--bank", str(bank))
    assert "too vague" in cope("skills", "list", "--bank", str(bank), "--retired")


def test_export_and_import(bank: Path, tmp_path: Path) -> None:
    assert "1 skills" in cope("skills", "export", str(tmp_path / "s.jsonl"), "--bank", str(bank))
    cope("skills", "import", str(tmp_path / "s.jsonl"), "--bank", str(tmp_path / "other.sqlite"))
    assert SkillBank(tmp_path / "other.sqlite").skills()[0].skill.name == "boil-things"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "--bank", "{tmp}/none"], "no skill bank"),
        (["show", "nope", "--bank", "{bank}"], "no skill nope"),
        (["retire", "nope", "--bank", "{bank}"], "no skill nope"),
        (["import", "{tmp}/none", "--bank", "{bank}"], "no file"),
        (["import", "{bank}.txt", "--bank", "{bank}"], "line 1"),
        (["list", "--bank", "{bank}.txt"], "not a skill bank"),
    ],
)
def test_bad_input_is_one_sentence(bank: Path, tmp_path: Path, words: list[str], says: str) -> None:
    Path(f"{bank}.txt").write_text("no skills here " * 400)
    filled = [word.format(tmp=tmp_path, bank=bank) for word in words]
    with pytest.raises(InputError, match=says):
        cope("skills", *filled)


def test_query_by_text_and_by_id(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    documents = [
        Document("boil/0", "Boil water."),
        Document("boil/1", "Boil lead."),
        Document("find/0", "Find a cat."),
    ]
    TaskIndex(documents, "bm25").save(tmp_path / "index")
    shown = cope("retrieval", "query", str(tmp_path / "index"), "boil/0", "--k", "1")
    assert "boil/1" in shown and "boil/0" not in shown
    assert "find/0" in cope("retrieval", "query", str(tmp_path / "index"), "where is my cat", "--k", "1")
