"""A real `GRPOTrainer` whose rollouts are scripted: what is compared is losses and weights, not sampling."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from objectives_kit import Say, episode, make_tokenizer, tiny_model
from trl import GRPOConfig, GRPOTrainer

from cope_train.idea_rewards import IDEA_REWARDS
from cope_train.objective_config import ObjectiveConfig
from cope_train.objective_mixin import ObjectivesMixin
from cope_train.objective_terms import Objectives
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.records import Record
from cope_train.separate_step import SeparateStep

TOKENIZER = make_tokenizer()
CHAT = ChatPieces.probe(TOKENIZER)
gc.freeze()  # Trainer collects garbage at every start, which takes seconds with all of torch in memory
WORDS = ["open door", "go to kitchen", "focus on thermometer", "pick up metal pot", "look around", "take red apple"]


@dataclass
class JointConfig(ObjectiveConfig, GRPOConfig):
    """What `CoPEConfig` is, without environments."""


def script(turns: int, seed: int, success: bool, group: str = "", failed: bool = False, long: bool = False) -> Record:
    """An episode of so many turns; prompts and thoughts differ in length, some actions are invalid."""
    says = [
        Say(
            WORDS[(seed + 2 * t) % len(WORDS)],
            thought="I should look around and open it." if (seed + t) % 3 == 0 else "",
            observation="The door is closed. Nothing happens." if (seed + t) % 2 else "You see a red apple and a box.",
            valid=(seed + t) % 4 != 3,
        )
        for t in range(turns)
    ]
    task = "Open the green door. " * (1 + seed % 3 + 4 * long)
    return episode(TOKENIZER, CHAT, says, task=task, group=group, success=success, failed=failed)


# Two groups of four: unequal lengths, wins and losses in both, one infrastructure failure.
GROUPS = {
    "a": [script(4, 0, True), script(2, 1, False), script(5, 2, True), script(1, 3, False)],
    "b": [script(3, 4, False), script(3, 5, True, failed=True), script(2, 6, True), script(6, 7, False)],
}


def options(**changes: Any) -> dict[str, Any]:
    """Plain SGD, so that a difference of weights is a difference of gradients."""
    defaults: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "beta": 0.0,
        "temperature": 0.8,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "gradient_share_steps": 0,
    }
    return defaults | changes


FULL = {"forecast": True, "forecast_coef": 0.3, "ensemble": True, "ensemble_coef": 0.4, "observation_coef": 0.2}


def _rollout(groups: dict[str, list[Record]], prompts: list[str], trainer: Any) -> list[Record]:
    first, size = trainer.accelerator.process_index * len(prompts), trainer.num_generations
    return [
        replace(groups[prompt][(first + i) % size], group=f"{prompt}/{(first + i) // size}")
        for i, prompt in enumerate(prompts)
    ]


def _rows(records: list[Record]) -> dict[str, Any]:
    """Rows as `cope_train.episodes` makes them: a failed one is two tokens without loss and without reward."""
    filler = CHAT.turn_end[0]
    return {
        "prompt_ids": [[filler] if r.failed else r.ids[: r.prompt_length] for r in records],
        "completion_ids": [[filler] if r.failed else r.ids[r.prompt_length :] for r in records],
        "env_mask": [[0] if r.failed else r.loss_mask[r.prompt_length :] for r in records],
        "logprobs": None,
        "won": [None if r.failed else float(r.success) for r in records],
    }


def won(won: list[float | None], **_: Any) -> list[float | None]:
    return won


class Scripted(ObjectivesMixin):
    """Joint trainer on scripted episodes."""

    def __init__(self, model: Any, args: JointConfig, groups: dict[str, list[Record]], **kwargs: Any) -> None:
        self.groups, self.records = groups, []
        ideas = [IDEA_REWARDS[name](lambda: self.records) for name in kwargs.pop("ideas", ())]
        super().__init__(
            model,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(groups)}),
            reward_funcs=[won, *ideas],
            rollout_func=self.play,
            processing_class=TOKENIZER,
            **kwargs,
        )
        for idea in ideas:
            idea.bind(self)
        if args.any_objective:
            self.objectives = Objectives(self, CHAT)
            if args.forecast_separate_step:
                self.add_callback(SeparateStep(self.objectives))

    def play(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        self.records = _rollout(self.groups, prompts, trainer)
        return _rows(self.records)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if self.objectives:
            batch["samples"] = self.objectives.samples(self.records)
        return batch


class Stock(GRPOTrainer):
    """TRL's trainer on the same episodes."""

    def __init__(self, model: Any, args: JointConfig, groups: dict[str, list[Record]], **kwargs: Any) -> None:
        super().__init__(
            model,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(groups)}),
            reward_funcs=[won],
            rollout_func=lambda prompts, trainer: _rows(_rollout(groups, prompts, trainer)),
            processing_class=TOKENIZER,
            **kwargs,
        )


def train(
    folder: Any,
    kind: type = Scripted,
    groups: dict[str, list[Record]] | None = None,
    model: str = "llama",
    peft: Any = None,
    ideas: tuple[str, ...] = (),
    **changes: Any,
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], Any]:
    """Trains and returns the weights, the log and the trainer."""
    args = JointConfig(output_dir=str(folder), **options(**changes))
    more = {"ideas": ideas} if ideas else {}
    trainer = kind(tiny_model(model), args, GROUPS if groups is None else groups, peft_config=peft, **more)
    trainer.train()
    weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    return weights, [entry for entry in trainer.state.log_history if "loss" in entry], trainer
