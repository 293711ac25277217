"""Run by `test_ranks.py`, alone or on several ranks: two steps on the text world, weights to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_train.trainer import CoPETrainer


class PartlyBroken(ToyEnv):
    def __init__(self) -> None:
        super().__init__(fail={"look": 99})


def main(folder: Path, rows: int, accumulated: int, loss_type: str) -> None:
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    args = make_config(
        folder,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulated,
        num_generations=2,
        max_steps=2,
        optim="sgd",
        learning_rate=0.5,
        loss_type=loss_type,
        forecast=True,
        forecast_coef=0.5,
        episode_attempts=1,
        shuffle_dataset=False,
    )
    trainer = CoPETrainer(
        make_model(tokenizer),
        args,
        ["door", "key", "open", "look"],
        make_env=PartlyBroken,
        system_prompt="Play.",
        processing_class=tokenizer,
    )
    trainer.train()
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    torch.save(weights, folder / f"rank{trainer.accelerator.process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
