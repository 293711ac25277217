"""Behaviour cloning: a warm start from recorded episodes, with the token layout of rollouts and loss on action turns.

    cope train FILE --stage sft trajectories=experts/sciworld_train/experts.jsonl

A file that says `stage: sft` needs no `--stage`. What comes out, a model or an adapter, is what a run of reinforcement
learning names as its `model_name_or_path`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory
from cope_train.model_card import CardMixin, Facts, adapter_of, named
from cope_train.models import resolve
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.template import ChatTemplate
from cope_train.run_folder import refuse_used


@dataclass
class CloneConfig(SFTConfig):
    """`SFTConfig` and which episodes are cloned."""

    stage: str = field(default="sft", metadata={"help": "`sft`; `rl` has options of its own."})
    trajectories: str = field(default="", metadata={"help": "File(s) with episodes; e.g. runs/gold/*.jsonl."})
    only_success: bool = field(default=True, metadata={"help": "Clone solved episodes only."})
    max_length: int | None = field(default=4096, metadata={"help": "Longer episodes lose their last turns."})


class CloneTrainer(CardMixin, SFTTrainer):
    """`SFTTrainer` that says on its card which episodes were cloned."""

    _tag_names = ["trl", "sft", "cope-gym"]
    base = ""
    episodes: Sequence[Trajectory] = ()

    def card_facts(self) -> Facts:
        """Returns what the card states."""
        envs = sorted({episode.env for episode in self.episodes})
        policies = ", ".join(sorted({episode.policy or "unknown" for episode in self.episodes}))
        turns = sum(len(episode.turns) for episode in self.episodes)
        return Facts(
            name=Path(self.args.output_dir).name,
            base=named(self.base),
            adapter=adapter_of(self.model),
            method="Behaviour cloning: cross-entropy on what the agent wrote, nothing else.",
            data=[f"**Cloned**: {len(self.episodes)} episodes ({turns} turns) of {', '.join(envs)}, by {policies}."],
            versions=self.episodes[0].versions if len(envs) == 1 else {},
            steps=self.state.global_step,
            folder=Path(self.args.output_dir),
            options=self.args,
            limits=["Cloned episodes show solutions, hardly ever how to recover from a mistake."],
            tags=["trl", "sft", *envs],
        )


def buffer_of(episode: Trajectory, template: ChatTemplate) -> EpisodeBuffer:
    """Lays a recorded episode out as the rollout driver would have."""
    starts = [turn.message for turn in episode.turns] or _replies(episode)
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


def _replies(episode: Trajectory) -> list[int]:
    return [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]


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
    resume: bool | str | None = None,
) -> CloneTrainer:
    """Trains a model on episodes.

    Args:
        model: Model, path or Hub id.
        tokenizer: Its tokenizer.
        episodes: What is cloned.
        args: How.
        peft_config: LoRA, or `None` for all weights.
        callbacks: Further callbacks.
        before: Called with the trainer before it starts.
        resume: Go on from the last checkpoint, or from that of a folder.

    Returns:
        The trainer, after training.
    """
    episodes = list(episodes)
    dataset = cloning_dataset(episodes, ChatTemplate(tokenizer))
    trainer = CloneTrainer(
        model,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=callbacks,
    )
    trainer.base = model if isinstance(model, str) else model.config.name_or_path
    trainer.episodes = episodes
    if before:
        before(trainer)
    trainer.train(resume_from_checkpoint=resume)
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


def run(args: CloneConfig, model_args: ModelConfig) -> CloneTrainer:
    """Clones as a configuration says, and saves."""
    if not model_args.model_name_or_path:
        raise InputError("model_name_or_path: name a model: `quickstart`, a path or a Hub id", type="bad_option")
    if not args.trajectories:
        raise InputError(
            "trajectories: name a file with episodes, e.g. that of `cope data experts sciworld`", type="bad_option"
        )
    if args.process_index == 0:
        refuse_used(Path(args.output_dir), args.resume_from_checkpoint)
    name = resolve(model_args.model_name_or_path)
    args.model_init_kwargs = {"dtype": model_args.dtype or "float32"} | (args.model_init_kwargs or {})
    episodes = load_episodes(args.trajectories, args.only_success)
    resume = args.resume_from_checkpoint
    trainer = clone(
        name,
        AutoTokenizer.from_pretrained(name),
        episodes,
        args,
        get_peft_config(model_args),
        resume=True if resume in ("true", "True", True) else resume,
    )
    trainer.save_model()
    return trainer
