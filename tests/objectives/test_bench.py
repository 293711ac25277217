"""`cope bench objectives`: every arm runs, packed and unpacked mean the same, and the command is where it belongs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cope_gym.cli import build
from cope_gym.errors import InputError
from cope_train.bench_objectives import Setting, run

pytestmark = pytest.mark.train


def test_the_command_measures_every_arm(tmp_path: Path) -> None:
    out, picture = tmp_path / "objectives.json", tmp_path / "objectives.png"
    words = ["bench", "objectives", "--turns", "3", "--shape", "tiny", "--batch", "2", "--repeats", "1"]
    done = CliRunner().invoke(
        build(), [*words, "--device", "cpu", "--json", str(out), "--plot", str(picture)], catch_exceptions=False
    )
    assert done.exit_code == 0 and picture.read_bytes().startswith(b"\x89PNG")
    results = {line["arm"]: line for line in json.loads(out.read_text())["results"]}
    assert list(results) == ["stock", "packed", "unpacked"] and len(done.stdout.splitlines()) == 3
    assert results["packed"]["loss"] == pytest.approx(results["unpacked"]["loss"], abs=1e-4)
    assert results["packed"]["loss"] > results["stock"]["loss"] and results["packed"]["ratio"] > 1


def test_an_adapter_with_checkpointing_and_long_turns(capsys: pytest.CaptureFixture[str]) -> None:
    setting = Setting([2], shape="tiny", batch=1, repeats=1, checkpointing=True, device="cpu", turn_tokens=90, lora=4)
    stock, packed, unpacked = run(setting)
    assert packed["loss"] == pytest.approx(unpacked["loss"], abs=1e-4) and packed["loss"] > stock["loss"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_what_there_is_not_is_named() -> None:
    with pytest.raises(InputError, match="no shape '70b'; there are tiny, 135m"):
        Setting(shape="70b")
    with pytest.raises(InputError, match="no arm 'half'"):
        Setting(arms=["half"])
