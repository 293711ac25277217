"""What `test_ranks.py` runs, alone and as a script on two ranks: two steps on the text world, weights to a file."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import skill_ranks_script
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_train.trainer import CoPETrainer

LOSS_TYPES = ("dapo", "grpo")


class PartlyBroken(ToyEnv):
    def __init__(self) -> None:
        super().__init__(fail={"look": 99})


def main(folder: Path, rows: int, accumulated: int, loss_type: str) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
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
    gc.freeze()  # trainers collect garbage at every start
    base = Path(sys.argv[1])
    for name in LOSS_TYPES:
        main(base / name, rows=2, accumulated=2, loss_type=name)
    if find_spec("bm25s"):
        skill_ranks_script.main(base / "skills", rows=8)
