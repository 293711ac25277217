"""FSDP2 and ZeRO on two ranks train what one process trains, go on from their shards, and save a model that loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from ranks_kit import launch
from sharded_script import ARMS, train
from toy import make_model, make_tokenizer
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process's folder."""
    folder = tmp_path_factory.mktemp("one")
    for arm in ARMS:
        train(folder, rows=4, arm=arm)
    return folder


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two ranks' folders, one launch a script."""
    return {}


@pytest.fixture(params=["fsdp2", "zero2", "zero3"])
def two(request: pytest.FixtureRequest, launched: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks' folder."""
    kind = "fsdp2" if request.param == "fsdp2" else "zero"
    if kind == "zero":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install deepspeed)")
    if kind not in launched:
        launched[kind] = tmp_path_factory.mktemp(kind)
        script = "sharded_script.py" if kind == "fsdp2" else "zero_script.py"
        launch(Path(__file__).with_name(script), launched[kind])
    return launched[kind] if kind == "fsdp2" else launched[kind] / request.param


@pytest.mark.parametrize("arm", ARMS)
def test_sharded_ranks_train_what_one_process_trains(one: Path, two: Path, arm: str) -> None:
    """With unpacked branches, ranks went back through unequally many passes and waited for each other for ever.

    ZeRO's third stage had no LM head to score with: it is in shards outside of the model's own forward.
    """
    alone = torch.load(one / arm / "rank0.pt")
    start = torch.cat([p.detach().flatten() for p in make_model(make_tokenizer()).parameters()])
    assert arm == "lora" or not torch.allclose(alone, start, atol=1e-4), "something was learnt"
    for rank in range(2):
        assert torch.allclose(torch.load(two / arm / f"rank{rank}.pt"), alone, atol=1e-5)


def test_every_rank_gives_the_sampler_whole_merged_weights(one: Path, two: Path) -> None:
    """Out of place, as for whole weights (the script looks that the base has not changed)."""
    alone = torch.load(one / "lora/merged0.pt")
    assert set(alone) == {name for name, _ in make_model(make_tokenizer()).named_parameters()}
    for rank in range(2):
        merged = torch.load(two / f"lora/merged{rank}.pt")
        assert list(merged) == list(alone)
        assert all(torch.allclose(merged[name], alone[name], atol=1e-5) for name in alone)


def test_a_run_goes_on_from_sharded_checkpoints(two: Path) -> None:
    folder = two / "packed"
    assert torch.allclose(torch.load(folder / "rank0-resumed.pt"), torch.load(folder / "rank0.pt"), atol=1e-6)


@pytest.mark.parametrize("arm", ["packed", "lora"])
def test_the_saved_model_holds_all_weights(two: Path, arm: str) -> None:
    """With weights in shards, which is how checkpoints are saved, the model at the end of a run was none."""
    folder = two / arm
    if arm == "lora":
        loaded = PeftModel.from_pretrained(make_model(make_tokenizer()), folder / "model")
    else:
        loaded = AutoModelForCausalLM.from_pretrained(folder / "model")
    weights = torch.cat([p.detach().flatten() for p in loaded.parameters()])
    assert torch.allclose(weights, torch.load(folder / "rank0.pt"), atol=1e-6)
