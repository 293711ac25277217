"""What each command prints, and how it fails: one sentence on stderr, exit code 2, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cope


def test_help_names_every_command(cope: Cope) -> None:
    said = cope("--help").stdout
    for command in (
        "envs",
        "tasks",
        "play",
        "check",
        "doctor",
        "eval",
        "view",
        "compare",
        "panel",
        "install",
        "serve",
        "train",
    ):
        assert f" {command} " in said
    assert cope("--version").stdout.startswith("cope-gym ")


def test_the_command_itself(tmp_path: Path) -> None:
    """The console script in a process of its own, from anywhere."""
    command = [sys.executable, "-c", "from cope_gym.cli import main; main()", "tasks", "x", "--base-url", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "'nonsense' is no server address: write one like http://127.0.0.1:8000.\n"


def test_envs(cope: Cope) -> None:
    assert "1 at the end" in cope("envs").stdout
    offline = cope("envs", COPE_BASE_URL="").stdout
    assert "cope/SciWorld-v0" in offline and "cope install sciworld" in offline


def test_tasks(cope: Cope) -> None:
    said = cope("tasks", "toy", "--split", "test", "--limit", "3").stdout
    assert "toy, test: 12 tasks" in said and "hall/test-2" in said and "9 more" in said and "hall/test-3" not in said
    lines = cope("tasks", "toy", "--json").stdout.splitlines()
    assert len(lines) == 12
    assert json.loads(lines[0]) == {"id": "hall/train-0", "split": "train", "category": "hall0"}


def test_play_to_the_end(cope: Cope) -> None:
    keys = [":help", ":actions back", "dance [bold]", "forward", ":hint", ":score", ":look", *["forward"] * 3]
    done = cope("play", "toy", "--task", "hall/train-0", stdin="\n".join(keys) + "\n")
    assert done.returncode == 0, done.stderr
    for part in ("corridor hall/train-0", "Anything else is an action", "1 of 2;", "that was not executed"):
        assert part in done.stdout
    assert "score 0.25, step 2 of 12" in done.stdout
    assert "Solved: score 1.00 in 5 steps." in done.stdout


def test_play_restarts_and_quits(cope: Cope) -> None:
    done = cope("play", "toy", "--seed", "3", "--max-steps", "2", stdin="forward\n:restart\nforward\n:quit\n")
    assert done.returncode == 0 and done.stdout.count("You stand in corridor") == 2
    assert cope("play", "toy", stdin="").returncode == 0
    assert "Not solved (step limit)" in cope("play", "toy", "--max-steps", "1", stdin="x\n").stdout


def test_check(cope: Cope) -> None:
    done = cope("check", "toy", "--sample", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 tasks, all as they should be" in done.stdout and "hall2" in done.stdout


def test_check_finds_what_is_wrong(cope: Cope) -> None:
    done = cope("check", "toy", "--task", "hall/train-0", "--task", "hall/nowhere")
    assert done.returncode == 1
    assert "2 tasks, 1 with faults" in done.stdout and "unknown_task" in done.stdout
    assert "no gold path" not in done.stdout  # nobody knows whether the task that is not there has one


def test_check_names_an_option_that_there_is_not(cope: Cope) -> None:
    """Once, in place of a table in which nothing has a gold path."""
    done = cope("check", "toy", "--option", "colour=red")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "There is no option 'colour'; the toy has none."


def test_doctor(cope: Cope, tmp_path: Path) -> None:
    done = cope("doctor", COPE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "cope install sciworld" in done.stdout and "serves toy" in done.stdout
    dead = cope("doctor", COPE_BASE_URL="http://127.0.0.1:9")
    assert dead.returncode == 1 and "cope serve" in dead.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tasks", "toi"], "toy"),
        (["tasks", "toy", "--split", "tset"], "test"),
        (["play", "toy", "--task", "hall/tran-1"], "hall/train-1"),
        (["play", "toy", "--option", "colour=red"], "colour"),
        (["play", "toy", "--option", "colour"], "KEY=VALUE"),
        (["check", "toi"], "toi"),
        (["tasks", "toy", "--base-url", "http://127.0.0.1:9"], "is `cope serve` running there?"),
        (["tasks", "toy", "--base-url", "nonsense"], "no server address"),
    ],
)
def test_bad_input_is_one_sentence(cope: Cope, arguments: list[str], says: str) -> None:
    done = cope(*arguments)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


def test_wrong_token_is_one_sentence(cope: Cope) -> None:
    done = cope("tasks", "toy", COPE_TOKEN="wrong")
    assert (done.returncode, done.stderr.strip().count("\n")) == (2, 0) and "COPE_TOKEN" in done.stderr


def test_not_installed_is_one_sentence(cope: Cope, tmp_path: Path) -> None:
    done = cope("tasks", "sciworld", COPE_BASE_URL="", COPE_HOME=str(tmp_path))
    assert done.returncode == 2 and "cope install sciworld" in done.stderr and "Traceback" not in done.stderr


def test_usage_errors_name_the_near_command(cope: Cope) -> None:
    done = cope("taks", "toy")
    assert done.returncode == 2 and "tasks" in done.stderr and "Traceback" not in done.stderr
