"""The commands, each in a process of its own as a user runs them; those of the Hub run with the page about data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, stand_in

from cope_gym import trajectory
from cope_gym.evaluate import panels
from cope_gym.trajectory import Trajectory


def cope(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cope_gym", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=300)


def test_what_may_not_be_published_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the `data` extra is not installed")
    trajectory.write(tmp_path / "secret.jsonl", [Trajectory("appworld", "x_1", "train")])
    with stand_in() as hub:
        done = cope("data", "push", "me/x", "secret.jsonl", folder=tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
        assert done.returncode == 2 and "may not be published in plain text" in done.stderr
        assert "Traceback" not in done.stderr and hub.requests == []


def test_agentgym_files(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "Hi."}, {"from": "gpt", "loss": True, "value": "Action: wait"}]
    rows = [{"item_id": "sciworld_0", "conversations": said}]
    (tmp_path / "agentgym").mkdir()
    (tmp_path / "agentgym" / "traj.json").write_text(json.dumps(rows))
    ids = [{"item_id": "sciworld_30"}, {"item_id": "sciworld_30"}]
    (tmp_path / "agentgym" / "ids.json").write_text(json.dumps(ids))
    done = cope("data", "import", "agentgym", "agentgym", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "out/sciworld_train.jsonl: 1 episodes, 1 turns, 1 with an action" in done.stdout
    assert "out/sciworld_agentgym_train.json: 1 tasks" in done.stdout and "1 rows left out" in done.stdout
    assert panels.load(str(tmp_path / "out" / "sciworld_agentgym_train.json")).task_ids == ("melt/0",)


def test_official_alfworld_games(tmp_path: Path, shared_data: Path) -> None:
    archive = str(shared_data / "alfworld" / "valid_unseen.tar.xz")
    done = cope("data", "import", "alfworld", archive, folder=tmp_path, COPE_HOME=str(tmp_path / "home"))
    assert done.returncode == 0 and done.stdout.strip() == "valid_unseen: 134 games", done.stderr
    assert (tmp_path / "home" / "data" / "alfworld" / "games.sqlite").is_file()


def test_what_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    done = cope("data", "import", "alfworld", "nowhere", folder=tmp_path, COPE_HOME=str(tmp_path / "home"))
    assert done.returncode == 1 and "nowhere does not exist: give ALFWorld's data folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.engine
def test_official_webshop_files(tmp_path: Path, shared_data: Path) -> None:
    from env_servers.install import cache_home, install

    install("webshop")
    home = tmp_path / "home"
    home.mkdir()
    (home / "envs").symlink_to(cache_home() / "envs")
    source = tmp_path / "files"
    source.mkdir()
    for name in ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins_1000.json"):
        (source / name).symlink_to(shared_data / "webshop" / name)
    products = json.loads((source / "items_shuffle_1000.json").read_text())[:30]
    (source / "title_nouns.json").write_text(json.dumps({row["name"]: [] for row in products}))
    arguments = ["data", "import", "webshop", str(source), "--limit", "30", "--name", "mine"]
    done = cope(*arguments, folder=tmp_path, COPE_HOME=str(home))
    assert done.returncode == 0 and "catalogue mine: 30 products" in done.stderr, done.stderr
    assert "items_ins_v2_1000.json: items_ins_v2_1000.json as published" in done.stderr
    empty = cope("data", "import", "webshop", str(tmp_path), folder=tmp_path, COPE_HOME=str(home))
    assert empty.returncode == 1 and "items_shuffle" in empty.stderr and "Traceback" not in empty.stderr
