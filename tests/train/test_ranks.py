"""Two ranks learn what one rank learns from the same episodes, failed ones among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.train, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("ranks_script.py")


def run(folder: Path, ranks: int, rows: int, accumulated: int, loss_type: str) -> list[torch.Tensor]:
    folder.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*launch, str(SCRIPT), str(folder), str(rows), str(accumulated), loss_type]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_ranks_and_accumulation_change_nothing(loss_type: str, tmp_path: Path) -> None:
    [alone] = run(tmp_path / "one", 1, rows=8, accumulated=1, loss_type=loss_type)
    first, second = run(tmp_path / "two", 2, rows=2, accumulated=2, loss_type=loss_type)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, rtol=1e-4, atol=1e-5)
