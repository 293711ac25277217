"""Data sets to a Hub and back, with the real client; the Hub is a local stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import TOKEN, Hub, Repo, stand_in

hub_client = pytest.importorskip("huggingface_hub", reason="the `data` extra is not installed")

from cope_gym import trajectory  # noqa: E402
from cope_gym.data import agentgym  # noqa: E402
from cope_gym.data import hub as our  # noqa: E402
from cope_gym.errors import InfrastructureError, InputError  # noqa: E402
from cope_gym.evaluate.panels import Panel  # noqa: E402
from cope_gym.skills.bank import SkillBank  # noqa: E402
from cope_gym.skills.skill import Skill  # noqa: E402
from cope_gym.trajectory import Trajectory, Turn  # noqa: E402

REPO = "me/walks"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    import datasets.config
    import huggingface_hub.constants as constants

    with stand_in() as running:
        # What HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE and HF_HUB_DISABLE_XET set, after the client was imported.
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(hub_client.hf_api.api, "endpoint", running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


def walk(number: int, split: str = "train", env: str = "sciworld", **more: Any) -> Trajectory:
    return Trajectory(
        env,
        f"hall/{number}",
        split=split,
        policy="gold",
        seed=number,
        messages=[
            {"role": "user", "content": f"Hall {number}. 🚪"},
            {"role": "assistant", "content": "Action: forward"},
        ],
        turns=[Turn(0, 1, "forward", (8, 15), reward=0.5)],
        success=True,
        options={"easy": True},
        versions={"adapter_version": "1"},
        **more,
    )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    trajectory.write(tmp_path / "a.jsonl", [walk(0), walk(1), walk(2, "test-a", tokens={"ids": [1]})])
    trajectory.write(tmp_path / "run" / "experts.jsonl", [walk(3, env="alfworld")])
    trajectory.write(tmp_path / "run" / "trajectories.jsonl", [walk(3, env="alfworld"), walk(4, env="alfworld")])
    panel = Panel("sciworld", "sciworld_mine", "test-a", ("hall/2",), {"easy": True}).sealed()
    (tmp_path / "sciworld_mine.json").write_text(panel.to_json())
    return [tmp_path / "a.jsonl", tmp_path / "run", tmp_path / "sciworld_mine.json"]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_push_pull_and_load_dataset(hub: Hub, files: list[Path], tmp_path: Path, format: str) -> None:
    import datasets

    assert our.push(REPO, files, format=format) == f"{hub.url}/datasets/{REPO}"
    repo = hub.repos[REPO]
    assert repo.private and repo.messages == ["4 episodes, 1 lists of tasks"]
    wanted = {"sciworld/train", "sciworld/test_a", "alfworld/train", "sciworld_mine/test_a"}
    held = set(repo.commits[-1][1])
    assert held - {".gitattributes"} == {
        "README.md",
        "panels/sciworld_mine.json",
        *(f"data/{part}.{format}" for part in wanted),
    }

    written = our.pull(REPO, tmp_path / "pulled")
    assert {path.relative_to(tmp_path / "pulled").as_posix(): count for path, count in written.items()} == {
        "alfworld_train.jsonl": 1,
        "sciworld_train.jsonl": 2,
        "sciworld_test_a.jsonl": 1,
        "panels/sciworld_mine.json": 1,
    }
    assert list(trajectory.read(tmp_path / "pulled" / "sciworld_train.jsonl")) == [walk(0), walk(1)]
    assert list(trajectory.read(tmp_path / "pulled" / "sciworld_test_a.jsonl")) == [walk(2, "test-a")]  # no tokens
    assert (tmp_path / "pulled" / "panels" / "sciworld_mine.json").read_text() == files[2].read_text()

    table = datasets.load_dataset(REPO, "sciworld", split="train", cache_dir=str(tmp_path / "cache"))
    assert table.column_names == list(our.rows.COLUMNS)
    assert table.features["turns"].feature["action_span"] == datasets.List(datasets.Value("int64"))
    assert table[1]["messages"][0] == {"role": "user", "content": "Hall 1. 🚪"}
    assert json.loads(table[1]["options"]) == {"easy": True}
    tasks = datasets.load_dataset(REPO, "sciworld_mine", split="test_a", cache_dir=str(tmp_path / "cache"))
    assert tasks.to_list() == [
        {"env": "sciworld", "task_id": "hall/2", "split": "test-a", "options": '{"easy": true}'}
    ]


def test_a_push_replaces_the_data_set_in_one_commit(hub: Hub, files: list[Path], tmp_path: Path) -> None:
    our.push(REPO, files)
    first = hub.repos[REPO].commits[-1][0]
    our.push(REPO, [files[1]], format="jsonl", private=False)
    assert len(hub.repos[REPO].messages) == 2
    assert set(hub.repos[REPO].commits[-1][1]) - {".gitattributes"} == {"README.md", "data/alfworld/train.jsonl"}
    assert len(our.pull(REPO, tmp_path / "now")) == 1
    assert len(our.pull(REPO, tmp_path / "then", revision=first)) == 4
    assert list(our.pull(REPO, tmp_path / "one", revision=first, config="alfworld").values()) == [1, 1]


def test_the_card_says_what_is_in_it(hub: Hub, files: list[Path]) -> None:
    our.push(REPO, files)
    text = hub.repos[REPO].commits[-1][1]["README.md"].decode()
    card = hub_client.DatasetCard(text)
    assert card.data.license == "other"  # two benchmarks with two licences
    assert [config["config_name"] for config in card.data.configs] == ["alfworld", "sciworld", "sciworld_mine"]
    assert "| sciworld | train | 2 | 2 | 2 | 2 | 0 | gold |" in text
    assert '* sciworld, options {"easy": true}: `{"adapter_version": "1"}`' in text
    assert "ScienceWorld, Apache-2.0" in text and "ALFWorld, MIT" in text
    our.push(REPO, files[:1])
    assert hub_client.DatasetCard(hub.repos[REPO].commits[-1][1]["README.md"].decode()).data.license == "apache-2.0"


@pytest.mark.parametrize(
    ("env", "split"), [("appworld", "train"), ("appworld", "test_normal"), ("mind2web", "test_task")]
)
def test_what_may_not_be_published_never_leaves_the_machine(hub: Hub, tmp_path: Path, env: str, split: str) -> None:
    trajectory.write(tmp_path / "x.jsonl", [walk(0), walk(1, split, env)])
    with pytest.raises(InputError, match=f"1 of {env} {split} may not be published"):
        our.push(REPO, [tmp_path / "x.jsonl"])
    bank = SkillBank(tmp_path / "bank.sqlite")
    bank.add(env, "task", Skill("a", "b"), "query", provenance={"split": split})
    with pytest.raises(InputError, match="may not be published"):
        our.push_skills(REPO, bank)
    assert hub.requests == []


def test_mind2web_s_training_tasks_may_be_published(hub: Hub, tmp_path: Path) -> None:
    trajectory.write(tmp_path / "x.jsonl", [walk(1, "train", "mind2web")])
    our.push(REPO, [tmp_path / "x.jsonl"])
    known, unknown = SkillBank(tmp_path / "known.sqlite"), SkillBank(tmp_path / "unknown.sqlite")
    known.add("mind2web", "a", Skill("a", "b"), "query", provenance={"split": "train"})
    unknown.add("mind2web", "a", Skill("a", "b"), "query")
    our.push_skills("me/skills", known)
    with pytest.raises(InputError, match="1 of mind2web test or unknown may not be published"):
        our.push_skills("me/skills", unknown)


def test_agentgym_s_data_is_fetched_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    rows = [{"item_id": "sciworld_0"}, {"item_id": "sciworld_30"}]
    hub.repos["AgentGym/IDs"] = Repo(False, [("c0", {"train.json": json.dumps(rows).encode(), "big.bin": b"0"})])
    local = our.download("AgentGym/IDs", tmp_path / "ids", ["*.json", "*.jsonl"])
    assert agentgym.load(local).tasks == {"sciworld": ["boil/0", "melt/0"]}
    assert not (local / "big.bin").exists()


def test_skills_travel(hub: Hub, tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "bank.sqlite")
    skill = Skill("Open doors", "How to open doors.", when_to_use=("a door is shut",))
    key = bank.add("sciworld", "hall/0", skill, "Leave the hall", "hall", {"run": "x"})
    bank.record(key, "hall/1", 1.0, 0.5)
    assert our.push_skills("me/skills", bank)[1] == 1
    other = SkillBank(tmp_path / "other.sqlite")
    assert our.pull_skills("me/skills", other) == 1
    [read] = other.skills()
    assert read.skill == skill and read.id == key and read.query == "Leave the hall"
    assert read.provenance == {"run": "x", "lift": 0.5, "uses": 1} and read.uses == 0
    with pytest.raises(InputError, match="holds no episodes"):
        our.pull("me/skills", tmp_path / "x")


def test_faults_are_one_sentence(hub: Hub, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(kind: type[Exception], call: Callable[[], object]) -> str:
        with pytest.raises(kind) as caught:
            call()
        return str(caught.value)

    assert "shows no data set me/none" in message(InputError, lambda: our.pull("me/none", tmp_path / "x"))
    assert "write OWNER/NAME" in message(InputError, lambda: our.push("walks", files))
    assert "There is no" in message(InputError, lambda: our.push(REPO, [tmp_path / "none.jsonl"]))
    (tmp_path / "empty.jsonl").touch()
    assert "holds no episode" in message(InputError, lambda: our.push(REPO, [tmp_path / "empty.jsonl"]))
    (tmp_path / "odd.jsonl").write_text("{}\n")
    assert "odd.jsonl, line 1" in message(InputError, lambda: our.push(REPO, [tmp_path / "odd.jsonl"]))
    our.push(REPO, files)
    assert "no such revision" in message(InputError, lambda: our.pull(REPO, tmp_path / "x", revision="gone"))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "log in with `hf auth login`" in message(InputError, lambda: our.push(REPO, files))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.refuse = 400
    assert "the stand-in refuses" in message(InputError, lambda: our.push(REPO, files))


def test_a_hub_that_is_down_is_no_fault_of_the_input(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client.hf_api.api, "endpoint", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_client.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        our.push(REPO, files)
