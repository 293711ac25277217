"""Builds a benchmark's own virtual environment from its lock, in a cache folder outside the repository.

An environment is keyed by the lock's digest and the interpreter's version, is built aside and renamed into place, so
what `environment()` finds is always whole. It holds the benchmark only: no part of CoPE Gym is installed into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from env_servers.catalog import CATALOG, Entry
from env_servers.interpreters import Interpreter, InterpreterError, find_interpreter

Report = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0 to 1."""


_HASHES = "--require-hashes"


class InstallError(Exception):
    """An installation that cannot be made; the message says how to mend it."""


class NotInstalledError(InstallError):
    """The benchmark has no environment yet."""


def cache_home() -> Path:
    """Returns the folder for environments and data: `$COPE_HOME`, else a system or user cache folder."""
    if named := os.environ.get("COPE_HOME"):
        return Path(named).expanduser().resolve()
    return Path("/var/cache/cope-gym") if os.geteuid() == 0 else Path.home() / ".cache" / "cope-gym"


def entry_of(name: str) -> Entry:
    """Returns the catalogue's entry.

    Raises:
        InstallError: There is no benchmark of that name.
    """
    if name not in CATALOG:
        raise InstallError(f"There is no environment {name!r}; there are: {', '.join(sorted(CATALOG))}.")
    return CATALOG[name]


def lock_digest(name: str) -> str:
    """Returns the digest that an environment is keyed by."""
    entry = entry_of(name)
    locks = [lock.read_bytes() for lock in (entry.lock, entry.build_lock) if lock.exists()]
    return hashlib.sha256(b"".join(locks)).hexdigest()


def environment(name: str) -> Path:
    """Returns the Python of the benchmark's environment, the latest where several interpreters have one.

    Raises:
        NotInstalledError: It is not installed, or only for another lock.
    """
    found = list(_home(name).glob(f"{_key(name)}-py*/bin/python"))
    if not found:
        raise NotInstalledError(f"{entry_of(name).title} is not installed: run `cope install {name}`.")
    return max(found, key=lambda path: path.parents[1].stat().st_mtime)


def worker_env(name: str) -> dict[str, str]:
    """Returns the environment variables that the benchmark's processes need beside the inherited ones."""
    folder = environment(name).parents[1]
    return {key: value.format(env=folder) for key, value in entry_of(name).install_env.items()}


def install(
    name: str,
    python: str | None = None,
    force: bool = False,
    report: Report | None = None,
    wheels: Path | None = None,
) -> Path:
    """Makes the benchmark's environment unless it is there, and returns its Python.

    Args:
        name: A name of the catalogue.
        python: A version (`3.11`), a command or a path; by default a fitting one is looked for.
        force: Rebuild even if the environment exists.
        report: Is told of the progress.
        wheels: Folder with a wheel of every package, made elsewhere: nothing is fetched, compiled or compared with a
            hash, only the versions are the lock's.

    Raises:
        InstallError: With the one line that mends it.
    """
    entry = entry_of(name)
    tell = report or _silent
    if not force and python is None:
        with contextlib.suppress(NotInstalledError):
            return environment(name)
    try:
        interpreter = find_interpreter(entry.title, entry.python_requires, python)
    except InterpreterError as error:
        raise InstallError(str(error)) from error
    if wheels is None:
        _check_compilers(entry)
    elif not wheels.is_dir():
        raise InstallError(f"There is no folder {wheels}: make it with `pip wheel --no-deps -r LOCK -w {wheels}`.")
    target = _home(name) / f"{_key(name)}-py{interpreter.version}"
    with _umask(0o022), _locked(name, tell):
        if force or not target.exists():
            _build(entry, interpreter, target, tell, wheels)
    return target / "bin" / "python"


def uninstall(name: str) -> list[Path]:
    """Removes every environment of the benchmark, older locks' too; returns what was removed. Data stays."""
    entry_of(name)
    if not _home(name).is_dir():
        return []
    with _locked(name, _silent):
        removed = [path for path in _home(name).iterdir() if path.is_dir()]
        for path in removed:
            shutil.rmtree(path)
    return removed


def _silent(what: str, share: float) -> None:
    pass


def _home(name: str) -> Path:
    return cache_home() / "envs" / entry_of(name).name


def _key(name: str) -> str:
    return lock_digest(name)[:12]


def _check_compilers(entry: Entry) -> None:
    missing = [program for program in entry.needs_compiler if shutil.which(program) is None]
    if missing:
        line = "xcode-select --install" if sys.platform == "darwin" else f"apt-get install -y {' '.join(missing)}"
        raise InstallError(
            f"{entry.title} comes as source and needs {' and '.join(missing)} to be compiled: run `{line}`, "
            f"then `cope install {entry.name}` again."
        )


@contextlib.contextmanager
def _umask(mask: int) -> Generator[None]:
    """An environment made by root must be readable by the unprivileged user that a worker runs as."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _locked(name: str, tell: Report) -> Generator[None]:
    home = _home(name)
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = (home / "lock").open("w")
    except OSError as error:
        raise InstallError(
            f"{home} cannot be written ({error.strerror}): set COPE_HOME to a folder of your own."
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another `cope install`", 0.0)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(entry: Entry, interpreter: Interpreter, target: Path, tell: Report, wheels: Path | None) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        aside.chmod(0o755)
        tell(f"virtual environment (Python {interpreter.full_version})", 0.02)
        _make_venv(interpreter, aside)
        if wheels is None:
            _install_packages(entry, aside, tell)
        else:
            _install_wheels(entry, aside, tell, wheels.resolve())
        variables = {key: value.format(env=aside) for key, value in entry.install_env.items()}
        for arguments in entry.post_install:
            tell(" ".join(arguments), 0.9)
            filled = [argument.format(package=Path(__file__).parent) for argument in arguments]
            _run([str(aside / "bin" / "python"), *filled], f"{entry.title}: set-up", variables)
        _relocate(aside, target)
        tell("compiling", 0.95)
        subprocess.run([aside / "bin" / "python", "-m", "compileall", "-qq", "-s", aside, "-p", target, aside / "lib"])
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    tell("done", 1.0)


def _make_venv(interpreter: Interpreter, folder: Path) -> None:
    try:
        _run([interpreter.path, "-m", "venv", str(folder)], "virtual environment")
    except InstallError as error:
        if "ensurepip" in str(error):
            raise InstallError(
                f"{interpreter.path} cannot make virtual environments: run "
                f"`apt-get install -y python{interpreter.version}-venv`, or name another Python with --python."
            ) from error
        raise


def _install_packages(entry: Entry, folder: Path, tell: Report) -> None:
    """Installs the lock. Source packages are built by locked tools, which pip by itself would fetch in any version."""
    python = str(folder / "bin" / "python")
    if not entry.build_lock.exists():
        _pip_install(entry, python, entry.lock, tell, _HASHES)
        return
    tools = re.findall(r"^([\w.-]+)==", entry.build_lock.read_text(), re.MULTILINE)
    _pip_install(entry, python, entry.build_lock, _silent, _HASHES)
    _pip_install(entry, python, entry.lock, tell, _HASHES, "--no-build-isolation")
    _run([python, "-I", "-m", "pip", "uninstall", "-y", *tools], f"{entry.title}: removal of build tools")


def _install_wheels(entry: Entry, folder: Path, tell: Report, wheels: Path) -> None:
    """Installs the lock's versions from wheels. The lock knows no hash of what was compiled elsewhere."""
    versions = folder / "versions.txt"
    versions.write_text(re.sub(r"\s*\\\n\s*--hash=\S+", "", entry.lock.read_text()))
    flags = ("--no-index", "--only-binary=:all:", "--find-links", str(wheels))
    _pip_install(entry, str(folder / "bin" / "python"), versions, tell, *flags)
    versions.unlink()


def _pip_install(entry: Entry, python: str, lock: Path, tell: Report, *flags: str) -> None:
    total = sum("==" in line and not line.startswith("#") for line in lock.read_text().splitlines())
    command = [python, "-I", "-m", "pip", "install", "--no-deps", *flags]
    command += ["--no-compile", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    process = subprocess.Popen(
        [*command, "-r", str(lock)],
        # Build tools are programs beside that Python.
        env={**os.environ, "PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    lines: list[str] = []
    seen = 0
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("Collecting "):
                seen += 1
                tell(f"package {seen} of {total}: {line.split()[1]}", 0.05 + 0.7 * seen / max(total, 1))
            elif line.lstrip().startswith(("Building wheel", "Installing collected")):
                tell(line.strip()[:60], 0.8)
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        code = process.wait()
    if code:
        raise InstallError(_failure(f"{entry.title}: pip failed", lines))


def _relocate(folder: Path, target: Path) -> None:
    """Makes the console scripts name the folder that the environment is about to be renamed to."""
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if os.fsencode(folder) in content:
            script.write_bytes(content.replace(os.fsencode(folder), os.fsencode(target)))


def _run(command: list[str], what: str, variables: dict[str, str] | None = None) -> None:
    result = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if result.returncode:
        raise InstallError(_failure(f"{what} failed", result.stdout.splitlines()))


def _failure(what: str, lines: list[str]) -> str:
    return "\n".join([f"{what}; its last lines:", *(f"  {line}" for line in lines[-12:])])
