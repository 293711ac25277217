"""Behaviour cloning: a warm start from recorded episodes, with the token layout of rollouts and loss on action turns.

accelerate launch cope_train/sft.py --trajectories gold.jsonl --model_name_or_path quickstart --output_dir runs/warm
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from glob import glob
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory
from cope_train.models import resolve
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.template import ChatTemplate


@dataclass
class CloneConfig(SFTConfig):
    """`SFTConfig` and which episodes are cloned."""

    trajectories: str = field(default="", metadata={"help": "File(s) with episodes; e.g. runs/gold/*.jsonl."})
    only_success: bool = field(default=True, metadata={"help": "Clone solved episodes only."})
    max_length: int | None = field(default=4096, metadata={"help": "Longer episodes lose their last turns."})


def buffer_of(episode: Trajectory, template: ChatTemplate) -> EpisodeBuffer:
    """Lays a recorded episode out as the rollout driver would have."""
    starts = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
    if not starts:
        raise InputError(f"the episode of {episode.task_id} has no assistant turn to clone", type="bad_trajectory")
    buffer = EpisodeBuffer()
    buffer.append_prompt(template.prompt(episode.messages[: starts[0]]))
    for message in episode.messages[starts[0] : starts[-1] + 1]:  # a last observation answers to nothing
        if message["role"] == "assistant":
            ids = template.reply(message["content"])
            buffer.append_turn(ids, [0.0] * len(ids), [])
        else:
            buffer.append_observation(template.observation(message["content"]))
    return buffer


def cloning_dataset(episodes: Iterable[Trajectory], template: ChatTemplate) -> Dataset:
    """Returns ids and labels; only what the agent wrote has a label."""
    buffers = [buffer_of(episode, template) for episode in episodes]
    return Dataset.from_dict(
        {
            "input_ids": [b.ids for b in buffers],
            "labels": [[i if m else -100 for i, m in zip(b.ids, b.mask, strict=True)] for b in buffers],
        }
    )


def clone(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    episodes: Iterable[Trajectory],
    args: SFTConfig,
    peft_config: Any = None,
    callbacks: Any = None,
    before: Callable[[SFTTrainer], None] | None = None,
) -> SFTTrainer:
    """Trains a model on episodes.

    Args:
        model: Model, path or Hub id.
        tokenizer: Its tokenizer.
        episodes: What is cloned.
        args: How.
        peft_config: LoRA, or `None` for all weights.
        callbacks: Further callbacks.
        before: Called with the trainer before it starts.

    Returns:
        The trainer, after training.
    """
    dataset = cloning_dataset(episodes, ChatTemplate(tokenizer))
    trainer = SFTTrainer(
        model,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=callbacks,
    )
    if before:
        before(trainer)
    trainer.train()
    return trainer


def load_episodes(pattern: str, only_success: bool) -> list[Trajectory]:
    """Reads the episodes of one or several files.

    Raises:
        InputError: There is no such file, or nothing to clone in it.
    """
    files = sorted(glob(pattern, recursive=True))
    if not files:
        raise InputError(f"trajectories names no file: '{pattern}'", type="bad_option")
    episodes = [episode for file in files for episode in trajectory.read(file)]
    kept = [e for e in episodes if e.error is None and (e.success or not only_success)]
    if not kept:
        raise InputError(
            f"none of the {len(episodes)} episodes in '{pattern}' was solved: set only_success to false to clone them "
            "all the same",
            type="bad_option",
        )
    return kept


def main(arguments: list[str] | None = None) -> None:
    """Clones from the command line."""
    args, model_args = TrlParser((CloneConfig, ModelConfig)).parse_args_and_config(arguments)
    name = resolve(model_args.model_name_or_path)
    args.model_init_kwargs = {"dtype": model_args.dtype or "float32"} | (args.model_init_kwargs or {})
    tokenizer = AutoTokenizer.from_pretrained(name)
    episodes = load_episodes(args.trajectories, args.only_success)
    trainer = clone(name, tokenizer, episodes, args, get_peft_config(model_args))
    trainer.save_model()


if __name__ == "__main__":
    main(sys.argv[1:])
