"""Two processes train what one process trains, also when one of them has no anchor and the other has forty."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripted import FULL, train
from two_ranks import GROUPS

pytestmark = [pytest.mark.train, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("two_ranks.py")


def launch(mode: str, folder: Path) -> list[dict]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), mode, str(folder)],
            env=common | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [torch.load(folder / f"rank{r}.pt") for r in range(2)]


@pytest.mark.parametrize("mode", ["packed", "unpacked", "separate"])
def test_no_anchor_against_forty(tmp_path, mode):
    first, second = launch(mode, tmp_path)
    assert all(torch.equal(first["weights"][n], second["weights"][n]) for n in first["weights"])
    changes = {"max_steps": 2, **FULL}
    if mode == "separate":
        changes |= {"forecast_separate_step": True, "ensemble": False, "observation_coef": 0.0}
    alone, log, _ = train(tmp_path, groups=GROUPS, **changes)
    for name, value in alone.items():
        assert torch.allclose(first["weights"][name], value, atol=5e-5), name
    for name in ("forecast/loss", "forecast/samples_per_episode", "ensemble/kl", "ensemble/covered_share"):
        if name in log[0]:
            assert first["log"][0][name] == pytest.approx(log[0][name], abs=1e-3), name
