"""Opens the generation backend that a trainer's arguments name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl import GRPOTrainer

from cope_gym.errors import InputError
from cope_train.rollout.backends import Backend, Sampling, TransformersBackend
from cope_train.rollout.template import ChatTemplate
from cope_train.rollout.vllm import EngineBackend, ServerBackend
from cope_train.trl_adapter import choose_port, generation_model, sync_vllm


def check_backend(args: Any) -> None:
    """Refuses what would give wrong rows, and prepares a colocated engine's start.

    Raises:
        InputError: Tensor parallelism in colocate mode (its ranks would have to play the same episodes in step), or
            options for an engine that is not made here.
    """
    if args.use_vllm and args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size > 1:
        raise InputError(
            "vllm_tensor_parallel_size > 1 is not possible with vllm_mode colocate, because every rank plays its own "
            "episodes: set vllm_mode to server and start `vllm serve --tensor-parallel-size`, or set it to 1",
            type="bad_option",
        )
    if args.vllm_engine_options and not (args.use_vllm and args.vllm_mode == "colocate"):
        raise InputError(
            "vllm_engine_options reach vLLM only with use_vllm true and vllm_mode colocate: a server takes its own on "
            "its command line",
            type="bad_option",
        )
    if args.use_vllm and args.vllm_mode == "colocate":
        choose_port()


@contextmanager
def open_backend(
    trainer: GRPOTrainer, sampling: Sampling, template: ChatTemplate, ordered: bool = False
) -> Iterator[Backend]:
    """Gives a backend with the trainer's current weights."""
    args = trainer.args
    if not args.use_vllm:
        with generation_model(trainer) as model:
            yield TransformersBackend(model, sampling, template.stop_ids, trainer.processing_class.pad_token_id)
        return
    sync_vllm(trainer)
    if args.vllm_mode == "colocate":
        yield EngineBackend(trainer.vllm_generation.llm, sampling, template.stop_ids, seeded=ordered)
        return
    url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    backend = ServerBackend(url, sampling, template.stop_ids)
    try:
        yield backend
    finally:
        backend.close()
