"""What `test_ranks.py` runs, alone and on two ranks: two steps of co-evolution, weights and rows to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_train.skills.source import source_order
from cope_train.skills.trainer import SkillTrainer

TASKS = ["box", "coin", "door", "key", "lamp"]
SEED = 3
# The second source of the first step: on two ranks, all that rank 1 has. Rank 0 meets it among its similar tasks.
BROKEN = source_order(TASKS, 1, 4, SEED)[1]


class PartlyBroken(ToyEnv):
    def __init__(self) -> None:
        super().__init__(fail={BROKEN: 99})


def main(folder: Path, rows: int) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    args = make_config(
        folder,
        skills=True,
        skill_count=2,
        skill_tasks=3,
        skill_baseline=True,
        skill_encoder="bm25",
        skill_tokens=8,
        max_episode_tokens=64,
        max_failed_share=0.9,
        episode_attempts=1,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        max_steps=2,
        optim="sgd",
        learning_rate=0.5,
        loss_type="grpo",
        seed=SEED,
    )
    trainer = SkillTrainer(
        make_model(tokenizer), args, TASKS, make_env=PartlyBroken, system_prompt="Play.", processing_class=tokenizer
    )
    played: list[list[dict[str, Any]]] = []
    trainer.source.progress = lambda episode: played[-1].append({"tag": episode.job.tag, "failed": episode.failed})
    original = trainer._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        played.append([])
        return original(inputs)

    trainer._generate_and_score_completions = watched
    trainer.train()
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    rank = trainer.accelerator.process_index
    torch.save({"weights": weights, "played": played}, folder / f"rank{rank}.pt")
