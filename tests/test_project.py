"""What the project promises as a whole: a light plain install, import directions, small files, no machine's traces."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cope_gym", "cope_train", "env_servers")
SOURCES = [path for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py")]


def _needed(name: str, found: dict[str, float]) -> dict[str, float]:
    """Sizes in MB of a distribution and of everything that its plain install pulls, bytecode aside."""
    if name in found:
        return found
    dist = distribution(name)
    sizes = [file.size or 0 for file in dist.files or [] if file.suffix != ".pyc"]
    found[name] = sum(sizes) / 1e6
    for requirement in dist.requires or []:
        if ";" in requirement:  # an extra, or a platform that is not this one
            continue
        needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            _needed(needed, found)
        except PackageNotFoundError:
            pytest.skip(f"{needed} is not installed")
    return found


def test_the_plain_install_stays_below_80_mb() -> None:
    sizes = _needed("cope-gym", {})
    assert {"gymnasium", "requests", "typer", "rich"} <= sizes.keys()
    assert not {"torch", "pyarrow", "pandas", "fastapi", "datasets"} & sizes.keys()
    assert sum(sizes.values()) < 80, sizes


def test_importing_the_client_loads_nothing_heavy() -> None:
    heavy = ["torch", "pyarrow", "pandas", "fastapi", "pydantic", "transformers", "datasets", "matplotlib"]
    code = f"import sys, cope_gym; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_files_stay_small() -> None:
    lengths = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES)
    assert lengths[len(lengths) // 2] <= 150
    assert lengths[-1] <= 600


def test_import_directions_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed")
    result = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_no_machine_paths_are_left_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    home = re.compile(r"(?<![\w.])/(?:root|work|home/\w+)/[\w.-]+")
    text = {".py", ".md", ".toml", ".yaml", ".yml", ".lock", ".sh", ".json", ""}
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in text]
    found = [str(f.relative_to(ROOT)) for f in files if f.is_file() and home.search(f.read_text(errors="ignore"))]
    assert found == []
