"""`python -m env_servers.front`: the same as `cope serve`."""

import typer

from env_servers.cli_serve import serve

if __name__ == "__main__":
    typer.run(serve)
