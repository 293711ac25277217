"""`cope data import alfworld`, `cope data import webshop` and `cope data import mind2web`."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer
from rich.console import Console

from env_servers.alfworld import data as alfworld_data
from env_servers.mind2web import data as mind2web_data
from env_servers.webshop import data as webshop_data

_console = Console(stderr=True, highlight=False)
_FAULTS = (alfworld_data.DataError, mind2web_data.ImportFailed, webshop_data.ImportFailed)


def alfworld(
    source: Annotated[str, typer.Argument(help="ALFWorld's data folder or an archive of it; `download` fetches it.")],
) -> None:
    """Bring in ALFWorld's games. Servers started from now on have its splits."""
    try:
        imported = alfworld_data.import_data(source, report=_tell)
    except _FAULTS as error:
        _fail(error)
    for split, count in imported["splits"].items():
        typer.echo(f"{split}: {count} games")
    for note in imported["notes"]:
        _tell(note)


def webshop(
    source: Annotated[str, typer.Argument(help="Folder with WebShop's files, or hub:axon-rl/webshop.")],
    name: Annotated[str | None, typer.Option(help="Of the catalogue; by default official-N.")] = None,
    nouns: Annotated[str | None, typer.Option(help="File of noun lists; by default beside the products.")] = None,
    seed: Annotated[int, typer.Option(help="Of prices and price ceilings.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many products.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail at a malformed product.")] = False,
) -> None:
    """Build a catalogue from WebShop's published files."""
    try:
        webshop_data.import_data(source, name, nouns=nouns, seed=seed, limit=limit, strict=strict, report=_tell)
    except _FAULTS as error:
        _fail(error)


def mind2web(
    source: Annotated[str, typer.Argument(help="Folder, file or test.zip of Mind2Web, or hub:osunlp/Mind2Web.")],
    name: Annotated[str | None, typer.Option(help="Of the data; by default the Hub's, else Mind2Web.")] = None,
    split: Annotated[str | None, typer.Option(help="Of files whose name says none.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks of each split.")] = None,
    password: Annotated[str, typer.Option(help="Of encrypted archives.")] = mind2web_data.PASSWORD,
) -> None:
    """Bring in Mind2Web's recordings. Servers started from now on have their splits."""
    try:
        imported = mind2web_data.import_data(source, name, split=split, limit=limit, password=password, report=_tell)
    except _FAULTS as error:
        _fail(error)
    for part, counts in imported["splits"].items():
        typer.echo(f"{part}: {counts['tasks']} tasks, {counts['steps']} steps")
    for note in imported["notes"]:
        _tell(note)


def _tell(what: str) -> None:
    _console.print(what, markup=False, soft_wrap=True)


def _fail(error: Exception) -> NoReturn:
    _console.print(str(error), style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1) from None
