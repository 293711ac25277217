"""`cope eval`, `view`, `compare` and `panel` as a user types them, against a real service with the toy benchmark."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cope_gym.cli import common, main
from cope_gym.server import Address, LocalClient, LocalServer

ROOT = Path(__file__).resolve().parents[2]
Cope = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("COPE_HOME", str(tmp_path_factory.mktemp("home")))
        with LocalClient(LocalServer("toy", adapter="tests.gym.toy:ToyAdapter", idle_exit=20)) as warm:
            warm.envs()
            yield warm.server.address()


@pytest.fixture
def cope(server: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cope:
    monkeypatch.setenv("COPE_BASE_URL", server.url)
    monkeypatch.setenv("COPE_TOKEN", server.token)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common.out, "width", 200)
    monkeypatch.setattr("cope_gym.prompts.load", lambda env: f"Play {env}.")

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


@pytest.fixture
def panel(cope: Cope) -> str:
    code, text = cope("panel", "build", "toy_small.json", "--env", "toy", "--split", "test", "--per-category", "2")
    assert code == 0, text
    return "toy_small.json"


def test_panel_is_built_without_chance_and_verified(cope: Cope, panel: str) -> None:
    first = Path(panel).read_bytes()
    assert json.loads(first)["task_ids"] == [f"hall/test-{i}" for i in (0, 6, 1, 7, 2, 8)]
    cope("panel", "build", panel, "--env", "toy", "--split", "test", "--per-category", "2")
    assert Path(panel).read_bytes() == first
    assert "6 tasks and 6 first observations agree" in cope("panel", "verify", panel)[1]
    assert "hall/test-7" in cope("panel", "show", panel)[1]
    listed = cope("panel", "list")[1]
    assert "sciworld_quickstart" in listed
    # AgentGym's numbers without a game fill a page: they are said of the one panel that is asked for.
    assert "2181 of 2420" in listed and "2323" not in listed
    assert "2323" in cope("panel", "show", "alfworld_agentgym_train")[1]


def test_evaluate_look_and_compare(cope: Cope, panel: str) -> None:
    for policy in ("gold", "random"):
        code, text = cope("eval", "--panel", panel, "--policy", policy, "--samples", "2", "--out", policy)
        assert code == 0, text
        assert "12 of 12 episodes" in text and "pass^2" in text
    result = json.loads(Path("gold/result.json").read_text())
    assert result["metrics"]["success"]["value"] == 1.0 and result["metrics"]["turns"]["value"] == 4.0
    assert result["versions"]["adapter_version"] == "1" and result["versions"]["cope_gym"]
    assert json.loads(Path("random/result.json").read_text())["metrics"]["success"]["value"] < 1.0
    code, text = cope("compare", "random", "gold", "--out", "both")
    assert code == 0 and "minus reference" in text and Path("both/comparison.html").is_file()
    code, text = cope("view", "r=random", "g=gold", "--out", "page.html")
    assert code == 0 and "page.html" in text and Path("page.html").stat().st_size > 40_000


def test_the_system_prompt_is_the_named_one(cope: Cope, panel: str) -> None:
    Path("mine.md").write_text("Walk to the end.\n")
    code, text = cope("eval", "--panel", panel, "--policy", "gold", "--system-prompt", "mine.md", "--out", "mine")
    assert code == 0, text
    first = json.loads(Path("mine/trajectories.jsonl").read_text().splitlines()[0])
    assert first["messages"][0] == {"role": "system", "content": "Walk to the end."}


def test_observations_are_cut_as_in_training(cope: Cope, panel: str) -> None:
    cuts = ["--first-observation-chars", "9", "--observation-chars", "4"]
    code, text = cope("eval", "--panel", panel, "--policy", "gold", *cuts, "--out", "cut")
    assert code == 0, text
    _, first, *later = json.loads(Path("cut/trajectories.jsonl").read_text().splitlines()[0])["messages"]
    assert len(first["content"]) == 9 + len(" …")
    assert {len(m["content"]) for m in later if m["role"] == "user"} == {4 + len(" …")}
    assert json.loads(Path("cut/settings.json").read_text())["rules"]["observation_chars"] == 4


def test_default_folder_and_limit(cope: Cope, panel: str) -> None:
    code, text = cope("eval", "--panel", panel, "--policy", "gold", "--limit", "2")
    assert code == 0, text
    assert Path("evaluations/toy_small[:2]/gold/result.json").is_file()


def test_a_whole_split_and_a_protocol(cope: Cope) -> None:
    code, text = cope("eval", "--panel", "toy/test", "--policy", "gold")
    assert code == 0 and "12 of 12 episodes" in text, text
    result = json.loads(Path("evaluations/toy-test/gold/result.json").read_text())
    assert result["panel"]["name"] == "toy/test" and result["panel"]["digest"]
    assert "it has: train, test" in cope("eval", "--panel", "toy/nothing", "--policy", "gold")[1]
    code, text = cope("eval", "--panel", "toy/test", "--policy", "gold", "--protocol", "x", "--out", "y")
    assert code == 2 and "toy has no protocol 'x'; it has default" in text
    text = cope("panel", "protocols")[1]
    assert all(env in text for env in ("appworld", "sciworld", "tau2")) and "0.4" in text


def test_partial_is_refused_and_made_on_demand(cope: Cope, panel: str) -> None:
    cope("eval", "--panel", panel, "--policy", "gold", "--out", "run")
    lines = Path("run/trajectories.jsonl").read_text().splitlines(keepends=True)
    Path("run/trajectories.jsonl").write_text("".join(lines[:4]))
    Path("run/result.json").unlink()
    assert "holds no finished evaluation" in cope("compare", "run", "run2=run")[1]
    code, text = cope("eval", "--panel", panel, "--policy", "gold", "--out", "run", "--allow-partial")
    assert code == 0 and "4 of 6 episodes  PARTIAL" in text
    assert "Partial results are biased" in cope("compare", "run", "run2=run")[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--panel", "toy_smal", "--policy", "gold"], "There is no panel 'toy_smal'"),
        (["--panel", "toy_small.json", "--policy", "wizard"], "There is no policy 'wizard'"),
        (["--panel", "toy_small.json", "--policy", "gold", "--set", "x=1"], "no setting x"),
        (["--panel", "toy_small.json", "--policy", "gold", "--set", "x"], "Write KEY=VALUE"),
        (["--panel", "toy_small.json", "--policy", "gold", "--option", "hard=true"], "There is no option 'hard'"),
        (["--panel", "toy_small.json", "--policy", "gold", "--system-prompt", "no.md"], "prompt no.md cannot be read"),
        (["--panel", "toy_small.json", "--policy", "gold", "--out", "toy_small.json/run"], "choose another path."),
        (["--panel", "toy_small.json", "--policy", "gold", "--samples", "0"], "greater than or equal to 1"),
        (["--panel", "toy_small.json", "--policy", "gold", "--limit", "-1"], "greater than or equal to 1"),
    ],
)
def test_bad_input_is_one_sentence(cope: Cope, panel: str, arguments: list[str], sentence: str) -> None:
    code, text = cope("eval", *arguments)
    assert code == 2 and sentence in text and "Traceback" not in text


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    cope: Cope, panel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    command = ("eval", "--panel", panel, "--policy", "gold", "--out", "run")
    assert cope(*command, "--limit", "1")[0] == 0
    Path("run/result.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, text = cope(*command, "--limit", "1")
    assert code == 2 and "No space left on device; make room and give the same command again." in text
    assert "Traceback" not in text
    assert cope(*command, "--limit", "1")[0] == 0 and Path("run/result.json").is_file()


def test_episodes_that_could_not_be_played_say_why(cope: Cope, panel: str) -> None:
    settings = ("--set", "base_url=http://127.0.0.1:9/v1", "--set", "attempts=1")
    code, text = cope("eval", "--panel", panel, "--policy", "openai:model", *settings, "--limit", "1", "--out", "run")
    assert code == 3 and "An episode could not be played" in text and "127.0.0.1:9" in text.split("last:")[1]


def test_lost_server_leaves_what_was_played(cope: Cope, panel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPE_BASE_URL", "http://127.0.0.1:9")
    code, text = cope("eval", "--panel", panel, "--policy", "gold")
    assert code == 2 and "Traceback" not in text
