"""With every objective off, `CoPETrainer` is stock `GRPOTrainer`, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from toy import ToyEnv, make_config, make_model, make_tokenizer
from trl import GRPOTrainer

from cope_train.episodes import EpisodeSource, reward_function
from cope_train.rollout.template import ChatTemplate
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train
TASKS = ["door", "key", "open", "look"]


def stock(folder: Path, lora: LoraConfig | None, **options: Any) -> GRPOTrainer:
    tokenizer = make_tokenizer()
    args = make_config(folder, **options)
    source = EpisodeSource(args, ChatTemplate(tokenizer), "", ToyEnv, "Play.", "plain")
    return GRPOTrainer(
        make_model(tokenizer),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": TASKS}),
        reward_funcs=[reward_function(args.reward)],
        rollout_func=source,
        processing_class=tokenizer,
        peft_config=lora,
    )


def ours(folder: Path, lora: LoraConfig | None, **options: Any) -> CoPETrainer:
    tokenizer = make_tokenizer()
    args = make_config(folder, **options)
    return CoPETrainer(
        make_model(tokenizer),
        args,
        TASKS,
        make_env=ToyEnv,
        system_prompt="Play.",
        processing_class=tokenizer,
        peft_config=lora,
    )


def trained(trainer: GRPOTrainer) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    trainer.train()
    keys = ("loss", "grad_norm", "reward", "entropy", "kl", "clip_ratio/region_mean", "frac_reward_zero_std")
    history = [{k: log[k] for k in keys if k in log} for log in trainer.state.log_history if "loss" in log]
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, history


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_all_off_equals_stock_grpo_bit_for_bit(lora: bool, tmp_path: Path) -> None:
    peft = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
    options = {"max_steps": 6, "num_iterations": 2, "beta": 0.05 if lora else 0.0}
    expected, expected_log = trained(stock(tmp_path / "stock", peft, **options))
    weights, log = trained(ours(tmp_path / "ours", peft, **options))
    assert log == expected_log and len(log) >= 5
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    # The comparison means something: rewards differed within groups, and every step moved the weights.
    assert all(entry["grad_norm"] > 0 for entry in log)
    assert all(entry.get("frac_reward_zero_std", 0) < 1 for entry in log)  # logged where a rollout was made
    fresh = dict(ours(tmp_path / "fresh", peft, **options).model.named_parameters())
    moved = [name for name, value in weights.items() if not torch.equal(value, fresh[name])]
    assert moved and (not lora or all("lora" in name for name in moved))
