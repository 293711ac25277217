"""Benchmark environments: found, built whole or not at all, once, for everyone, and refused in one sentence."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from env_servers import install as installer
from env_servers.catalog import CATALOG, Entry
from env_servers.install import InstallError, NotInstalledError, environment, install, uninstall
from env_servers.interpreters import InterpreterError, find_interpreter, satisfies

_LOCK = """
py4j==0.10.9.9 \\
    --hash=sha256:c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533
tabulate==0.9.0 \\
    --hash=sha256:024ca478df22e9340661486f85298cff5f6dcdba14f3813e8830015b9ed1948f
"""


@dataclass(frozen=True)
class SmallEntry(Entry):
    """A benchmark whose lock is two small packages."""

    lock_path: Path = Path()

    @property
    def lock(self) -> Path:
        return self.lock_path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallEntry:
    """A benchmark `small` in a cache folder of the test's own."""
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "home"))
    lock = tmp_path / "small.lock"
    lock.write_text(_LOCK)
    entry = SmallEntry("small", "Small", "cope/Small-v0", "none:none", ">=3.10", lock_path=lock)
    monkeypatch.setitem(CATALOG, "small", entry)
    return entry


@pytest.mark.parametrize(
    ("version", "python_requires", "fits"),
    [
        ("3.11.7", ">=3.10", True),
        ("3.9.18", ">=3.10", False),
        ("3.13.0", ">=3.9,<3.13", False),
        ("3.12.9", ">=3.9,<3.13", True),
        ("3.9.0", ">=3.9,<3.13", True),
        ("3.12.4", "<=3.12", True),
        ("3.13.0", "<=3.12", False),
        ("3.12.4", ">3.12", False),
        ("3.11.7", ">=3.11.8", False),
        ("3.14.0", ">=3.11, <4", True),
    ],
)
def test_version_ranges(version: str, python_requires: str, fits: bool) -> None:
    assert satisfies(version, python_requires) is fits


def test_another_form_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="version clause"):
        satisfies("3.11.7", "~=3.11")


def test_every_entry_has_a_lock_with_hashes() -> None:
    for entry in CATALOG.values():
        pins = [line for line in entry.lock.read_text().splitlines() if "==" in line and not line.startswith("#")]
        assert "--hash=sha256:" in entry.lock.read_text() or not pins
        assert "://" not in entry.lock.read_text()
        assert satisfies("3.11.7", entry.python_requires)


def test_the_running_python_is_preferred() -> None:
    assert find_interpreter("X", ">=3.10").path == sys.executable


def test_no_fitting_python_names_the_range() -> None:
    with pytest.raises(InterpreterError, match=r"needs Python >=3.30, found only 3\."):
        find_interpreter("X", ">=3.30")


def test_a_named_python_outside_the_range_is_refused() -> None:
    with pytest.raises(InterpreterError, match="but --python"):
        find_interpreter("X", "<3.5", sys.executable)
    with pytest.raises(InterpreterError, match="there is no such Python"):
        find_interpreter("X", ">=3.5", "/nowhere/python")


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_every_benchmark_refuses_a_python_outside_its_range(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that only say their version stand for Pythons that this machine may not have."""
    entry = CATALOG[name]
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "home"))
    outside = [v for v in ("3.8.18", "3.13.1", "3.15.0") if not satisfies(v, entry.python_requires)]
    assert "3.8.18" in outside and (name != "alfworld" or "3.13.1" in outside)
    for version in outside:
        python = tmp_path / f"python{version}"
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
        says = f"{entry.title} needs Python {entry.python_requires}, but --python {python} is {version}."
        with pytest.raises(InstallError, match=re.escape(says)):
            install(name, python=str(python))
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_adapters_state_the_range_that_is_enforced(name: str) -> None:
    source = (CATALOG[name].lock.parent / "adapter.py").read_text()
    assert re.findall(r'python_requires="(.*?)"', source) == [CATALOG[name].python_requires]


def test_unknown_benchmarks_list_the_known_ones() -> None:
    with pytest.raises(InstallError, match="sciworld"):
        install("scienceworld")


def test_not_installed_says_what_to_run(small: SmallEntry) -> None:
    with pytest.raises(NotInstalledError, match="run `cope install small`"):
        environment("small")


def test_a_missing_compiler_is_found_first(small: SmallEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    needy = SmallEntry(**{**small.__dict__, "needs_compiler": ("g++", "make")})
    monkeypatch.setitem(CATALOG, "small", needy)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InstallError, match=r"g\+\+ and make") as caught:
        install("small")
    assert "apt-get install" in str(caught.value) or "xcode-select" in str(caught.value)
    assert not installer.cache_home().exists()


def test_a_cache_folder_that_cannot_be_made(
    small: SmallEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(InstallError, match="set COPE_HOME"):
        install("small")


@pytest.mark.engine
def test_a_wrong_hash_installs_nothing(small: SmallEntry) -> None:
    small.lock.write_text(_LOCK.replace("024ca478", "00000000"))
    with pytest.raises(InstallError, match="pip failed"):
        install("small")
    with pytest.raises(NotInstalledError):
        environment("small")
    assert [path.name for path in (installer.cache_home() / "envs" / "small").iterdir()] == ["lock"]


def test_build_tools_are_locked_and_part_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever comes as source is built by these versions, and changing them makes another environment."""
    for entry in CATALOG.values():
        assert bool(entry.needs_compiler) == entry.build_lock.exists()
    lock = CATALOG["alfworld"].build_lock.read_text()
    blocks = [block for block in re.split(r"\n(?=[a-z])", lock) if "==" in block]
    assert {block.split("==")[0] for block in blocks} >= {"setuptools", "wheel", "cmake"}
    assert all("--hash=sha256:" in block for block in blocks) and "://" not in lock
    before = installer.lock_digest("alfworld")
    changed = tmp_path / "build.lock"
    changed.write_text(lock.replace("setuptools==", "setuptools==9"))
    monkeypatch.setattr(Entry, "build_lock", changed)
    assert installer.lock_digest("alfworld") != before


@pytest.mark.engine
def test_source_packages_are_built_by_the_locked_tools(small: SmallEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock's tools there is nothing to build with, and afterwards they are gone."""
    said: list[str] = []
    monkeypatch.setattr(Entry, "build_lock", CATALOG["alfworld"].build_lock)
    folder = install("small", report=lambda what, share: said.append(what)).parents[1]
    assert said[-1] == "done"
    listed = subprocess.check_output([folder / "bin" / "python", "-I", "-m", "pip", "list"], text=True)
    assert "py4j" in listed and not {"cmake", "setuptools", "wheel"} & set(listed.split())


@pytest.mark.engine
def test_wheels_need_no_index_no_compiler_and_no_hash(
    small: SmallEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needy = SmallEntry(**{**small.__dict__, "needs_compiler": ("g++-of-nowhere",)})
    monkeypatch.setitem(CATALOG, "small", needy)
    wheels = tmp_path / "wheels"
    with pytest.raises(InstallError, match="There is no folder"):
        install("small", wheels=wheels)
    wheels.mkdir()
    with pytest.raises(InstallError, match="No matching distribution found for py4j"):
        install("small", wheels=wheels)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, "-r", small.lock], check=True
    )
    # As if they had been compiled elsewhere: the lock's hashes are others, its versions hold.
    small.lock.write_text(re.sub(r"sha256:\w{8}", "sha256:00000000", _LOCK))
    python = install("small", wheels=wheels)
    listed = subprocess.check_output([python, "-I", "-m", "pip", "list"], text=True)
    assert "py4j" in listed and "tabulate" in listed
    assert not list(python.parents[1].glob("*.txt"))


@pytest.mark.engine
def test_two_installers_build_once_and_the_result_is_whole(small: SmallEntry) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(install, "small", report=lambda what, share: said.append(what)) for _ in range(2)]
        first, second = (job.result() for job in jobs)
    assert first == second == environment("small")
    assert said.count("done") == 1 and "waiting for another `cope install`" in said
    assert any(what.startswith("package 2 of 2") for what in said)

    folder = first.parents[1]
    assert subprocess.check_output([first, "-I", "-c", "import py4j; print(py4j.__name__)"], text=True) == "py4j\n"
    # Console scripts name the final folder, not the one that the environment was built in.
    assert "usage" in subprocess.check_output([folder / "bin" / "tabulate", "--help"], text=True).lower()
    for path in folder.rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & stat.S_IROTH, f"{path} cannot be read by others"
            assert not path.is_dir() or path.stat().st_mode & stat.S_IXOTH

    before = folder.stat().st_ino
    assert install("small") == first and folder.stat().st_ino == before
    small.lock.write_text(_LOCK + "# changed\n")
    with pytest.raises(NotInstalledError):
        environment("small")
    assert uninstall("small") == [folder]
    assert not folder.exists()


def test_the_cache_folder_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPE_HOME", raising=False)
    expected = Path("/var/cache/cope-gym") if os.geteuid() == 0 else Path.home() / ".cache" / "cope-gym"
    assert installer.cache_home() == expected
