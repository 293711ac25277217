"""A whole run from one command: servers, readiness, agreement, training, and an orderly end.

The steps of `launch`, top to bottom, are the steps of a run. Everything is one process tree: whatever ends this
process ends the training and the server with it.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig

import cope_gym
from cope_gym.cli.common import err
from cope_gym.client import Client
from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate import panels
from cope_train import config_file, prerequisites, variables
from cope_train.config import CoPEConfig
from cope_train.episodes import first_message
from cope_train.processes import group, orderly
from cope_train.train import parse, with_variables

READY_SECONDS = 180.0
ACCELERATE = config_file.FOLDER / "accelerate"
# What an inner `cope launch` in tmux needs: a running tmux server does not inherit our environment.
_FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "COPE_HOME", "COPE_BASE_URL")
_FORWARDED_PREFIXES = ("ACTION_FORECAST_", "TE_", "HF_", "VLLM_", "NCCL_", "OMP_")


@dataclass(frozen=True)
class Order:
    """What the command line asked for.

    Attributes:
        config: Shipped name or file.
        overrides: `--key value` words.
        name: Run name; the run's folder is `runs/NAME`, and a run of that name that has begun goes on.
        fresh: Refuse to go on with a run that has begun.
        processes: Training processes.
        accelerate: Name of a shipped accelerate configuration, or a file.
        port: Of the server; 0 takes a free one.
        max_workers: Of the server.
        secrets: Folder with secrets.
    """

    config: str
    overrides: list[str]
    name: str | None = None
    fresh: bool = False
    processes: int = 1
    accelerate: str | None = None
    port: int = 0
    max_workers: int | None = None
    secrets: Path = Path(".secrets")


@dataclass(frozen=True)
class Plan:
    """What is going to run.

    Attributes:
        order: What was asked for.
        args: The resolved options.
        model: The resolved model options.
        words: Arguments of the training script.
        accelerate: Configuration file for accelerate.
        checkpoint: Where the run goes on.
    """

    order: Order
    args: CoPEConfig
    model: ModelConfig
    words: list[str]
    accelerate: Path | None
    checkpoint: str | None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.args.output_dir)

    @property
    def address(self) -> str | None:
        """A server that runs already."""
        return self.args.base_url or os.environ.get("COPE_BASE_URL")

    def server(self, token_file: Path, port_file: Path) -> list[str]:
        """The command of the environment server."""
        args, order = self.args, self.order
        command = [sys.executable, "-m", "cope_gym", "serve", "--port", str(order.port)]
        command += ["--port-file", str(port_file), "--token-file", str(token_file), "--log-level", "warning"]
        # Should we be killed outright, it leaves by itself.
        command += ["--idle-exit", "300", "--max-sessions", str(max(256, 2 * (args.generation_batch_size or 0)))]
        command += ["--max-workers", str(order.max_workers)] if order.max_workers else []
        name = args.environment
        command += ["--adapter", f"{name}={args.adapter}"] if args.adapter else ["--env", name]
        for key, value in dict(args.server_settings or {}).items():
            command += ["--set", f"{name}.{key}={json.dumps(value)}"]
        return command

    def training(self) -> list[str]:
        """The command of the training script."""
        script = ["-m", "cope_train.train", *self.words]
        if self.order.processes == 1 and self.accelerate is None:
            return [sys.executable, *script]
        if self.accelerate is None:  # processes on CPU, which accelerate would start through MPI
            ranks = ["--standalone", f"--nproc_per_node={self.order.processes}"]
            return [sys.executable, "-m", "torch.distributed.run", *ranks, *script]
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(self.accelerate)]
        return [*command, "--num_processes", str(self.order.processes), *script]


def plan(order: Order) -> Plan:
    """Resolves a configuration and checks what it needs.

    Raises:
        InputError: An option that makes no sense, or a prerequisite that is missing.
    """
    path = config_file.find(order.config)
    words = with_variables(["--config", str(path), *order.overrides])
    if order.name:
        words += ["--output_dir", str(Path("runs") / order.name), "--run_name", order.name]
    args, model = parse(words, order.processes)
    checkpoint = _checkpoint(args, order)
    if checkpoint:
        words += ["--resume_from_checkpoint", checkpoint]
    accelerate = _accelerate(order.accelerate)
    if accelerate is None and order.processes > 1 and not args.use_cpu:
        accelerate = ACCELERATE / "ddp.yaml"
    first_message(args)
    for panel in args.eval_panel or []:
        panels.load(panel)
    prerequisites.check(args, model.model_name_or_path, order.processes, accelerate, order.secrets)
    return Plan(order, args, model, words, accelerate, checkpoint)


def describe(found: Plan) -> str:
    """The resolved configuration as YAML: what differs from the defaults, and what follows from it."""
    args, model = found.args, found.model
    changed: dict[str, Any] = {}
    for options in (model, args):
        for field in fields(options):
            value = getattr(options, field.name)
            if field.init and value != _default(field) and isinstance(value, str | int | float | list | dict):
                changed[field.name] = value.value if isinstance(value, Enum) else value
    rows = args.generation_batch_size or 0
    follows = {
        "processes": found.order.processes,
        "accelerate": found.accelerate.name if found.accelerate else None,
        "episodes a rollout": rows,
        "tasks a rollout": rows // args.num_generations,
        "updates a rollout": (args.steps_per_generation or 1)
        // args.gradient_accumulation_steps
        * args.num_iterations,
        "server": found.address or shlex.join(found.server(Path("TOKEN_FILE"), Path("PORT_FILE"))[1:]),
        "training": shlex.join(found.training()[1:]),
        "goes on from": found.checkpoint,
    }
    return yaml.safe_dump({"run": follows, "options": changed}, sort_keys=False, allow_unicode=True, width=110)


def launch(order: Order) -> int:
    """Runs it all.

    Returns:
        The exit status of the training.
    """
    found = plan(order)
    found.folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, **prerequisites.read_secrets(order.secrets)}
    with orderly(), ExitStack() as stack:
        url = found.address
        if url is None:
            url = _serve(found, environ, stack)
        with Client(url, environ.get("COPE_TOKEN")) as client:
            facts = agreement(client, found.args)
        _remember(found, facts)
        environ["COPE_BASE_URL"] = url
        say(f"server at {url}: {facts['environment']} {str(facts['data_digest'])[:12]}, split {facts['split']}")
        say(f"run {found.folder}" + (f", goes on from {found.checkpoint}" if found.checkpoint else ""))
        training = stack.enter_context(group(found.training(), environ))
        return training.wait()


def _serve(found: Plan, environ: dict[str, str], stack: ExitStack) -> str:
    """Starts the server and waits until it is ready."""
    token, port = found.folder / "server.token", found.folder / "server.port"
    log = found.folder / "server.log"
    environ["COPE_TOKEN"] = secrets.token_urlsafe(32)
    with open(token, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        out.write(environ["COPE_TOKEN"])
    stack.callback(token.unlink, missing_ok=True)
    port.unlink(missing_ok=True)
    log.write_bytes(b"")
    say(f"starting the server of {found.args.environment} (log: {log})")
    server = stack.enter_context(group(found.server(token, port), environ, log))
    return f"http://127.0.0.1:{_wait(server, port, log)}"


def _wait(server: subprocess.Popen[bytes], port: Path, log: Path) -> int:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if port.exists() and (text := port.read_text()).strip():
            return int(text)
        if server.poll() is not None:
            raise _unready(f"ended with status {server.returncode}", log)
        time.sleep(0.05)
    raise _unready(f"was not ready within {READY_SECONDS:g} s", log)


def _unready(what: str, log: Path) -> InfrastructureError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = "\n".join(lines[-5:]) or "nothing"
    return InfrastructureError(
        f"the environment server {what}; it said last (all of it: {log}):\n{said}", type="server"
    )


def agreement(client: Client, args: CoPEConfig) -> dict[str, Any]:
    """Asserts that a server and a configuration mean the same.

    Returns:
        What identifies the environment: name, split, versions, data digest, engine flags.

    Raises:
        InputError: Another version, no such environment, or no such split.
    """
    served = client.metadata()
    if served["version"] != cope_gym.__version__:
        raise InputError(
            f"the server is cope-gym {served['version']}, this is {cope_gym.__version__}: restart it from it",
            type="bad_version",
        )
    if args.environment not in served["envs"]:
        raise InputError(
            f"the server has no environment '{args.environment}', it has {', '.join(served['envs'])}: start it with "
            f"`cope serve --env {args.environment}`",
            type="unknown_env",
        )
    env = served["envs"][args.environment]
    splits = env["facts"]["splits"]
    split = args.split or splits[0]
    if split not in splits:
        raise InputError(
            f"{args.environment} has no split '{split}', it has {', '.join(splits)}: set split", type="unknown_split"
        )
    kept = {name: env.get(name) for name in ("adapter_version", "versions", "data_digest", "engine_flags")}
    return {"environment": args.environment, "split": split, "options": dict(args.environment_options or {}), **kept}


def _remember(found: Plan, facts: Mapping[str, Any]) -> None:
    """Keeps what the run was begun with; a run that goes on must find the same."""
    path = found.folder / "environment.json"
    if found.checkpoint and path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name, value in before.items() if facts.get(name) != value]
        if differing:
            name = differing[0]
            raise InputError(
                f"the run began with {name} {before[name]!r}, now it is {facts.get(name)!r}: restore that, or start "
                "another run with --name",
                type="bad_option",
            )
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _checkpoint(args: CoPEConfig, order: Order) -> str | None:
    if args.resume_from_checkpoint and str(args.resume_from_checkpoint).lower() not in ("true", "none"):
        return None  # named by the user
    last = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    if last and order.fresh:
        raise InputError(
            f"{args.output_dir} holds a run that has begun: give another --name, or remove it", type="bad_option"
        )
    return last


def _accelerate(name: str | None) -> Path | None:
    if name is None or Path(name).is_file():
        return Path(name) if name else None
    known = sorted(path.stem for path in ACCELERATE.glob("*.yaml"))
    if name not in known:
        raise InputError(f"--accelerate is a file or one of {', '.join(known)}, not '{name}'", type="bad_option")
    return ACCELERATE / f"{name}.yaml"


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def in_tmux(found: Plan, words: list[str]) -> str:
    """Starts the same command in a tmux session of its own, with a second window on the server's log.

    Args:
        found: The plan.
        words: The command line without `--tmux`.

    Returns:
        The session's name.
    """
    tmux = prerequisites.tmux()
    session = "cope-" + found.folder.name.replace(".", "-").replace(":", "-")
    if subprocess.run([tmux, "has-session", "-t", f"={session}"], capture_output=True).returncode == 0:
        raise InputError(f"tmux has a session {session} already: `tmux attach -t {session}`", type="bad_option")
    found.folder.mkdir(parents=True, exist_ok=True)
    log = found.folder / "server.log"
    log.touch()
    inner = [sys.executable, "-m", "cope_gym", "launch", *words]
    environ = [f"{key}={value}" for key, value in os.environ.items() if _forwarded(key)]
    command = [tmux, "new-session", "-d", "-s", session, "-n", "training"]
    for pair in environ:
        command += ["-e", pair]
    line = f"{shlex.join(inner)} 2>&1 | tee -a {shlex.quote(str(found.folder / 'training.log'))}"
    subprocess.run([*command, line], check=True)
    tail = f"tail -F {shlex.quote(str(log))}"
    subprocess.run([tmux, "new-window", "-d", "-t", f"={session}:", "-n", "server", tail], check=True)
    return session


def _forwarded(key: str) -> bool:
    secret = any(word in key for word in ("TOKEN", "KEY", "SECRET"))
    return not secret and (key in _FORWARDED or key in variables.OPTIONS or key.startswith(_FORWARDED_PREFIXES))


def say(sentence: str) -> None:
    """Tells how far it is, on stderr."""
    err.print(f"[dim]launch[/dim] {sentence}", highlight=False, soft_wrap=True)
