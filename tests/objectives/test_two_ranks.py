"""Two processes train what one process trains, also when one of them has no anchor and the other has forty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_ranks import loss_of
from objectives_kit import tiny_model
from ranks_kit import launch
from scripted import train
from two_ranks import GROUPS, MODES

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two ranks saved. One launch for everything, because starting takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    launch(Path(__file__).with_name("two_ranks.py"), folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


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


def test_packed_forward_under_fsdp2(ranks):
    for kind, sharded in ranks[0]["fsdp2"].items():
        model = tiny_model(kind)
        loss = loss_of(model)
        loss.backward()
        assert sharded["loss"] == pytest.approx(loss.item(), abs=1e-6)
        for name, parameter in model.named_parameters():
            assert torch.allclose(sharded["gradients"][name], parameter.grad, atol=1e-5), (kind, name)
