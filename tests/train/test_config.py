"""Configuration files, and one clear sentence for what does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from toy import ToyEnv, make_config, make_model, make_tokenizer
from trl import GRPOTrainer
from trl.generation import vllm_generation

from cope_gym.errors import InputError
from cope_gym.evaluate import panels
from cope_train import config_file
from cope_train.cli import arguments
from cope_train.generation import check_backend
from cope_train.models import resolve
from cope_train.train import STAGES, parse, stage_of
from cope_train.trainer import CoPETrainer
from cope_train.trl_adapter import CONTRACT, check_contract, engine_options

pytestmark = pytest.mark.train
ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ("sciworld", "alfworld", "webshop", "appworld", "tau2")


@pytest.mark.parametrize("name", config_file.shipped())
def test_shipped_configurations_are_valid(name: str, tmp_path: Path) -> None:
    # Without a GPU, TRL refuses bf16 and vLLM is not asked for.
    line = ["--config", name, "--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu", "true"]
    processes = 1 if "paper" not in name else 8 if name.startswith("appworld") or "evolving" in name else 4
    args, model = parse(line, processes)
    assert args.environment == name.split("/")[0] and model.model_name_or_path
    for key, value in config_file.read(config_file.find(name)).items():
        if isinstance(value, int | float) and hasattr(args, key) and key != "bf16":
            assert getattr(args, key) == value
    if "paper" in name and "evolving" not in name:
        assert args.generation_batch_size == (160 if args.environment == "tau2" else 128)
    assert args.forecast_separate_step == name.endswith("cope_paper")
    assert all(panels.load(panel).env == args.environment for panel in args.eval_panel or [])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/gpu").glob("*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_experiments_are_valid(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = ["--config", str(path), "--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu", "true"]
    args, _ = parse(line, kind=STAGES[stage_of(line)])
    if path.stem == "arm":
        assert args.environment == path.parent.name and Path(args.system_prompt).is_file()
        played = [panels.load(panel) for panel in args.eval_panel]
        assert sum(len(panel.task_ids) for panel in played) * args.eval_samples >= 256
        trained = panels.load(args.train_panel) if args.train_panel else None
        assert all(panel.env == args.environment for panel in [*played, *([trained] if trained else [])])
        assert trained is None or not set(trained.task_ids) & {task for panel in played for task in panel.task_ids}


def test_panels_are_one_or_several(tmp_path: Path) -> None:
    line = ["--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu", "true"]
    several = ["alfworld_valid_seen", "alfworld_valid_unseen"]
    for given, expected in (("sciworld_dev", ["sciworld_dev"]), (several, several)):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({"eval_panel": given}))
        assert parse(["--config", str(tmp_path / "run.yaml"), *line])[0].eval_panel == expected
    assert parse([*line, "--eval_panel", *several])[0].eval_panel == several


def test_every_environment_has_its_presets() -> None:
    for environment in ENVIRONMENTS:
        for kind in ("grpo", "cope", "evolving", "grpo_paper", "cope_paper"):
            assert f"{environment}/{kind}" in config_file.shipped()


@pytest.mark.parametrize(
    "path", sorted((config_file.FOLDER / "accelerate").glob("*.yaml")), ids=lambda path: path.stem
)
def test_accelerate_configurations_load(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.distributed_type.value == {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(path.stem, "DEEPSPEED")
    if path.stem == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2


def test_files_extend_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("max_turns: 5\nreward: score\n")
    (tmp_path / "run.yaml").write_text("extends: base.yaml\nmax_turns: 6\n")
    assert config_file.read(tmp_path / "run.yaml") == {"max_turns": 6, "reward": "score"}
    (tmp_path / "base.yaml").write_text("extends: run.yaml\n")
    with pytest.raises(InputError, match="extends itself"):
        config_file.read(tmp_path / "run.yaml")
    with pytest.raises(InputError, match="near: sciworld/grpo"):
        config_file.find("sciworld/grp")


def write(folder: Path, **options: object) -> list[str]:
    (folder / "run.yaml").write_text(yaml.safe_dump({"output_dir": str(folder), "bf16": False, **options}))
    return ["--config", str(folder / "run.yaml")]


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    line = write(
        tmp_path, model_name_or_path="quickstart", max_turns=5, environment_options={"simplifications": "easy"}
    )
    args, _ = parse([*line, *arguments(["max_turns=7", "forecast=true", "environment_options={}"])])
    assert args.max_turns == 7 and args.forecast and args.environment_options == {}
    assert args.max_completion_length == args.max_episode_tokens


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learning_rte": 1}, "no option 'learning_rte'; did you mean 'learning_rate'"),
        ({"reward": "wins"}, "reward is one of success, score"),
        ({"forecast_gate": "loses"}, "gate must be one of"),
        ({"max_failed_share": 0}, "max_failed_share lies in"),
        ({"num_generations": 3, "per_device_train_batch_size": 4}, "must be divisible by num_generations"),
        ({"max_turns": "many"}, "the configuration does not fit"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        parse(write(tmp_path, **options))
    assert "\n" not in str(error.value)


def test_options_written_as_for_the_script_say_how_they_are_written_here() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cope_gym", "train", "any.yaml", "--max_steps", "3"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "write max_steps=VALUE, not --max_steps" in done.stderr, done.stderr


def test_missing_files_and_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no configuration file"):
        parse(["--config", str(tmp_path / "absent.yaml")])
    with pytest.raises(InputError, match=r"no model folder: it has no config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(InputError, match="not KEY=VALUE"):
        arguments(["max_turns"])
    assert resolve("some/hub-id") == "some/hub-id"


def test_fewer_tasks_than_a_rollout_takes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(InputError, match="one rollout takes 2 tasks .* but there are 1"):
        CoPETrainer(
            make_model(tokenizer),
            make_config(tmp_path),
            ["door"],
            make_env=ToyEnv,
            system_prompt="Play.",
            processing_class=tokenizer,
        )


def test_tensor_parallel_colocation_is_refused(tmp_path: Path) -> None:
    args = make_config(tmp_path)
    args.use_vllm, args.vllm_mode, args.vllm_tensor_parallel_size = True, "colocate", 2
    with pytest.raises(InputError, match="vllm_mode to server"):
        check_backend(args)


def test_engine_options_without_an_engine_are_refused(tmp_path: Path) -> None:
    args = make_config(tmp_path, vllm_engine_options={"enforce_eager": True})
    with pytest.raises(InputError, match="vllm_mode colocate"):
        check_backend(args)
    args.use_vllm, args.vllm_mode = True, "colocate"
    check_backend(args)
    with pytest.raises(InputError, match="vllm_engine_options is a mapping"):
        make_config(tmp_path, vllm_engine_options="eager")


def test_engine_options_go_over_those_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_generation, "LLM", dict, raising=False)
    with engine_options({"max_num_seqs": 4, "enforce_eager": True}):
        assert vllm_generation.LLM(model="m", max_num_seqs=8) == {
            "model": "m",
            "max_num_seqs": 4,
            "enforce_eager": True,
        }
    assert vllm_generation.LLM is dict


def test_runs_that_start_together_get_ports_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = make_config(tmp_path)
    args.use_vllm, args.vllm_mode = True, "colocate"
    monkeypatch.setenv("MASTER_PORT", "0")
    check_backend(args)
    chosen = os.environ["MASTER_PORT"]
    assert int(chosen) not in (0, 29500, 23456, 12355, 12345)  # TRL's candidates
    check_backend(args)
    assert os.environ["MASTER_PORT"] == chosen  # a launcher's port is kept


def test_this_trl_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    check_contract()
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs, extra: None)
    with pytest.raises(InputError, match="another `GRPOTrainer._compute_loss`"):
        check_contract()
    for name in ("_metrics", "_buffered_inputs", "_step", "_last_loaded_step", "_dist"):
        assert f"self.{name}" in Path(GRPOTrainer.__init__.__code__.co_filename).read_text(), name
    assert set(CONTRACT) >= {"_generate_and_score_completions", "_compute_loss", "training_step"}
