"""`cope install NAME` and `cope uninstall NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from env_servers.catalog import CATALOG
from env_servers.install import InstallError
from env_servers.install import install as build
from env_servers.install import uninstall as remove

_NAMES = ", ".join(CATALOG)


def install(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=f"Benchmarks: {_NAMES}.")],
    python: Annotated[str | None, typer.Option(help="Python to build with: a version, a command or a path.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build again even if it is there.")] = False,
    wheels: Annotated[
        Path | None,
        typer.Option(help="Folder with wheels that you trust: nothing is fetched, compiled or compared with hashes."),
    ] = None,
) -> None:
    """Install a benchmark into an environment of its own, outside this one."""
    console = Console(stderr=True)
    for name in names:
        try:
            path = _with_progress(console, name, python, force, wheels)
        except InstallError as error:
            console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        console.print(f"{CATALOG[name].title} is ready: {path.parents[1]}", highlight=False, soft_wrap=True)


def uninstall(name: Annotated[str, typer.Argument(help=f"One of: {_NAMES}.")]) -> None:
    """Remove a benchmark's environments; downloaded and generated data stays."""
    console = Console(stderr=True)
    try:
        removed = remove(name)
    except InstallError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    for path in removed:
        console.print(f"Removed {path}", highlight=False, soft_wrap=True)
    if not removed:
        console.print(f"{CATALOG[name].title} was not installed.", highlight=False)


def _with_progress(console: Console, name: str, python: str | None, force: bool, wheels: Path | None) -> Path:
    columns = (SpinnerColumn(), TextColumn("{task.fields[title]}"), BarColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        title = CATALOG[name].title if name in CATALOG else name
        task = progress.add_task("", total=1.0, title=title, what="")

        def report(what: str, share: float) -> None:
            progress.update(task, completed=share, what=what)
            if not console.is_terminal:
                console.print(f"{title}: {what}", highlight=False, markup=False)

        return build(name, python, force, report, wheels)
