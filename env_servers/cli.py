"""The commands of this package: `cope install`, `cope uninstall`, `cope serve` and `cope bench`."""

from env_servers.bench.__main__ import app as bench
from env_servers.bench_env import env
from env_servers.cli_install import install as install
from env_servers.cli_install import uninstall as uninstall
from env_servers.cli_serve import serve as serve

bench.command()(env)
