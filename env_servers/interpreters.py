"""Finds a Python that a benchmark runs on: the running one, one on the path, pyenv's or uv's, or one that is named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NEWEST_MINOR = 20


class InterpreterError(Exception):
    """No Python fits; the message says which versions would."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs.

    Attributes:
        path: The executable.
        full_version: E.g. `3.11.7`.
    """

    path: str
    full_version: str

    @property
    def version(self) -> str:
        """Major and minor version, e.g. `3.11`."""
        return ".".join(self.full_version.split(".")[:2])


def satisfies(version: str, python_requires: str) -> bool:
    """Returns whether a version such as `3.11.7` lies in a range such as `>=3.9,<3.13`.

    Raises:
        ValueError: The range has another form; only `>=`, `<=`, `<`, `>` and plain numbers are known.
    """
    number = _numbers(version)
    for clause in python_requires.split(","):
        match = re.fullmatch(r"\s*(>=|<=|<|>)\s*(\d+(?:\.\d+)*)\s*", clause)
        if match is None:
            raise ValueError(f"{clause!r} is no version clause such as '>=3.9'")
        sign, bound = match[1], _numbers(match[2])
        # `<=3.12` and `>3.12` are meant of the minor version: 3.12.7 is in the first and not in the second.
        if sign in ("<=", ">"):
            number_here = number[: len(bound)]
            holds = number_here <= bound if sign == "<=" else number_here > bound
        else:
            holds = number >= bound if sign == ">=" else number < bound
        if not holds:
            return False
    return True


def find_interpreter(title: str, python_requires: str, named: str | None = None) -> Interpreter:
    """Returns a Python for the range; the one that is running is preferred, then the newest.

    Args:
        title: Of the benchmark, for the message.
        python_requires: Version range.
        named: A version, command or path that the user asked for; then no other is looked for.

    Raises:
        InterpreterError: None fits.
    """
    if named is not None:
        return _named(title, python_requires, named)
    seen: list[str] = []
    for path in _candidates():
        found = _probe(path)
        if found is None:
            continue
        if satisfies(found.full_version, python_requires):
            return found
        seen.append(found.version)
    raise InterpreterError(
        f"{title} needs Python {python_requires}, found only {', '.join(dict.fromkeys(seen)) or 'none'}: install such "
        "a Python (for example `pyenv install` or `uv python install`), or name one with --python."
    )


def _named(title: str, python_requires: str, named: str) -> Interpreter:
    paths = [named]
    if re.fullmatch(r"3\.\d+", named):
        paths = [path for path in _candidates() if (probe := _probe(path)) and probe.version == named]
    found = next(filter(None, map(_probe, paths)), None)
    if found is None:
        raise InterpreterError(f"--python {named}: there is no such Python; give a version, a command or a path.")
    if not satisfies(found.full_version, python_requires):
        raise InterpreterError(
            f"{title} needs Python {python_requires}, but --python {named} is {found.full_version}."
        )
    return found


def _candidates() -> Iterator[str]:
    yield sys.executable
    names = [f"python3.{minor}" for minor in range(_NEWEST_MINOR, 6, -1)]
    yield from filter(None, map(shutil.which, [*names, "python3"]))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    found = [*pyenv.glob("3.*/bin/python3"), *uv.glob("cpython-3.*/bin/python3")]
    yield from map(str, sorted(found, key=lambda path: _numbers(path.parts[-3]), reverse=True))


def _probe(path: str) -> Interpreter | None:
    """Runs it: a pyenv shim, for example, may exist without a Python behind it."""
    try:
        result = subprocess.run(
            [path, "-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"],
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = result.stdout.strip()
    return Interpreter(path, version) if re.fullmatch(r"3\.\d+\.\d+", version) else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
