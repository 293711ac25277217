"""Two processes train what one process trains, also when one of them has no anchor and the other has forty."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fsdp_ranks import loss_of
from objectives_kit import tiny_model
from scripted import train
from two_ranks import GROUPS, MODES

pytestmark = [pytest.mark.train, pytest.mark.slow]


def launch(script: str, folder: Path) -> list[dict]:
    """Runs a script in two processes and returns what each of them saved."""
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
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), str(folder)],
            env=common | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=500)[0] for rank in processes]
    finally:
        for rank in processes:
            rank.kill()
    assert [rank.returncode for rank in processes] == [0, 0], outputs
    return [torch.load(folder / f"rank{r}.pt") for r in range(2)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """One launch for all modes, because starting takes longest."""
    return launch("two_ranks.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("mode", MODES)
def test_no_anchor_against_forty(tmp_path, ranks, mode):
    first, second = (rank[mode] for rank in ranks)
    assert all(torch.equal(first["weights"][n], second["weights"][n]) for n in first["weights"])
    alone, log, _ = train(tmp_path, groups=GROUPS, **MODES[mode])
    for name, value in alone.items():
        assert torch.allclose(first["weights"][name], value, atol=5e-5), name
    for name in ("forecast/loss", "forecast/samples_per_episode", "ensemble/kl", "ensemble/covered_share"):
        if name in log[0]:
            assert first["log"][0][name] == pytest.approx(log[0][name], abs=1e-3), name


def test_packed_forward_under_fsdp2(tmp_path):
    found = launch("fsdp_ranks.py", tmp_path)[0]
    for kind, sharded in found.items():
        model = tiny_model(kind)
        loss = loss_of(model)
        loss.backward()
        assert sharded["loss"] == pytest.approx(loss.item(), abs=1e-6)
        for name, parameter in model.named_parameters():
            assert torch.allclose(sharded["gradients"][name], parameter.grad, atol=1e-5), (kind, name)
