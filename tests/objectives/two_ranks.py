"""What each of two processes runs in `test_two_ranks`: half the batch each, gloo, then its weights go to a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from fsdp_ranks import sharded
from scripted import FULL, script, train

# Rank 0 has nothing at all: no anchor, no target, no covered position. Rank 1 has 40 anchors.
GROUPS = {
    "a": [script(3, i, False, failed=True) for i in range(4)],
    "b": [script(10, i, i % 2 == 0) for i in range(4)],
}

MODES = {
    "packed": FULL | {"max_steps": 2},
    "unpacked": FULL | {"pack_branches": False, "branch_batch_size": 16},
    "separate": FULL | {"forecast_separate_step": True, "ensemble": False, "observation_coef": 0.0},
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = {}
    for mode, changes in MODES.items():
        weights, log, _ = train(folder, groups=GROUPS, per_device_train_batch_size=4, **changes)
        results[mode] = {"weights": weights, "log": log}
    results["fsdp2"] = sharded()  # in the group that the trainers have made
    torch.save(results, folder / f"rank{os.environ['RANK']}.pt")
