"""The commands of this package: `cope install` and `cope serve`."""

from env_servers.cli_install import install as install
from env_servers.cli_install import uninstall as uninstall
from env_servers.cli_serve import serve as serve
