"""Skill co-evolution on real ScienceWorld with the quickstart's model: few steps, nothing scripted.

SmolLM2-135M first clones gold paths, and skills written about other gold paths by rule, so that it can act and write
the JSON schema. Then `SkillTrainer` runs; the last line is JSON with what was seen, and the exit code says whether
there was a solver group with differing rewards and an extractor advantage other than 0.

    python tests/gpu/skills.py --out runs/skills --steps 6

Needs the environment of `stack.sh env`; without a GPU it works as well, but takes hours.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from skill_talk import HISTORY, skill_talk
from transformers import AutoTokenizer
from trl import SFTConfig

from cope_gym.evaluate.panels import Panel
from cope_gym.skills.bank import SkillBank
from cope_gym.trajectory import Trajectory
from cope_train.config import CoPEConfig
from cope_train.models import quickstart_model
from cope_train.quickstart import OPTIONS, SYSTEM, Quickstart, collect_gold, lora, prepare_environment
from cope_train.run_folder import read_metrics
from cope_train.sft import clone
from cope_train.skills.trainer import SkillTrainer

CATEGORY, TURNS, TURN_TOKENS, SKILL_TOKENS = "find-non-living-thing", 12, 20, 160


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/skills"))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--gold", type=int, default=48, help="Gold paths to clone.")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--warm-start", type=Path, help="A model that a run before has cloned.")
    parser.add_argument("--vllm", action="store_true", help="Sample with vLLM (colocate) in place of Transformers.")
    options = parser.parse_args()

    service = prepare_environment()
    tasks = [t.id for t in service.client.tasks("sciworld", "train") if t.category == CATEGORY]
    start = Quickstart(options.out, service, Panel("sciworld", "none", "train", (), OPTIONS), tasks)
    gold = [] if options.warm_start else collect_gold(start, options.gold)
    model = options.warm_start or warm_up(gold, options.out, options.epochs)
    trainer = SkillTrainer(
        str(model), config(options.out, options.steps, options.vllm), tasks, system_prompt=SYSTEM, peft_config=lora()
    )
    seen = Seen(trainer)
    trainer.train()
    trainer.save_model(str(options.out / "adapter"))
    rows = [row for row in read_metrics(options.out / "metrics.jsonl") if "skills/parsed" in row]
    bank = SkillBank(options.out / "skills.sqlite")
    result = {
        "gold": len(gold),
        "skills": [
            {k: row.get(f"skills/{k}") for k in ("extractor_reward", "outcome", "parsed", "lift")} for row in rows
        ],
        "seconds": [row.get("step_time") for row in rows],
        "grad_norm": [row.get("grad_norm") for row in rows],
        "solver_groups_with_variance": seen.varied,
        "solver_groups": seen.groups,
        "extractor_advantages_not_0": seen.moved,
        "banked": len(bank.skills()),
        "best": bank.skills()[0].skill.to_dict() if bank.skills() else None,
    }
    print(json.dumps(result), flush=True)
    return 0 if seen.varied and seen.moved else 1


class Seen:
    """Counts, after every rollout, what the run has to show."""

    def __init__(self, trainer: SkillTrainer) -> None:
        self.groups = self.varied = self.moved = 0
        report = trainer.source.report

        def counted(of: Any) -> None:
            report(of)
            source: Any = trainer.source
            advantages = source.advantages().view(len(source.lineages), source.sizes.blocks, source.sizes.skills)
            self.groups += advantages[:, 1:, 0].numel()
            self.varied += int((advantages[:, 1:].abs().amax(-1) > 0).sum())
            self.moved += int((advantages[:, 0] != 0).sum())

        trainer.source.report = counted


def warm_up(gold: list[Trajectory], out: Path, epochs: float) -> Path:
    """Clones gold paths, with and without a skill, and the writing of skills; returns the merged model's folder."""
    folder, base = out / "warm_start", quickstart_model()
    tokenizer = AutoTokenizer.from_pretrained(base)
    episodes = [*gold, *skill_talk(gold, SYSTEM)]
    args = SFTConfig(
        str(out / "cloning"),
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        learning_rate=5e-4,
        max_length=None,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": dtype()},
    )
    trainer = clone(str(base), tokenizer, episodes, args, lora())
    trainer.model.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def dtype() -> str:
    return "bfloat16" if torch.cuda.is_available() else "float32"


def config(out: Path, steps: int, vllm: bool) -> CoPEConfig:
    """2 sources a step, N = 4, K = 2: 24 rows, and 4 episodes without a skill."""
    sampler = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.1,
        "vllm_engine_options": {"kv_cache_memory_bytes": 8_000_000_000},  # other runs may share the GPU
        "vllm_max_model_length": 4096,
    }
    micro = 4 if torch.cuda.is_available() else 1  # logits of four rows fill a small machine's memory
    return CoPEConfig(
        str(out),
        environment="sciworld",
        environment_options=dict(OPTIONS),
        action_format="react",
        reward="score",
        max_turns=TURNS,
        max_turn_tokens=TURN_TOKENS,
        max_episode_tokens=1536,
        first_observation_chars=800,
        observation_chars=200,
        skills=True,
        skill_count=4,
        skill_tasks=2,
        skill_baseline=True,
        skill_encoder="bm25",
        skill_tokens=SKILL_TOKENS,
        skill_card_tokens=200,
        skill_history_chars=HISTORY,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=24 // micro,
        loss_type="grpo",
        epsilon=0.1,
        epsilon_high=0.15,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        max_steps=steps,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": dtype()},
        **(sampler if vllm else {}),
    )


if __name__ == "__main__":
    sys.exit(main())
