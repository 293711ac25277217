"""What `test_sharded.py` runs: steps with all objectives on the text world, alone or sharded over two ranks.

accelerate shards on GPUs only, so the group of CPUs is presented as one of those; everything else is what it is there.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_train.trainer import CoPETrainer
from cope_train.weights import gathered, merged_parameters

SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
KINDS = {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"}
ENSEMBLE = {"ensemble": True, "ensemble_coef": 0.1}
LORA = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
ARMS: dict[str, tuple[dict[str, Any], LoraConfig | None]] = {
    "packed": (ENSEMBLE, None),
    "lora": (ENSEMBLE, LORA),
    "unpacked": ({"pack_branches": False}, None),
}


def train(folder: Path, rows: int, arm: str, resume: bool = False, **more: Any) -> None:
    """Trains two steps, or goes on after the first; weights and the saved model go to the folder."""
    torch.set_num_threads(1)
    if KINDS & set(os.environ):
        os.environ["ACCELERATE_USE_CPU"] = "true"
    options, adapter = ARMS[arm]
    tokenizer = make_tokenizer()
    args = make_config(
        folder / arm,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=2,
        num_generations=2,
        max_steps=2,
        optim="sgd",
        learning_rate=0.5,
        forecast=True,
        forecast_coef=0.5,
        shuffle_dataset=False,
        save_strategy="steps",
        save_steps=1,
        **options | more,
    )
    if KINDS & set(os.environ):
        assert args.device.type == "cpu"  # making the configuration has made the group
        del os.environ["ACCELERATE_USE_CPU"]
        zero = "ACCELERATE_USE_DEEPSPEED" in os.environ
        PartialState._shared_state["distributed_type"] = (
            DistributedType.DEEPSPEED if zero else DistributedType.MULTI_GPU
        )
    trainer = CoPETrainer(
        make_model(tokenizer),
        args,
        ["door", "key", "open", "look"],
        make_env=ToyEnv,
        system_prompt="Play.",
        processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.train(resume_from_checkpoint=str(folder / arm / "checkpoint-1") if resume else None)
    parts = [_whole(p) for p in trainer.model.parameters()]
    rank = trainer.accelerator.process_index
    name = f"rank{rank}{'-resumed' if resume else ''}.pt"
    torch.save(torch.cat([part.flatten() for part in parts]), folder / arm / name)
    some = next(trainer.model.parameters())
    assert hasattr(some, "full_tensor") == ("ACCELERATE_USE_FSDP" in os.environ)
    assert hasattr(some, "ds_id") == (os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3")
    if arm == "lora":
        base = {name: _whole(p) for name, p in trainer.model.named_parameters()}
        merged = {name: weights.clone() for name, weights in merged_parameters(trainer.model)}
        assert all(torch.equal(_whole(p), base[name]) for name, p in trainer.model.named_parameters())
        torch.save(merged, folder / arm / f"merged{rank}.pt")
    if not resume:
        trainer.save_model(str(folder / arm / "model"))


def _whole(weights: torch.nn.Parameter) -> torch.Tensor:
    """A copy of all of it."""
    with gathered(weights):
        return (weights.full_tensor() if isinstance(weights, DTensor) else weights).detach().clone()


if __name__ == "__main__":
    gc.freeze()  # trainers collect garbage at every start
    os.environ |= SHARDED
    base = Path(sys.argv[1])
    for name in ARMS:
        train(base, rows=2, arm=name)
    train(base, rows=2, arm="packed", resume=True)
