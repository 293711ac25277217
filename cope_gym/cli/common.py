"""What the commands share: consoles, options, pairs of key and value."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Env = Annotated[str, typer.Argument(metavar="ENV", help="Environment, e.g. sciworld; `cope envs` lists them.")]
BaseUrl = Annotated[str | None, typer.Option(help="Server; by default $COPE_BASE_URL, else a local one is started.")]
Split = Annotated[str | None, typer.Option(help="The benchmark's split; by default its training split.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of the benchmark; again for more.")
]
FirstChars = Annotated[int | None, typer.Option(min=1, help="Where the first observation is cut.")]
LaterChars = Annotated[int | None, typer.Option(min=1, help="Where later observations are cut.")]


def complain(sentence: str) -> None:
    """Says on stderr what is wrong."""
    err.print(sentence, style="red", markup=False, soft_wrap=True)


def progress() -> Progress:
    """Returns a progress bar on stderr, so that stdout stays what was asked for."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err)


def waiting(what: str) -> Status:
    """Returns a spinner for what may take a while, e.g. the start of a local server."""
    return err.status(what)
