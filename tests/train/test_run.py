"""What a run writes, evaluates and resumes, on the text world."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.evaluate.panels import Panel
from cope_train.run_folder import read_metrics
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train
TASKS = ["door", "key", "open", "look"]
PANEL = Panel("toy", "test", "train", ("door", "key", "take")).sealed()


def trainer(folder: Path, panel: Panel | list[Panel] = PANEL, **options: Any) -> CoPETrainer:
    tokenizer = make_tokenizer()
    return CoPETrainer(
        make_model(tokenizer),
        make_config(folder, **options),
        TASKS,
        panel=panel,
        make_env=ToyEnv,
        system_prompt="Play.",
        processing_class=tokenizer,
    )


def test_a_run_writes_metrics_trajectories_and_evaluations(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=2, forecast=True, forecast_coef=0.5, eval_strategy="steps", eval_steps=1)
    run.train()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    for name in (
        "episodes/success",
        "episodes/turns",
        "turns/invalid",
        "seconds/generate",
        "rollout/polls",
        "seconds/update",
        "grad_norm",
    ):
        assert all(isinstance(line[name], float) for line in steps), name
    assert steps[0]["forecast/samples_per_episode"] > 0 and steps[0]["forecast/loss"] > 0

    episodes = list(trajectory.read(tmp_path / "trajectories" / "step_000000.jsonl"))
    assert len(episodes) == 8
    for episode in episodes:
        assert episode.tokens is not None
        lengths = {len(values) for values in episode.tokens.values()}
        assert len(lengths) == 1
        shown = "".join(t for t, m in zip(episode.tokens["text"], episode.tokens["mask"], strict=True) if m)
        assert all(turn.action in shown or "\ufffd" in turn.action for turn in episode.turns)
        assert sum(episode.tokens["mask"]) == sum(turn.tokens for turn in episode.turns)
        assert any(episode.tokens["forecast"]) == episode.success

    for step in (1, 2):
        result = json.loads((tmp_path / "evaluations" / f"step_{step:06d}" / "result.json").read_text())
        assert result["complete"] and result["episodes"] == 3
        played = list(trajectory.read(tmp_path / "evaluations" / f"step_{step:06d}" / "trajectories.jsonl"))
        assert [e.task_id for e in played] == list(PANEL.task_ids)
    logged = [line for line in lines if "eval_success" in line]
    assert [line["step"] for line in logged] == [1, 2] and 0 <= logged[0]["eval_score"] <= 1


def test_several_panels_have_folders_and_numbers_of_their_own(tmp_path: Path) -> None:
    other = Panel("toy", "unseen", "other", ("take",)).sealed()
    run = trainer(tmp_path, panel=[PANEL, other], max_steps=2, eval_strategy="steps", eval_steps=1)
    run.train()
    logged = [line for line in read_metrics(tmp_path / "metrics.jsonl") if "eval_test_success" in line]
    assert [line["step"] for line in logged] == [1, 2] and all("eval_unseen_success" in line for line in logged)
    assert not any("eval_success" in line for line in logged)
    for step, panel in itertools.product((1, 2), (PANEL, other)):
        folder = tmp_path / "evaluations" / f"step_{step:06d}_{panel.name}"
        played = list(trajectory.read(folder / "trajectories.jsonl"))
        assert [e.task_id for e in played] == list(panel.task_ids)
        assert json.loads((folder / "result.json").read_text())["panel"]["digest"] == panel.digest
    with pytest.raises(InputError, match="same name"):
        trainer(tmp_path / "twice", panel=[PANEL, PANEL])


def test_evaluation_changes_nothing_in_training(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "a", max_steps=2)
    plain.train()
    evaluated = trainer(tmp_path / "b", max_steps=2, eval_strategy="steps", eval_steps=1)
    evaluated.train()
    for a, b in zip(plain.model.parameters(), evaluated.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "forecast": True, "forecast_coef": 0.5}
    whole = trainer(tmp_path / "whole", max_steps=4, **options)
    whole.train()
    first = trainer(tmp_path / "cut", max_steps=4, **options)
    first.args.max_steps = 2
    first.train()
    second = trainer(tmp_path / "cut", max_steps=4, **options)
    second.train(resume_from_checkpoint=True)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    merged = [line["step"] for line in read_metrics(tmp_path / "cut" / "metrics.jsonl") if "loss" in line]
    assert merged == [1, 2, 3, 4]
    for step in range(4):
        ours, theirs = (
            [e.to_json() for e in trajectory.read(tmp_path / run / "trajectories" / f"step_{step:06d}.jsonl")]
            for run in ("whole", "cut")
        )
        assert ours == theirs
