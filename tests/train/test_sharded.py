"""FSDP2 on two ranks trains what one process trains, goes on from its shards, and saves a model that loads."""

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
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two ranks' folder and one process's."""
    two, one = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("one")
    launch(Path(__file__).with_name("sharded_script.py"), two)
    for arm in ARMS:
        train(one, rows=4, arm=arm)
    return two, one


@pytest.mark.parametrize("arm", ARMS)
def test_sharded_ranks_train_what_one_process_trains(folders: tuple[Path, Path], arm: str) -> None:
    """With unpacked branches, ranks went back through unequally many passes and waited for each other for ever."""
    two, one = (folder / arm for folder in folders)
    alone = torch.load(one / "rank0.pt")
    start = torch.cat([p.detach().flatten() for p in make_model(make_tokenizer()).parameters()])
    assert arm == "lora" or not torch.allclose(alone, start, atol=1e-4), "something was learnt"
    for rank in range(2):
        assert torch.allclose(torch.load(two / f"rank{rank}.pt"), alone, atol=1e-5)


def test_every_rank_gives_the_sampler_whole_merged_weights(folders: tuple[Path, Path]) -> None:
    """Out of place, as for whole weights (the script looks that the base has not changed)."""
    two, one = (folder / "lora" for folder in folders)
    alone = torch.load(one / "merged0.pt")
    assert set(alone) == {name for name, _ in make_model(make_tokenizer()).named_parameters()}
    for rank in range(2):
        merged = torch.load(two / f"merged{rank}.pt")
        assert list(merged) == list(alone)
        assert all(torch.allclose(merged[name], alone[name], atol=1e-5) for name in alone)


def test_a_run_goes_on_from_sharded_checkpoints(folders: tuple[Path, Path]) -> None:
    folder = folders[0] / "packed"
    assert torch.allclose(torch.load(folder / "rank0-resumed.pt"), torch.load(folder / "rank0.pt"), atol=1e-6)


@pytest.mark.parametrize("arm", ["packed", "lora"])
def test_the_saved_model_holds_all_weights(folders: tuple[Path, Path], arm: str) -> None:
    """With weights in shards, which is how checkpoints are saved, the model at the end of a run was none."""
    folder = folders[0] / arm
    if arm == "lora":
        loaded = PeftModel.from_pretrained(make_model(make_tokenizer()), folder / "model")
    else:
        loaded = AutoModelForCausalLM.from_pretrained(folder / "model")
    weights = torch.cat([p.detach().flatten() for p in loaded.parameters()])
    assert torch.allclose(weights, torch.load(folder / "rank0.pt"), atol=1e-6)
