"""`cope train`: the training script for one process."""

from __future__ import annotations

from typing import Annotated

import typer

from cope_gym.errors import InputError


def train(
    config: Annotated[str, typer.Argument(help="YAML file with the options of the run.")] = "",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options that replace those of the file.", metavar="[KEY=VALUE]...")
    ] = None,
    options: Annotated[bool, typer.Option("--options", help="List every option and leave.")] = False,
) -> None:
    """Train a policy, e.g. `cope train cope_train/configs/sciworld/quick.yaml learning_rate=1e-5`.

    For several processes: `accelerate launch cope_train/train.py --config FILE --KEY VALUE`.
    """
    try:
        from cope_train import train as script  # torch and trl are loaded only when something is trained
    except ModuleNotFoundError as error:
        raise InputError(
            f"`cope train` needs {error.name}: run `pip install 'cope-gym[train]'`.", type="no_extra"
        ) from error
    if options:
        script.print_options()
    elif not config:
        raise InputError("name a configuration file: cope train FILE [KEY=VALUE]...", type="bad_option")
    else:
        script.train(["--config", config, *arguments(overrides or [])])


def arguments(overrides: list[str]) -> list[str]:
    """Turns KEY=VALUE into the script's `--KEY VALUE`.

    Raises:
        InputError: A word without `=`.
    """
    result: list[str] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise InputError(f"'{override}' is not KEY=VALUE", type="bad_option")
        result += [f"--{key}", value]
    return result
