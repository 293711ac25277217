"""The commands of this package: `cope install`, `cope uninstall`, `cope serve` and `cope bench`."""

import typer

from env_servers.bench_env import env as bench_env
from env_servers.cli_install import install as install
from env_servers.cli_install import uninstall as uninstall
from env_servers.cli_serve import serve as serve

bench = typer.Typer(help="Measure speed.", no_args_is_help=True)
bench.command("env")(bench_env)


@bench.callback()
def _bench() -> None:  # pyright: ignore[reportUnusedFunction]
    """Measure speed."""
