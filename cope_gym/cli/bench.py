"""`cope bench`: how fast it is."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure speed.", no_args_is_help=True)
