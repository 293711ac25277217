"""`cope doctor`: what is missing on this machine, and the line that mends it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import typer
from rich.markup import escape
from rich.table import Table

from cope_gym import __version__
from cope_gym.cli.common import BaseUrl, out
from cope_gym.client import Client, addresses
from cope_gym.errors import CopeError
from cope_gym.registration import IDS
from cope_gym.server import cache_home, installed
from cope_gym.transport import Patience

GB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: What was looked at.
        state: `ok`, `optional` (something is missing that not everybody needs) or `broken`.
        says: What was found.
        fix: What to do about it.
    """

    what: str
    state: str
    says: str
    fix: str = ""


def doctor(base_url: BaseUrl = None) -> None:
    """Say what is missing and how to mend it. Exit code 1 if something is broken."""
    findings = [finding for part in PARTS for finding in part()]
    findings += _servers(base_url)
    table = Table("", "", "found", "to mend it", title=f"cope-gym {__version__}", show_lines=False)
    marks = {"ok": "[green]✓[/]", "optional": "[yellow]–[/]", "broken": "[red]✗[/]"}
    for finding in findings:
        table.add_row(marks[finding.state], finding.what, escape(finding.says), escape(finding.fix))
    out.print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def _python() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _extras() -> Iterator[Finding]:
    parts = {
        "server": (("fastapi", "uvicorn", "pydantic", "prometheus_client"), "run benchmarks on this machine"),
        "data": (("datasets",), "turn task lists into data sets"),
        "train": (("torch", "transformers", "trl", "peft", "accelerate"), "train models"),
    }
    for extra, (modules, purpose) in parts.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            fix = f"pip install 'cope-gym[{extra}]' to {purpose}"
            yield Finding(f"extra {extra}", "optional", f"without {', '.join(missing)}", fix)
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(modules))


def _machine() -> Iterator[Finding]:
    home = cache_home()
    place = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(place, os.W_OK):
        fix = "set COPE_HOME to a folder of your own"
        yield Finding("cache folder", "broken", f"{home} cannot be written", fix)
    else:
        free = shutil.disk_usage(place).free / GB
        low = free < 2
        fix = "free some space or set COPE_HOME to another disk" if low else ""
        yield Finding("cache folder", "broken" if low else "ok", f"{home}, {free:.0f} GB free", fix)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    yield Finding("machine", "ok", f"{os.cpu_count()} cores, {memory:.0f} GB memory, {platform.machine()}")


def _benchmarks() -> Iterator[Finding]:
    for name in IDS:
        if installed(name):
            yield Finding(name, "ok", "installed")
        else:
            yield Finding(name, "optional", "not installed", f"cope install {name}")
    missing = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
    if missing and not installed("alfworld"):
        fix = f"apt-get install -y {' '.join(missing)}"
        yield Finding("compiler", "optional", f"without {' and '.join(missing)}, which ALFWorld needs", fix)


def _servers(base_url: str | None) -> Iterator[Finding]:
    if not base_url and not os.environ.get("COPE_BASE_URL"):
        return
    for url in addresses(base_url):
        try:
            names = ", ".join(facts["name"] for facts in Client(url, patience=Patience(2, 10, 0)).envs())
        except CopeError as error:
            yield Finding(url, "broken", error.type, str(error))
        else:
            yield Finding(url, "ok", f"serves {names}")


PARTS: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _extras, _machine, _benchmarks)
