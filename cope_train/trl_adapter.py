"""The one place that touches what TRL does not promise to keep.

Everything private of `trl.GRPOTrainer` that the package relies on is listed in `CONTRACT` and checked when a trainer
starts, so that another TRL says what changed in place of training something else.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import trl
from peft import PeftModel
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import RepeatSampler

from cope_gym.errors import InputError
from cope_train.weights import merged_parameters

# `rollout_func` is experimental in TRL, which the contract below takes care of; users need no warning each run.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

# Private methods that are overridden or called, with their parameters.
CONTRACT: dict[str, tuple[str, ...]] = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_compute_loss": ("self", "model", "inputs"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_get_train_sampler": ("self", "dataset"),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
}
# Loss types that average over sequences: a failed row would still count as one.
MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


def check_contract() -> None:
    """Compares this TRL with what the package was written against.

    Raises:
        InputError: A method is gone or takes other arguments.
    """
    for name, expected in CONTRACT.items():
        method = getattr(GRPOTrainer, name, None)
        found = tuple(inspect.signature(method).parameters) if method else None
        if found != expected:
            raise InputError(
                f"trl {trl.__version__} has another `GRPOTrainer.{name}` {found or '(none)'} than cope_train was "
                f"written for {expected}: install the version of constraints/, `pip install 'trl>=1.16,<1.17'`",
                type="bad_version",
            )


class EpochSampler(RepeatSampler):
    """TRL's order of tasks, found again after a resume: TRL's own generator starts from its seed in every process."""

    @classmethod
    def like(cls, sampler: RepeatSampler) -> EpochSampler:
        """Returns one that gives what `sampler` gives."""
        return cls(
            sampler.data_source,
            sampler.mini_repeat_count,
            sampler.batch_size,
            sampler.repeat_count,
            sampler.shuffle,
            sampler.seed,
        )

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch."""
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(epoch):
                torch.randperm(self.num_samples, generator=self.generator)


@contextmanager
def generation_model(trainer: GRPOTrainer) -> Iterator[Any]:
    """Gives the plain model for sampling: unwrapped, gathered where it is sharded, without dropout and gradients."""
    args = trainer.args
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        ) as model,
        torch.no_grad(),
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        training = model.training
        model.eval()
        try:
            yield model
        finally:
            model.train(training)


@contextmanager
def engine_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Gives colocated vLLM arguments that TRL does not pass on, while a trainer is being made.

    Args:
        options: Arguments of `vllm.LLM`; they go over TRL's.
    """
    made = getattr(vllm_generation, "LLM", None)  # absent without vLLM, which TRL says itself
    if not options or made is None:
        yield
        return
    vllm_generation.LLM = lambda **arguments: made(**arguments | dict(options))
    try:
        yield
    finally:
        vllm_generation.LLM = made


def choose_port() -> None:
    """Gives this run a port of its own for vLLM's process group, unless a launcher has.

    TRL looks for a free one among the same four long before it is bound, so that two runs started together collide.
    """
    if os.environ.get("MASTER_PORT", "").strip().lower() in {"", "0", "auto"}:
        with socket.socket() as unused:
            unused.bind(("", 0))
            os.environ["MASTER_PORT"] = str(unused.getsockname()[1])


def sync_vllm(trainer: GRPOTrainer) -> None:
    """Loads the current weights into vLLM, once a step (TRL has done so before a training rollout)."""
    if trainer.state.global_step != trainer._last_loaded_step:
        trainer.vllm_generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step


@contextmanager
def evaluating(trainer: GRPOTrainer) -> Iterator[None]:
    """Puts the model into evaluation mode for a while; TRL tells the two kinds of metrics apart by it."""
    training = trainer.model.training
    trainer.model.eval()
    try:
        yield
    finally:
        trainer.model.train(training)


def use_merged_sync(trainer: GRPOTrainer) -> None:
    """Sends LoRA weights to vLLM merged out of place, where TRL would merge into the base weights and back.

    FSDP's first version keeps TRL's way: its flat shards show no layers to merge.
    """
    if not (trainer.use_vllm and isinstance(trainer.model, PeftModel)):
        return
    shards = trainer.vllm_generation._dist
    if shards.is_fsdp and shards.fsdp_version == 1:
        return

    trainer.vllm_generation._iter_named_params = lambda: merged_parameters(trainer.model)


def record_metric(trainer: GRPOTrainer, name: str, value: float) -> None:
    """Adds a metric to TRL's next log line; the mean over the line's steps is logged."""
    trainer._metrics["train" if trainer.model.training else "eval"][name].append(value)
