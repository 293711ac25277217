"""Two ranks co-evolve what one does, where one has a whole source and the other nothing but a failed episode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.train, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("skill_ranks_script.py")


def run(folder: Path, ranks: int, rows: int, loss_type: str) -> list[dict[str, Any]]:
    folder.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*launch, str(SCRIPT), str(folder), str(rows), loss_type]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]


def test_ranks_with_unequal_episodes_and_failed_cells_change_nothing(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    [alone] = run(tmp_path / "one", 1, rows=16, loss_type="grpo")
    first, second = run(tmp_path / "two", 2, rows=8, loss_type="grpo")
    # What the first step looked like: a source that failed at once, and one of whose cells a column is missing.
    assert [len(rank["played"][0]) for rank in (first, second)] == [1 + 2 + 3 + 6, 1]
    assert second["played"][0][0]["failed"]
    failed = [episode["tag"] for episode in first["played"][0] if episode["failed"]]
    assert [tag for tag in failed if tag[0] == "solve"] and len(failed) < 6
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-4, atol=1e-5)
