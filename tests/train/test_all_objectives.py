"""All objectives and rewards at once on episodes that were really sampled, through `CoPETrainer`."""

from __future__ import annotations

import json

import pytest
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train


def test_everything_on(tmp_path):
    tokenizer = make_tokenizer()
    args = make_config(
        tmp_path,
        forecast=True,
        forecast_coef=0.1,
        forecast_gate="all",
        ensemble=True,
        ensemble_coef=0.1,
        observation_coef=0.05,
        idea_rewards=["forecast_reward", "ensemble_reward"],
        reward_weights=[1.0, 0.1, 0.1],
        gradient_share_steps=1,
        learning_rate=1e-3,
        max_steps=2,
    )
    trainer = CoPETrainer(
        make_model(tokenizer),
        args,
        ["door", "key", "open", "look"],
        make_env=ToyEnv,
        system_prompt="Play.",
        processing_class=tokenizer,
    )
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 2
    for line in steps:
        assert (
            line["ensemble/covered_share"] > 0.3
            and line["ensemble/kl"] >= 0
            and line["ensemble/mismatched_share"] == 0
        )
        assert line["forecast/loss"] > 0 and line["observation/loss"] > 0 and line["packing/unpacked_share"] == 0
        assert 0 <= line["forecast/exact_age0"] <= 1 and line["turns/other_format"] == 0
        assert (
            abs(sum(line[f"gradient_share/{t}"] for t in ("policy", "forecast", "ensemble", "observation")) - 1) < 1e-3
        )
        assert "rewards/forecast_reward/mean" in line and "rewards/ensemble_reward/mean" in line
