"""Trains from a YAML file.

    accelerate launch cope_train/train.py --config cope_train/configs/sciworld/quick.yaml [--learning_rate 1e-5 …]

Everything in the file can be overridden on the command line. `cope train` is the same for one process. With
`stage: sft` (or `--stage sft`) recorded episodes are cloned, with the options of `cope_train/sft.py`.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentError
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

import cope_gym
from cope_gym.errors import InputError
from cope_gym.evaluate import panels
from cope_train import config_file, variables
from cope_train.config import CoPEConfig
from cope_train.model_card import named
from cope_train.models import is_adapter, resolve, trainable_adapter
from cope_train.run_folder import refuse_used
from cope_train.sft import CloneConfig, CloneTrainer, run
from cope_train.skills.trainer import SkillTrainer
from cope_train.trainer import CoPETrainer

STAGES = {"rl": CoPEConfig, "sft": CloneConfig}


def print_options(stage: str = "rl") -> None:
    """Prints every option of a run."""
    TrlParser((_kind(stage), ModelConfig), prog="cope train FILE").print_help()


def stage_of(arguments: list[str]) -> str:
    """Returns what the command line or else the file says of the stage, by default `rl`."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    said = dict(zip(words, words[1:], strict=False))
    config = config_file.read(config_file.find(said["--config"])) if "--config" in said else {}
    return str(said.get("--stage", config.get("stage", "rl")))


def _kind(stage: str) -> Any:
    if stage not in STAGES:
        raise InputError(f"stage is one of {', '.join(STAGES)}, not '{stage}'", type="bad_option")
    return STAGES[stage]


def parse(arguments: list[str], processes: int | None = None, kind: Any = CoPEConfig) -> tuple[Any, ModelConfig]:
    """Reads the configuration file and the command line.

    Args:
        arguments: `--config FILE` and `--key value`.
        processes: Number of processes that the run will have, where this is not one of them.
        kind: Dataclass with the options of the stage.

    Raises:
        InputError: A key that does not exist, a file that does not, or a value of the wrong kind.
    """
    rest = list(arguments)
    config: dict[str, Any] = {}
    if "--config" in rest:
        at = rest.index("--config")
        config = config_file.read(config_file.find(rest[at + 1]))
        del rest[at : at + 2]
    os.environ.update({name: str(value) for name, value in config.pop("env", {}).items()})
    kind = kind if processes is None else _planned(processes)
    parser = TrlParser((kind, ModelConfig), exit_on_error=False)
    _check_keys([*config, *_line_keys(rest)], {action.dest for action in parser._actions})
    try:
        parser.set_defaults_with_config(**config)
        return parser.parse_args_into_dataclasses(args=rest)
    except (ValueError, TypeError, ArgumentError) as error:
        hint = "; without a GPU set use_cpu=true bf16=false" if "bf16" in str(error) else ""
        raise InputError(f"the configuration does not fit: {error}{hint}", type="bad_option") from error


def _planned(processes: int) -> type[CoPEConfig]:
    """A configuration that is checked for a run of several processes, from outside it."""
    return type("CoPEConfig", (CoPEConfig,), {"world_size": property(lambda _: processes), "__module__": __name__})


def _line_keys(arguments: list[str]) -> list[str]:
    return [argument[2:].split("=")[0].replace("-", "_") for argument in arguments if argument.startswith("--")]


def _check_keys(keys: list[str], known: set[str]) -> None:
    for key in keys:
        if key not in known and key.removeprefix("no_") not in known:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else "; `cope train --options` lists them all"
            raise InputError(f"there is no option '{key}'{hint}", type="bad_option")


def select_tasks(args: CoPEConfig) -> list[str]:
    """Returns the ids of the tasks to train on; a panel's split and options become those of the run.

    Raises:
        InputError: A category that does not exist, or a panel of another environment.
    """
    if args.train_panel:
        panel = panels.load(args.train_panel)
        if panel.env != args.environment:
            raise InputError(f"train_panel is of {panel.env}, the run of {args.environment}", type="bad_option")
        args.split, args.environment_options = panel.split, {**panel.options, **args.environment_options}
        return list(panel.task_ids[: args.max_tasks])
    infos = cope_gym.tasks(args.environment, args.split, base_url=args.base_url).infos
    categories = list(dict.fromkeys(info.category for info in infos))
    for wanted in args.task_categories or []:
        if wanted not in categories:
            near = get_close_matches(wanted, categories, 3) or categories[:10]
            raise InputError(
                f"{args.environment} has no task category '{wanted}'; near: {', '.join(near)}", type="unknown_task"
            )
    chosen = args.task_categories or categories
    by_category = {name: [info.id for info in infos if info.category == name] for name in chosen}
    return [task for ids in by_category.values() for task in ids[: args.max_tasks]]


def build(args: CoPEConfig, model_args: ModelConfig, **kwargs: Any) -> CoPETrainer:
    """Makes the trainer of a configuration."""
    if not model_args.model_name_or_path:
        raise InputError("model_name_or_path: name a model: `quickstart`, a path or a Hub id", type="bad_option")
    args.model_init_kwargs = _model_kwargs(args, model_args)
    tasks = select_tasks(args)
    played = [panels.load(panel) for panel in args.eval_panel or []]
    name = resolve(model_args.model_name_or_path)
    model: Any = name
    peft_config, quantization = get_peft_config(model_args), get_quantization_config(model_args)
    if is_adapter(name):  # it goes on as it is: its rank and modules are its own
        kwargs.setdefault("processing_class", AutoTokenizer.from_pretrained(name))
        model = trainable_adapter(name, quantization_config=quantization, **args.model_init_kwargs)
        args.model_init_kwargs = peft_config = quantization = None
    kind = SkillTrainer if args.skills else CoPETrainer
    trainer = kind(
        model, args, tasks, panel=played, peft_config=peft_config, quantization_config=quantization, **kwargs
    )
    trainer.started_from = named(name) if is_adapter(name) else ""
    return trainer


def _model_kwargs(args: CoPEConfig, model_args: ModelConfig) -> dict[str, Any]:
    # TRL would load float32; beside vLLM that is twice what a LoRA policy needs.
    dtype = model_args.dtype or ("bfloat16" if model_args.use_peft else "float32")
    known: dict[str, Any] = {"dtype": dtype, "revision": model_args.model_revision}
    if model_args.attn_implementation:
        known["attn_implementation"] = model_args.attn_implementation
    return known | dict(args.model_init_kwargs or {})


def with_variables(arguments: list[str]) -> list[str]:
    """Puts CoPE's environment variables between the file and the command line."""
    at = arguments.index("--config") + 2 if "--config" in arguments else 0
    return [*arguments[:at], *variables.as_arguments(variables.overrides(os.environ)), *arguments[at:]]


def train(arguments: list[str]) -> CoPETrainer | CloneTrainer:
    """Trains, resuming from the run's last checkpoint when asked for by `resume_from_checkpoint`."""
    kind = _kind(stage_of(arguments))
    if kind is CloneConfig:
        return run(*parse(arguments, kind=kind))
    args, model_args = parse(with_variables(arguments))
    if args.process_index == 0:
        refuse_used(Path(args.output_dir), args.resume_from_checkpoint)
    trainer = build(args, model_args)
    resume = args.resume_from_checkpoint
    try:
        trainer.train(resume_from_checkpoint=True if resume in ("true", "True", True) else resume)
    except KeyboardInterrupt:
        if trainer.accelerator.is_main_process:
            print(_interrupted(trainer), file=sys.stderr)  # noqa: T201
        raise
    trainer.save_model()
    return trainer


def _interrupted(trainer: CoPETrainer) -> str:
    state, folder = trainer.state, trainer.args.output_dir
    last = get_last_checkpoint(folder) if Path(folder).is_dir() else None
    onwards = (
        f"The same command with resume_from_checkpoint=true goes on from {last}."
        if last
        else f"There is no checkpoint in {folder} yet: save_steps says when there will be one."
    )
    return f"\nInterrupted after step {state.global_step} of {state.max_steps}. {onwards}"


if __name__ == "__main__":
    try:
        train(sys.argv[1:])
    except cope_gym.CopeError as error:
        sys.exit(f"{error}")
