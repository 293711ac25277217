"""What `test_sharded.py` runs where DeepSpeed is installed: the same with ZeRO as the shipped files set it up."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
import yaml
from sharded_script import ARMS, train

import cope_train
from cope_gym.errors import InputError

STAGES = (2, 3)
SHIPPED = Path(cope_train.__file__).parent / "configs/accelerate"


def environment(stage: int) -> dict[str, str]:
    """What `accelerate launch` sets for a stage's file."""
    plugin = yaml.safe_load((SHIPPED / f"zero{stage}.yaml").read_text())["deepspeed_config"]
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(plugin["zero_stage"]),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(plugin["zero3_init_flag"]).lower(),
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": str(plugin.get("zero3_save_16bit_model", False)).lower(),
    }


if __name__ == "__main__":
    gc.freeze()  # trainers collect garbage at every start
    os.environ["DS_ACCELERATOR"] = "cpu"
    for stage in STAGES:
        os.environ |= environment(stage)
        base = Path(sys.argv[1]) / f"zero{stage}"
        for name in ARMS:
            train(base, rows=2, arm=name)
        train(base, rows=2, arm="packed", resume=True)
        with pytest.raises(InputError, match="forecast_separate_step is not possible with DeepSpeed"):
            train(base / "separate", rows=2, arm="lora", forecast_separate_step=True)
