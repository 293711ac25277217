"""`cope train`: the training script for one process. `cope launch`: a whole run, servers included."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from cope_gym.errors import InputError


def train(
    config: Annotated[str, typer.Argument(help="YAML file with the options of the run.")] = "",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options that replace those of the file.", metavar="[KEY=VALUE]...")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="rl, or sft: clone recorded episodes; by default what the file says, else rl.")
    ] = None,
    options: Annotated[bool, typer.Option("--options", help="List every option and leave.")] = False,
) -> None:
    """Train a policy, e.g. `cope train cope_train/configs/sciworld/quick.yaml learning_rate=1e-5`.

    For several processes: `accelerate launch cope_train/train.py --config FILE --KEY VALUE`.
    """
    words = arguments(overrides or [])  # what is wrong with them is said before torch is imported
    if not config and not options:
        raise InputError("name a configuration file: cope train FILE [KEY=VALUE]...", type="bad_option")
    script: Any = _load("train", "cope_train.train")
    if options:
        script.print_options(stage or "rl")
    else:
        chosen = ["--stage", stage] if stage else []
        script.train(["--config", config, *chosen, *words])


def launch(
    config: Annotated[str, typer.Argument(help="A shipped configuration, e.g. sciworld/cope, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options that replace those of the file.", metavar="[KEY=VALUE]...")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Run in runs/NAME; a run of that name goes on.", envvar="EXP_NAME")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to go on with a run that has begun.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Training processes, one a GPU.")] = 1,
    accelerate: Annotated[
        str | None, typer.Option(help="ddp, fsdp2, zero2, zero3, or a file of `accelerate config`.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the server; 0 takes a free one.", envvar="BASE_PORT")
    ] = 0,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="Most worker processes of the server.", envvar="NUM_ENVS")
    ] = None,
    secrets: Annotated[Path, typer.Option(help="Folder with secrets, one a file.")] = Path(".secrets"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, print the resolved configuration, and leave.", envvar="DRY_RUN")
    ] = False,
    tmux: Annotated[bool, typer.Option("--tmux", help="Run in a tmux session of its own.")] = False,
) -> None:
    """Start servers, train, and clear up: `cope launch sciworld/cope learning_rate=2e-5 --name first`."""
    words = arguments(overrides or [])
    script: Any = _load("launch", "cope_train.launch")
    order = script.Order(config, words, name, fresh, processes, accelerate, port, max_workers, secrets)
    if dry_run:
        typer.echo(script.describe(script.plan(order)), nl=False)
    elif tmux:
        line = [word for word in sys.argv[1:] if word != "--tmux"]
        session = script.in_tmux(script.plan(order), line[line.index("launch") + 1 :])
        typer.echo(f"started: tmux attach -t {session}")
    else:
        raise typer.Exit(script.launch(order))


# Who writes `--max_steps 3`, as for the script, is told how it is written here; Click would only call it unknown.
train.context_settings = launch.context_settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]


def bench_objectives(
    turns: Annotated[
        list[int] | None, typer.Option(help="Turns an episode; again for more. Default: 5 10 20 40.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="stock, packed, unpacked; again for more. Default: all.")
    ] = None,
    shape: Annotated[str, typer.Option(help="Shape of the model: tiny, 135m, 1.5b, 7b.")] = "135m",
    batch: Annotated[int, typer.Option(min=1, help="Episodes of the micro-batch.")] = 8,
    horizon: Annotated[int, typer.Option(min=1, help="K, actions a forecast.")] = 3,
    vary: Annotated[float, typer.Option(min=0, max=1, help="Spread of episode lengths.")] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes; the median counts.")] = 5,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="With gradient checkpointing.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda where there is one, else cpu.")] = None,
    turn_tokens: Annotated[int, typer.Option(min=20, help="Tokens a turn.")] = 60,
    lora: Annotated[int, typer.Option(min=0, help="Rank of an adapter on all linear layers; 0: all weights.")] = 0,
    json: Annotated[Path | None, typer.Option(help="File for the results.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of seconds, memory and ratio over turns.")] = None,
) -> None:
    """What forecasting and temporal ensemble cost: update time and memory against TRL's fused head."""
    script: Any = _load("bench objectives", "cope_train.bench_objectives")
    results = script.run(
        script.Setting(
            turns or [5, 10, 20, 40],
            arm or ["stock", "packed", "unpacked"],
            shape,
            batch,
            horizon,
            vary,
            repeats,
            checkpointing,
            device,
            turn_tokens,
            lora,
        ),
        json,
    )
    if plot:
        script.draw(results, plot)


def _load(command: str, module: str) -> Any:
    """Imports what needs torch and trl, when it is needed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"`cope {command}` needs {error.name}: run `pip install 'cope-gym[train]'`.", type="no_extra"
        ) from error


def arguments(overrides: list[str]) -> list[str]:
    """Turns KEY=VALUE into the script's `--KEY VALUE`.

    Raises:
        InputError: A word without `=`, or one with dashes, as the script takes them.
    """
    result: list[str] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if key.startswith("-"):
            name = key.lstrip("-")
            raise InputError(
                f"write {name}={value or 'VALUE'}, not {override}: here options are KEY=VALUE", type="bad_option"
            )
        if not equals:
            raise InputError(f"'{override}' is not KEY=VALUE", type="bad_option")
        result += [f"--{key}", value]
    return result
