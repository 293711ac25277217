"""The documentation holds what it says: the site builds, and commands, options and keys in it exist."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from cope_gym.cli import build
from cope_gym.evaluate import panels
from tests.docs.pages import CODE, PAGES, ROOT, WORDS, Block, blocks, commands

ALL = [block for page in PAGES for block in blocks(page)]


def _hooks() -> Any:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the `docs` extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ".mkdocs.yml", "-d", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an announcement of its authors
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    pages = {str(page.relative_to(tmp_path).parent): page.read_text() for page in tmp_path.rglob("index.html")}
    assert 'id="cope_gym.CopeEnv.step"' in pages["reference/cope_gym"]
    assert 'id="env_servers.adapter.Episode.repeat"' in pages["reference/adapter"]
    assert 'id="cope_train.trainer.CoPETrainer"' in pages["reference/cope_train"]
    assert "cope bench chaos" in pages["reference/cli"]
    assert "forecast_coef" in pages["reference/options"]
    assert not [name for name, page in pages.items() if "<!-- generated" in page]


def test_every_block_is_run_or_says_why_not() -> None:
    code = [block for block in ALL if block.language in CODE]
    assert len(code) > 30
    silent = [block.where for block in code if block.word not in WORDS or (block.word == "not run" and not block.rest)]
    assert silent == [], "put a comment above these blocks: tests/docs/pages.py says which there are"


BASH = [block for block in ALL if block.language == "bash"]


@pytest.mark.parametrize("block", BASH, ids=lambda block: block.where)
def test_commands_and_their_options_exist(block: Block) -> None:
    for words in commands(block):
        check = CHECKS.get(Path(words[0]).name)
        if check:
            check(words[1:])


@pytest.mark.train
@pytest.mark.parametrize("block", BASH, ids=lambda block: block.where)
def test_options_of_training_exist(block: Block) -> None:
    pytest.importorskip("trl", reason="the `train` extra is not installed")
    saved = {other.rest for other in blocks(block.page) if other.word == "file"}
    for words in commands(block):
        if words[:2] == ["cope", "train"]:
            keys = [word.partition("=")[0] for word in words[3:] if "=" in word]
            files = words[2:3]
        elif words[:2] == ["accelerate", "launch"]:
            script = words.index("cope_train/train.py")
            keys = [word[2:] for word in words[script:] if word.startswith("--") and word != "--config"]
            files = [words[words.index("--config") + 1]]
        else:
            continue
        assert [key for key in keys if key not in _training_options()] == []
        assert [f for f in files if not f.startswith("-") and f not in saved and not (ROOT / f).is_file()] == []


@pytest.mark.train
def test_configurations_hold_known_keys() -> None:
    pytest.importorskip("trl", reason="the `train` extra is not installed")
    files = [block for block in ALL if block.language == "yaml" and block.word in ("", "file")]
    assert files
    unknown = {block.where: set(yaml.safe_load(block.text)) - _training_options() for block in files}
    assert {where: keys for where, keys in unknown.items() if keys} == {}


@pytest.mark.train
def test_the_table_of_options_is_the_dataclass() -> None:
    pytest.importorskip("trl", reason="the `train` extra is not installed")
    from cope_train.config import CoPEConfig

    documented = {option.name: option for option in _hooks().options()}
    helped = {field.name: field for field in dataclasses.fields(CoPEConfig) if "help" in field.metadata}
    assert len(documented) > 60
    for name, option in documented.items():
        assert option.help == helped[name].metadata["help"]
        default = helped[name].default
        assert option.default == (
            "–"
            if default is None
            else str(default).lower()
            if default in (True, False) and isinstance(default, bool)
            else str(default)
        )


@cache
def _command() -> Any:
    return get_command(build())


def _cope(words: list[str]) -> None:
    command, name = _command(), "cope"
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no `{name} {words[0]}`"
        name = f"{name} {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words and "--version" not in words:
        command.make_context(name, list(words))  # raises for what it does not know
    if "--panel" in words:
        panel = words[words.index("--panel") + 1]
        assert panel.endswith(".json") or panels.load(panel).task_ids


def _make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [word for word in words if "=" not in word and word not in targets] == []


def _pip(words: list[str]) -> None:
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        if match := re.fullmatch(r"(?:cope-gym|\.)\[([\w,]+)\]", word):
            assert [extra for extra in match[1].split(",") if extra not in known] == []


def _python(words: list[str]) -> None:
    if words[0] == "-m":
        if words[1].partition(".")[0] in ("cope_gym", "cope_train", "env_servers"):
            assert importlib.util.find_spec(words[1]), f"there is no module {words[1]}"
    elif words[0].endswith(".py") and "/" in words[0]:
        assert (ROOT / words[0]).is_file()


CHECKS: dict[str, Callable[[list[str]], None]] = {"cope": _cope, "make": _make, "pip": _pip, "python": _python}


@cache
def _training_options() -> set[str]:
    from trl import ModelConfig, TrlParser

    from cope_train.config import CoPEConfig
    from cope_train.sft import CloneConfig

    kinds = (CoPEConfig, CloneConfig, ModelConfig)
    return {action.dest for kind in kinds for action in TrlParser((kind,))._actions} | {"env"}
