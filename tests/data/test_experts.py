"""`cope data experts`: what is kept, what is counted, and that nothing is played twice."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cope_gym import trajectory
from cope_gym.cli import common, main
from cope_gym.server import LocalClient, LocalServer

ROOT = Path(__file__).resolve().parents[2]
Cope = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, Path]]:
    folder = tmp_path_factory.mktemp("experts")
    settings = {"log": str(folder / "actions")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("COPE_HOME", str(folder / "home"))
        with LocalClient(LocalServer("toy", settings, adapter="tests.data.half_toy:HalfToy", idle_exit=20)) as warm:
            warm.envs()
            yield warm.server, folder / "actions"


@pytest.fixture
def cope(server: tuple[LocalServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cope:
    address = server[0].address()
    monkeypatch.setenv("COPE_BASE_URL", address.url)
    monkeypatch.setenv("COPE_TOKEN", address.token)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common.out, "width", 200)
    (tmp_path / "prompt.txt").write_text("Walk.\n")

    def run(*arguments: str) -> tuple[int, str]:
        screen = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("argv", ["cope", *arguments]), ("stdout", screen), ("stderr", screen)):
                patch.setattr(sys, name, value)
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
        return code, screen.getvalue()

    return run


def actions(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_only_solved_episodes_are_kept_and_the_rest_is_counted(cope: Cope, server: tuple[LocalServer, Path]) -> None:
    arguments = ["data", "experts", "toy", "--limit", "3", "--system-prompt", "prompt.txt"]
    code, text = cope(*arguments)
    assert code == 0, text
    assert "1 episodes in experts/toy_train/experts.jsonl" in text
    assert "hall/train-1: the benchmark has no solution" in text
    assert "hall/train-2: the solution ends with score 0.25 after 1 turns" in text
    [kept] = trajectory.read("experts/toy_train/experts.jsonl")
    assert kept.success and kept.score == 1.0 and kept.policy == "gold" and kept.versions["adapter_version"] == "1"
    assert [turn.action for turn in kept.turns] == ["forward"] * 4
    assert kept.messages[0] == {"role": "system", "content": "Walk."}
    assert len(list(trajectory.read("experts/toy_train/trajectories.jsonl"))) == 3

    played = actions(server[1])
    assert cope(*arguments)[0] == 0 and actions(server[1]) == played  # everything is there already
    lines = Path("experts/toy_train/trajectories.jsonl").read_text().splitlines(keepends=True)
    Path("experts/toy_train/trajectories.jsonl").write_text(lines[1] + lines[2] + lines[0][:50])  # killed in a write
    assert cope(*arguments)[0] == 0 and actions(server[1]) == played + 4
    assert Path("experts/toy_train/trajectories.jsonl").read_text() == "".join(lines)


def test_infrastructure_faults_are_counted_apart_and_tried_again(cope: Cope) -> None:
    arguments = ["data", "experts", "toy", "--task", "hall/train-0", "--task", "hall/train-3", "--out", "x"]
    code, text = cope(*arguments, "--system-prompt", "prompt.txt")
    assert code == 3 and "1 episodes failed by infrastructure" in text, text
    [kept] = trajectory.read("x/experts.jsonl")
    assert kept.task_id == "hall/train-0"


def test_a_panel_s_tasks(cope: Cope) -> None:
    assert cope("panel", "build", "toy_p.json", "--env", "toy", "--split", "test", "--per-category", "1")[0] == 0
    code, text = cope("data", "experts", "toy", "--panel", "toy_p.json", "--system-prompt", "prompt.txt", "--out", "p")
    assert code == 0 and "3 episodes" in text, text
    assert json.loads(Path("p/settings.json").read_text())["panel"]["split"] == "test"


def test_observations_are_cut_as_training_will_cut_them(cope: Cope) -> None:
    cuts = ["--first-observation-chars", "3", "--observation-chars", "2", "--system-prompt", "prompt.txt"]
    code, text = cope("data", "experts", "toy", "--task", "hall/train-0", *cuts, "--out", "c")
    assert code == 0, text
    [kept] = trajectory.read("c/experts.jsonl")
    seen = [len(m["content"]) for m in kept.messages if m["role"] == "user"]
    assert seen[0] == 3 + len(" …") and set(seen[1:]) <= {2 + len(" …")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task", "hall/test-1"], "does not have hall/test-1"),
        (["--category", "cellar"], "does not have cellar"),
        (["--task", "hall/train-1"], "no solution for these 1 tasks"),
        (["--split", "none"], "toy has no split 'none'"),
    ],
)
def test_bad_input_is_one_sentence(cope: Cope, arguments: list[str], sentence: str) -> None:
    code, text = cope("data", "experts", "toy", "--system-prompt", "prompt.txt", *arguments)
    assert code == 2 and sentence in text and "Traceback" not in text, text
