"""Published data in every form that it is published in; all give the same tasks and pages."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import Repo, sha, stand_in
from mind2web_kit import PAGES, encrypted_zip, task_row
from typer.testing import CliRunner

from cope_gym.cli import build
from env_servers.install import cache_home
from env_servers.mind2web import data, sample, store
from env_servers.mind2web.adapter import data_file
from env_servers.mind2web.official import in_order, read, split_of

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("python")]

TRAIN = [row for split, row in sample.rows() if split == "sample"][:6]
TEST = [row for split, row in sample.rows() if split == "sample_test"][:3]
SPLITS = {"train": TRAIN, "test_task": TEST}


def per_action(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as `osunlp/Multimodal-Mind2Web` has it: a row is an action, and objects are JSON in text."""
    return [
        {
            **{name: row[name] for name in row if name != "actions"},
            "action_uid": action["action_uid"],
            "target_action_index": str(number),
            "operation": json.dumps(action["operation"]),
            "pos_candidates": [json.dumps(one) for one in action["pos_candidates"]],
            "neg_candidates": [],
            "cleaned_html": action["cleaned_html"],
            "raw_html": action["raw_html"],
            "screenshot": {"bytes": b"picture", "path": None},
        }
        for row in rows
        for number, action in enumerate(row["actions"])
    ]


def array(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps(rows, indent=1).encode()


def as_arrays(folder: Path) -> Path:
    """As on the Hub: several files of the training split, the last with a two-figure number."""
    (folder / "data" / "train").mkdir(parents=True)
    for number, part in ((0, TRAIN[:2]), (2, TRAIN[2:4]), (10, TRAIN[4:])):
        (folder / "data" / "train" / f"train_{number}.json").write_bytes(array(part))
    (folder / "test.zip").write_bytes(encrypted_zip({"test_task/test_task_0.json": array(TEST)}, data.PASSWORD))
    return folder


def as_lines(folder: Path) -> Path:
    (folder / "train.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, TRAIN)).encode()))
    (folder / "test_task_0.jsonl").write_text("\n".join(map(json.dumps, TEST)))
    return folder


def as_tables(folder: Path) -> Path:
    parquet(folder, lambda rows: rows)
    return folder


def as_tables_of_actions(folder: Path) -> Path:
    parquet(folder, per_action)
    return folder


def parquet(folder: Path, form: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    datasets = pytest.importorskip("datasets", reason="the `data` extra is not installed")
    (folder / "data").mkdir()
    for split, rows in SPLITS.items():
        table = datasets.Dataset.from_list([{**row, "neg_candidates": None} for row in form(rows)])
        table.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


def expected() -> dict[str, str]:
    facts = store.in_memory((split, read(row)) for split, rows in SPLITS.items() for row in rows).facts()
    return {split: counts["digest"] for split, counts in facts.items()}


def digests(name: str) -> dict[str, str]:
    return {split: counts["digest"] for split, counts in store.open_file(data_file(name)).facts().items()}


@pytest.mark.parametrize("lay_out", [as_arrays, as_lines, as_tables])
def test_every_form_gives_the_same(lay_out: Callable[[Path], Path], tmp_path: Path) -> None:
    imported = data.import_data(str(lay_out(tmp_path)), lay_out.__name__)
    assert digests(lay_out.__name__) == expected()
    assert {split: counts["tasks"] for split, counts in imported["splits"].items()} == {"train": 6, "test_task": 3}
    assert any("published with 252 or 177 tasks" in note for note in imported["notes"])
    assert any("not published again in plain text" in note for note in imported["notes"])


def test_rows_of_single_actions_are_joined(tmp_path: Path) -> None:
    data.import_data(str(as_tables_of_actions(tmp_path)), "actions")
    joined = store.open_file(data_file("actions"))
    whole = store.in_memory(("train", read(row)) for row in TRAIN)
    assert joined.tasks("train") == whole.tasks("train")
    for row in TRAIN:
        numbers = whole.numbers(row["annotation_id"])
        assert joined.numbers(row["annotation_id"]) == numbers
        for number in numbers:
            assert joined.page(row["annotation_id"], number) == whole.page(row["annotation_id"], number)
            assert joined.recorded(row["annotation_id"], number) == whole.recorded(row["annotation_id"], number)


IMPORT = (
    "import sys; from env_servers.mind2web.data import import_data; import_data('hub:' + sys.argv[1], report=print)"
)


@pytest.mark.parametrize(
    ("name", "lay_out"), [("osunlp/Mind2Web", as_arrays), ("osunlp/Multimodal-Mind2Web", as_tables_of_actions)]
)
def test_from_the_hub_by_name(name: str, lay_out: Callable[[Path], Path], tmp_path: Path) -> None:
    """The real `datasets` and `huggingface_hub` against a stand-in that HF_ENDPOINT names."""
    pytest.importorskip("datasets", reason="the `data` extra is not installed")
    source = tmp_path / "source"
    source.mkdir()
    lay_out(source)
    own = tmp_path / "home"  # the name is that of the default data, which other tests do without
    own.mkdir()
    (own / "envs").symlink_to(cache_home() / "envs")
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with stand_in() as hub:
        hub.repos[name] = Repo(False, [(sha(b"one"), files)])
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        env["COPE_HOME"] = str(own)
        run = subprocess.run(
            [sys.executable, "-c", IMPORT, name],
            env=os.environ | env,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert run.returncode == 0, run.stderr
    found = store.open_file(own / "data" / "mind2web" / f"{name.partition('/')[2]}.sqlite")
    assert [task.id for task in found.tasks("train")] == [row["annotation_id"] for row in TRAIN]
    assert [task.id for task in found.tasks("test_task")] == [row["annotation_id"] for row in TEST]


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the `data` extra is not installed")
    with stand_in() as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-c", IMPORT, "osunlp/Nothing"]
        run = subprocess.run(
            command, env=os.environ | env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
        )
    assert run.returncode == 1 and "ImportFailed: The Hub does not give osunlp/Nothing" in run.stderr


def test_splits_that_come_in_replace_and_others_stay(tmp_path: Path) -> None:
    first, second = tmp_path / "train.json", tmp_path / "test_website.json"
    first.write_bytes(array(TRAIN[:2]))
    data.import_data(str(first), "grown")
    second.write_bytes(array(TEST[:1]))
    data.import_data(str(second), "grown")
    first.write_bytes(array(TRAIN[2:3]))
    data.import_data(str(first), "grown")
    grown = store.open_file(data_file("grown"))
    assert sorted(grown.splits()) == ["test_website", "train"]
    assert [task.id for task in grown.tasks("train")] == [TRAIN[2]["annotation_id"]]
    assert grown.numbers(TEST[0]["annotation_id"]) == list(range(len(TEST[0]["actions"])))
    assert grown.facts()["test_website"]["tasks"] == 1 and grown.task(TRAIN[0]["annotation_id"]) is None


def test_what_is_broken_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        task_row("whole", (PAGES["shop"], ["33"], "CLICK", "")),
        task_row("../x", (PAGES["shop"], ["33"], "CLICK", "")),
        task_row("no-steps"),
    ]
    (tmp_path / "train.json").write_bytes(array(rows))
    imported = data.import_data(str(tmp_path), "broken")
    assert imported["splits"]["train"] | {"digest": ""} == {
        "tasks": 1,
        "steps": 1,
        "without_element": 0,
        "unreachable": 0,
        "without_steps": 1,
        "malformed": 1,
        "digest": "",
    }
    assert any("1 malformed rows were left out" in note for note in imported["notes"])


def test_the_first_tasks_only(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes(array(TRAIN))
    assert data.import_data(str(tmp_path), "few", limit=2)["splits"]["train"]["tasks"] == 2


def plain_zip(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def strong_zip() -> bytes:
    """An archive whose members say that AES encrypted them."""
    content = bytearray(plain_zip({"test_task_0.json": b"[]"}))
    for at in (content.find(b"PK\x03\x04") + 6, content.find(b"PK\x01\x02") + 8):
        content[at] |= 1
        content[at + 2 : at + 4] = (99).to_bytes(2, "little")
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("train.json", b"[{", "ends early or is damaged"),
        ("train.json", b"", "ends early or is damaged"),
        ("train.json", b"[]", "Nothing there is a task of Mind2Web"),
        ("train.json", b"[3]", "holds something that is no task"),
        ("train.json", b'[{"a": 1}]', "the last row: annotation_id 'None' is no id"),
        ("train.json", b'{"annotation_id": "x"} oops', "ends early or is damaged"),
        ("mine.json", b"[]", "says no split: name it with --split"),
        ("notes.txt", b"", "holds no JSON, Parquet or zip files"),
        ("test.zip", encrypted_zip({"test_task_0.json": b"[]"}, "another"), "password"),
        ("test.zip", strong_zip(), "7z x test.zip"),
        ("test.zip", plain_zip({"readme.md": b""}), "Nothing there is a task"),
    ],
)
def test_what_cannot_be_imported_says_why(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(data.ImportFailed, match=why):
        data.import_data(str(tmp_path), "bad")
    assert not data_file("bad").exists() and not list(data_file("bad").parent.glob(".importing-*"))


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("absent", {}, "does not exist"),
        (".", {"split": "test"}, "There is no split 'test'"),
        (".", {"name": "../x"}, "no name of data"),
    ],
)
def test_bad_calls(source: str, options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(data.ImportFailed, match=why):
        data.import_data(str(tmp_path / source), **options)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(array(TRAIN[:2]))
    command = ["data", "import", "mind2web", str(tmp_path), "--split", "train", "--name", "typed"]
    result = CliRunner().invoke(build(), command)
    assert result.exit_code == 0, result.output
    assert "train: 2 tasks, " in result.output and "--set mind2web.data=typed" in result.output
    result = CliRunner().invoke(build(), ["data", "import", "mind2web", str(tmp_path / "absent")])
    assert result.exit_code == 1 and "does not exist" in result.output


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train/train_10.json", "train"),
        ("train-00003-of-00027-ae42.parquet", "train"),
        ("test_domain/test_domain_0.json", "test_domain"),
        ("data/test_website-00000-of-00005.parquet", "test_website"),
        ("train/test_task_1.json", "test_task"),
        ("trainer/notes.json", None),
        ("test.json", None),
        ("train/test.json", None),
        ("train/part_1.json", "train"),
    ],
)
def test_splits_of_file_names(name: str, split: str | None) -> None:
    assert split_of(name) == split


def test_train_10_comes_after_train_9() -> None:
    assert sorted(["train_10.json", "train_9.json", "train_1.json"], key=in_order)[-1] == "train_10.json"
