"""The commands, each in a process of its own as a user runs them; the Hub is the stand-in, named by HF_ENDPOINT."""

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
from cope_gym.trajectory import Trajectory, Turn

READ = """
import sys, datasets
table = datasets.load_dataset(sys.argv[1], "sciworld", split="train")
print(table.num_rows, table[0]["task_id"], table[0]["turns"][0]["action"])
"""


def run(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=300, check=False
    )


def cope(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "cope_gym", *arguments, folder=folder, **env)


def test_push_pull_and_load_dataset_through_hf_endpoint(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the `data` extra is not installed")
    messages = [{"role": "user", "content": "A hall."}, {"role": "assistant", "content": "Action: go"}]
    episode = Trajectory("sciworld", "boil/0", "train", messages=messages, turns=[Turn(0, 1, "go", (8, 10))])
    trajectory.write(tmp_path / "a.jsonl", [episode])
    with stand_in() as hub:
        env = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }
        pushed = cope("data", "push", "me/walks", "a.jsonl", folder=tmp_path, **env)
        assert pushed.returncode == 0, pushed.stderr
        assert f"{hub.url}/datasets/me/walks" in pushed.stdout
        pulled = cope("data", "pull", "me/walks", "--out", "pulled", folder=tmp_path, **env)
        assert pulled.returncode == 0, pulled.stderr
        assert list(trajectory.read(tmp_path / "pulled" / "sciworld_train.jsonl")) == [episode]
        read = run(sys.executable, "-c", READ, "me/walks", folder=tmp_path, **env)
        assert read.stdout.strip() == "1 boil/0 go", read.stderr
        trajectory.write(tmp_path / "secret.jsonl", [Trajectory("appworld", "x_1", "train")])
        before = len(hub.requests)
        refused = cope("data", "push", "me/secret", "secret.jsonl", folder=tmp_path, **env)
        assert refused.returncode == 2 and "may not be published in plain text" in refused.stderr
        assert "Traceback" not in refused.stderr and len(hub.requests) == before and "me/secret" not in hub.repos


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
