"""The ideas as rewards: what they pay, and that success is a condition."""

from __future__ import annotations

import math

import pytest
import torch
from objectives_kit import tiny_model
from scripted import CHAT, GROUPS, train

from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.rewards import ensemble_reward, forecast_reward

LOG_HALF = math.log(0.5)


def test_forecast_reward_by_hand():
    turns = [torch.tensor([LOG_HALF, LOG_HALF]), torch.tensor([[0.0], [2 * LOG_HALF]])]
    assert forecast_reward(True, turns) == pytest.approx((0.5 + 0.5) / 2)
    assert forecast_reward(False, turns) == 0.0 and forecast_reward(True, []) == 0.0


def test_ensemble_reward_by_hand():
    assert ensemble_reward(True, torch.tensor([0.2, 0.4])) == pytest.approx(0.3)
    assert ensemble_reward(True, torch.tensor([5.0])) == 1.0 and ensemble_reward(True, torch.tensor([-5.0])) == -1.0
    assert ensemble_reward(False, torch.tensor([0.5])) == 0.0 and ensemble_reward(True, torch.tensor([])) == 0.0


def expected_rewards(temperature):
    """From the definitions, one sequence at a time."""
    model = tiny_model().double()
    found = {"forecast_reward": [], "ensemble_reward": []}
    for record in (r for group in GROUPS.values() for r in group if not r.failed):
        members, cold = {}, {}
        for branch in build_branches(record, CHAT, BranchOptions()):
            ids = record.ids[: branch.prefix_end] + branch.ids
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            for slot in (s for s in branch.slots if s.turn > branch.turn):
                at = branch.prefix_end + slot.action_start
                rows = logits[at - 1 : at - 1 + slot.action_end - slot.action_start]
                tokens = torch.tensor(ids[at : at + len(rows)])[:, None]
                cold.setdefault(slot.turn, []).append(rows.log_softmax(-1).gather(-1, tokens)[:, 0])
                members.setdefault(slot.turn, []).append((rows / temperature).softmax(-1).gather(-1, tokens)[:, 0])
        hot = (model(input_ids=torch.tensor([record.ids])).logits[0] / temperature).log_softmax(-1)
        gains = []
        for turn in record.turns:
            if turn.index in members:
                tokens = torch.tensor(record.ids[turn.action_start : turn.action_end])[:, None]
                log_pi = hot[turn.action_start - 1 : turn.action_end - 1].gather(-1, tokens)[:, 0]
                gains.append(torch.stack(members[turn.index]).mean(0).log() - log_pi)
        found["forecast_reward"].append(forecast_reward(record.success, [torch.cat(v) for v in cold.values()]))
        found["ensemble_reward"].append(ensemble_reward(record.success, torch.cat(gains) if gains else torch.zeros(0)))
    return {name: sum(values) / len(values) for name, values in found.items()}


@pytest.mark.train
@pytest.mark.parametrize("packed", [True, False])
def test_bound_to_a_trainer(tmp_path, packed):
    ideas = ("forecast_reward", "ensemble_reward")
    _, log, _ = train(tmp_path, ideas=ideas, pack_branches=packed, per_device_train_batch_size=8)
    for name, value in expected_rewards(0.8).items():
        assert abs(value) > 1e-5
        assert log[0][f"rewards/{name}/mean"] == pytest.approx(value, rel=2e-3), name
