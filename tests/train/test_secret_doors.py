"""The learning run of `examples/secret_doors.py`: skills are sampled and their reward rises; swapped, it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.train, pytest.mark.soak]
SCRIPT = Path(__file__).parents[2] / "examples" / "secret_doors.py"


def call(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    folder = tmp_path_factory.mktemp("doors")
    call("warm", "--out", str(folder / "warm"))
    for name, options in (("own", []), ("swapped", ["--swapped"])):
        call("run", "--warm", str(folder / "warm"), "--out", str(folder / name), *options)
    return folder


def numbers(runs: Path, name: str) -> dict[str, Any]:
    result = json.loads((runs / name / "result.json").read_text())
    means = {
        when: {arm: sum(by.values()) / len(by) for arm, by in result[when].items()} for when in ("before", "after")
    }
    return {**result, "means": means}


@pytest.mark.timeout(1800)
def test_before_training_skills_are_followed_and_right_in_two_of_five(runs: Path) -> None:
    result = numbers(runs, "own")
    assert result["curve"]["parsed"][0] > 0.9
    assert 0.25 < fifth(result, 0) < 0.65 and fifth(numbers(runs, "swapped"), 0) < 0.25  # chance is 1/8


def test_the_extractors_reward_rises_and_its_skills_open_doors_never_seen(runs: Path) -> None:
    result = numbers(runs, "own")
    assert fifth(result, -1) - fifth(result, 0) > 0.25
    after = result["means"]["after"]
    assert after["own"] - after["none"] > 0.6
    assert abs(after["other"] - after["none"]) < 0.2  # the same policy with another family's skill


def test_skills_tried_on_another_family_teach_nothing(runs: Path) -> None:
    result = numbers(runs, "swapped")
    assert abs(fifth(result, -1) - fifth(result, 0)) < 0.1
    summary = json.loads(call("summary", str(runs), "--out", str(runs / "summary")))
    assert summary["trained"]["seeds"] == [0] and (runs / "summary" / "secret_doors.png").stat().st_size > 10_000


def fifth(result: dict[str, Any], which: int) -> float:
    """Mean reward of the first or the last fifth of the steps."""
    reward = result["curve"]["extractor_reward"]
    count = len(reward) // 5
    return sum(reward[:count] if which == 0 else reward[-count:]) / count
