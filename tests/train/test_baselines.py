"""Every published baseline is a shipped configuration, and trains: as it is, but for its model, tasks and sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.evaluate.panels import Panel
from cope_train import train
from cope_train.cli import arguments
from cope_train.run_folder import read_metrics
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train

BASELINES = {  # what has to be logged where the baseline is more than GRPO
    "sciworld/grpo": (),
    "sciworld/grpo_paper": (),
    "sciworld/agentgym_rl_paper": (),
    "sciworld/scaling_inter_paper": (),
    "sciworld/cope": ("forecast/loss", "ensemble/covered_share"),
    "sciworld/cope_paper": ("forecast/loss",),
    "sciworld/evolving": ("skills/parsed",),
    "alfworld/evolving_paper": ("skills/parsed",),
}
SMALL = {
    "environment": "toy",
    "environment_options": "{}",
    "train_panel": "toy_tasks.json",
    "action_format": "plain",
    "eval_strategy": "no",
    "load_best_model_at_end": "false",
    "save_strategy": "no",
    "max_steps": "2",
    "max_turn_tokens": "8",
    "max_episode_tokens": "200",
    "steps_per_generation": "2",
    "gradient_accumulation_steps": "1",
    "learning_rate": "0.01",
    "dtype": "float32",
    "use_cpu": "true",
    "bf16": "false",
    "use_vllm": "false",
    "gradient_checkpointing": "false",
    "disable_tqdm": "true",
}
GROUPS = {"per_device_train_batch_size": "4", "num_generations": "4"}
SOURCE = {"per_device_train_batch_size": "3", "skill_count": "2", "skill_tasks": "2", "skill_encoder": "bm25"}


class Winnable(ToyEnv):
    """Won by about half the episodes of a random model."""

    def _info(self, valid: bool) -> dict[str, Any]:
        return super()._info(valid) | {"success": self.total > 0.08}


@pytest.mark.parametrize("name", BASELINES)
def test_a_published_baseline_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    tasks = ("box", "coin", "door", "key", "lamp")
    Path("toy_tasks.json").write_text(Panel("toy", "toy_tasks", "train", tasks).sealed().to_json())
    sizes = SMALL | (SOURCE if "evolving" in name else GROUPS)
    if "evolving" in name:
        pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    words = [f"{key}={value}" for key, value in (sizes | {"model_name_or_path": "tiny", "output_dir": "run"}).items()]
    args, model = train.parse(["--config", name, *arguments(words)])
    trainer = train.build(args, model, make_env=Winnable, system_prompt="Play.")
    before = {key: value.clone() for key, value in trainer.model.named_parameters() if value.requires_grad}
    trainer.train()
    steps = [line for line in read_metrics(Path("run/metrics.jsonl")) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    for metric in BASELINES[name]:
        assert any(metric in line for line in steps), (metric, sorted(steps[0]))
    after = dict(trainer.model.named_parameters())
    assert any(not torch.equal(after[key], value) for key, value in before.items())


def staged(folder: Path, **options: Any) -> CoPETrainer:
    tokenizer = make_tokenizer()
    return CoPETrainer(
        make_model(tokenizer),
        make_config(folder, turn_stages=[1, 2, 3], turn_stage_steps=2, max_steps=7, save_steps=1, **options),
        ["door", "key", "open", "look"],
        make_env=lambda: ToyEnv(steps=9),
        system_prompt="Play.",
        processing_class=tokenizer,
    )


def turns(folder: Path) -> list[int]:
    """The most turns that an episode had, step by step."""
    files = sorted((folder / "trajectories").glob("step_*.jsonl"))
    return [max(len(episode.turns) for episode in trajectory.read(file)) for file in files]


def test_turns_grow_with_the_step_and_a_run_that_goes_on_is_at_the_right_stage(tmp_path: Path) -> None:
    options = make_config(tmp_path, turn_stages=[10, 20, 30])
    assert [options.turns_at(step) for step in (0, 99, 100, 199, 200, 10_000)] == [10, 10, 20, 20, 30, 30]
    assert options.max_turns == 30  # evaluation has the last stage's
    run = staged(tmp_path, save_strategy="steps")
    run.args.max_steps = 2  # resumed where a stage begins
    run.train()
    again = staged(tmp_path, save_strategy="steps")
    again.args.max_steps = 5
    again.train(resume_from_checkpoint=True)
    staged(tmp_path).train(resume_from_checkpoint=True)  # and within one
    assert turns(tmp_path) == [1, 1, 2, 2, 3, 3, 3]
    assert json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())["global_step"] == 5


@pytest.mark.parametrize("options", [{"turn_stages": [10, 5]}, {"turn_stages": [0, 5]}, {"turn_stage_steps": 0}])
def test_stages_that_make_no_sense(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none is above the last"):
        make_config(tmp_path, **({"turn_stages": [1, 2]} | options))
