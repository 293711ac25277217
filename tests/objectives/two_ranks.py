"""What each of two processes runs in `test_two_ranks`: half the batch each, gloo, then its weights go to a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from scripted import FULL, script, train

# Rank 0 has nothing at all: no anchor, no target, no covered position. Rank 1 has 40 anchors.
GROUPS = {
    "a": [script(3, i, False, failed=True) for i in range(4)],
    "b": [script(10, i, i % 2 == 0) for i in range(4)],
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, out = sys.argv[1:]
    changes = {"per_device_train_batch_size": 4, "max_steps": 2, **FULL}
    if mode == "separate":
        changes |= {"forecast_separate_step": True, "ensemble": False, "observation_coef": 0.0}
    if mode == "unpacked":
        changes |= {"pack_branches": False, "branch_batch_size": 16}
    weights, log, trainer = train(out, groups=GROUPS, **changes)
    rank = os.environ.get("RANK", "0")
    torch.save({"weights": weights, "log": log}, Path(out) / f"rank{rank}.pt")
