"""Entry of a worker process: `<benchmark's python> …/env_servers/worker/main.py --adapter M:C --fd N`.

The benchmark's environment does not hold this package, so it is bound here by its folder: adding the parent folder to
`sys.path` would let the service's own packages leak into the benchmark.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import sys
from pathlib import Path


def bind_package() -> None:
    """Makes `env_servers` importable, and nothing else beside it."""
    folder = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "env_servers", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["env_servers"] = package
    spec.loader.exec_module(package)


def main() -> None:
    """Serves one adapter over an inherited socket."""
    parser = argparse.ArgumentParser(description="Runs one benchmark adapter for the CoPE Gym service.")
    parser.add_argument("--adapter", required=True, help="package.module:Class")
    parser.add_argument("--fd", required=True, type=int, help="inherited socket")
    parser.add_argument("--parent", required=True, type=int, help="process id of the service")
    parser.add_argument("--settings", default="{}", help="settings of the adapter, JSON")
    parser.add_argument("--path", action="append", default=[], help="folder to import a third-party adapter from")
    arguments = parser.parse_args()

    bind_package()
    from env_servers.worker.host import Host
    from env_servers.worker.loop import Loop
    from env_servers.worker.parent import die_with

    die_with(arguments.parent)
    sys.path.extend(arguments.path)
    os.set_inheritable(arguments.fd, False)
    # Whatever a benchmark prints goes to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    connection = socket.socket(fileno=arguments.fd)
    Loop(connection, Host(arguments.adapter, json.loads(arguments.settings))).run()
    # Threads of an engine must not keep a closed worker alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
