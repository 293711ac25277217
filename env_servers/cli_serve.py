"""`cope serve`: reads the command line; FastAPI is loaded only when there is something to serve."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from env_servers.catalog import CATALOG
from env_servers.front.settings import FrontSettings
from env_servers.install import NotInstalledError, environment, worker_env
from env_servers.pool.base import WorkerSpec
from env_servers.pool.managed import PoolLimits

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MB = 2**20


class Engine(StrEnum):
    """Where worker processes run."""

    local = "local"
    ray = "ray"


class _UsageError(Exception):
    """The command line asks for what there is not."""


def serve(
    env: Annotated[
        list[str] | None, typer.Option(help="Benchmark to serve; again for more. Default: all installed.")
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]MODULE:CLASS", help="Third-party adapter, run by this Python.")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="Interpreter of a third-party adapter.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="ENV.KEY=VALUE", help="Setting of a benchmark, JSON or text.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port, 0 for any free one.")] = 8420,
    port_file: Annotated[Path | None, typer.Option(help="File to write the port to once the server is ready.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token (or set COPE_TOKEN).")] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Live sessions; more are refused with 429.")] = 256,
    lease: Annotated[float, typer.Option(min=0.1, help="Seconds a session lives without a request.")] = 180.0,
    state_dir: Annotated[
        Path | None, typer.Option(help="Keep sessions here, so that they outlive the server.")
    ] = None,
    warm: Annotated[int, typer.Option(min=0, help="Workers of each benchmark to start ahead of need.")] = 1,
    max_workers: Annotated[int | None, typer.Option(min=1, help="Worker processes of one benchmark.")] = None,
    recycle_after: Annotated[int, typer.Option(min=1, help="Sessions after which a worker is replaced.")] = 1000,
    worker_memory: Annotated[int, typer.Option(min=64, help="MB at which a worker is replaced.")] = 4096,
    reserve_memory: Annotated[int, typer.Option(min=0, help="MB of the machine to leave alone.")] = 512,
    rate_limit: Annotated[float | None, typer.Option(min=0.1, help="Requests a second from one address.")] = None,
    idle_exit: Annotated[
        float | None, typer.Option(help="End after so many seconds without session or request.")
    ] = None,
    drain_seconds: Annotated[float, typer.Option(min=0, help="How long live sessions may go on after SIGTERM.")] = 0.0,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate chain, for https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate.")] = None,
    engine: Annotated[Engine, typer.Option(help="Where workers run: this machine, or a Ray cluster.")] = Engine.local,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster; default: this machine's, or RAY_ADDRESS.")
    ] = None,
    workers: Annotated[int, typer.Option(hidden=True)] = 1,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve benchmarks over HTTP."""
    try:
        if workers != 1:
            raise _UsageError("The front is one process (sessions live in it): start several on other ports instead.")
        token = _token(token_file)
        settings = FrontSettings(
            specs=_specs(env or [], adapter or [], python or [], set_ or [], engine),
            token=token,
            hosts=_LOCAL_NAMES | {host} if token is None else None,
            max_sessions=max_sessions,
            lease_seconds=lease,
            rate_limit=rate_limit,
            drain_seconds=drain_seconds,
            idle_exit=idle_exit,
            state_dir=state_dir,
            engine=engine,
            ray_address=ray_address,
            pool=PoolLimits(
                max_workers=max_workers,
                warm=warm,
                recycle_after=recycle_after,
                worker_memory=worker_memory * _MB,
                reserve_memory=reserve_memory * _MB,
            ),
        )
        try:
            from env_servers.front import logs, server
        except ModuleNotFoundError as error:
            raise _UsageError(f"`cope serve` needs {error.name}: run `pip install 'cope-gym[server]'`.") from error
        logs.configure(log_level)
        listen = server.Listen(host, port, port_file, tls_certificate, tls_key)
        try:
            server.serve(settings, listen)
        except server.StartError as error:
            raise _UsageError(str(error)) from error
    except _UsageError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("COPE_TOKEN") or None
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise _UsageError(f"The token file {file} cannot be read: {error.strerror}.") from error
    if not token:
        raise _UsageError(f"The token file {file} is empty; put the token on its first line.")
    return token


def _specs(
    envs: list[str], adapters: list[str], pythons: list[str], sets: list[str], engine: Engine
) -> tuple[WorkerSpec, ...]:
    settings = _settings(sets)
    interpreters = dict(_pair(text, "--python", "NAME=PATH") for text in pythons)
    names = envs or ([] if adapters else _installed())
    specs = [_benchmark(name, settings.pop(name, {}), engine) for name in names]
    for text in adapters:
        name, target = _adapter(text)
        interpreter = interpreters.pop(name, sys.executable)
        specs.append(WorkerSpec(name, interpreter, target, settings.pop(name, {}), paths=(os.getcwd(),)))
    for unknown in [*settings, *interpreters]:
        raise _UsageError(f"There are settings for {unknown!r}, which is not served; served are: {', '.join(names)}.")
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:
            raise _UsageError(f"{name!r} is given {count} times; give it once, or another name as NAME=MODULE:CLASS.")
    return tuple(specs)


def _installed() -> list[str]:
    names: list[str] = []
    for name in CATALOG:
        try:
            environment(name)
        except NotInstalledError:
            continue
        names.append(name)
    if not names:
        raise _UsageError(f"No benchmark is installed: run `cope install NAME` with one of: {', '.join(CATALOG)}.")
    return names


def _benchmark(name: str, settings: dict[str, Any], engine: Engine) -> WorkerSpec:
    if name not in CATALOG:
        raise _UsageError(f"There is no environment {name!r}; there are: {', '.join(CATALOG)}.")
    entry = CATALOG[name]
    if engine is Engine.ray:  # each node finds or makes an interpreter of its own
        return WorkerSpec(name, "", entry.adapter, {**entry.settings, **settings})
    try:
        interpreter = environment(name)
    except NotInstalledError as error:
        raise _UsageError(str(error)) from error
    return WorkerSpec(name, str(interpreter), entry.adapter, {**entry.settings, **settings}, worker_env(name))


def _adapter(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(?:([a-z0-9_-]+)=)?([\w.]+:(\w+))", text)
    if match is None:
        raise _UsageError(f"--adapter {text!r} is not [NAME=]MODULE:CLASS, e.g. --adapter my_package:MyAdapter.")
    name, target, attribute = match.groups()
    return name or attribute.removesuffix("Adapter").lower(), target


def _settings(sets: list[str]) -> dict[str, dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {}
    for text in sets:
        key, value = _pair(text, "--set", "ENV.KEY=VALUE")
        env, dot, name = key.partition(".")
        if not dot:
            raise _UsageError(f"--set {text!r} is not ENV.KEY=VALUE, e.g. --set sciworld.simplifications=easy.")
        settings.setdefault(env, {})[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise _UsageError(f"{option} {text!r} is not {form}.")
    return key, value
