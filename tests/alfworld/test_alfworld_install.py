"""What must hold before ALFWorld can be installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from alfworld_kit import AdapterWorker

from env_servers.catalog import CATALOG
from env_servers.install import InstallError, install
from env_servers.interpreters import satisfies


def test_a_missing_compiler_is_named_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(InstallError, match=r"ALFWorld .* needs g\+\+ and make .*apt-get install -y g\+\+ make"):
        install("alfworld")
    assert not list(tmp_path.rglob("*py3*"))


def test_python_3_13_is_refused() -> None:
    """There games load, and the first command fails."""
    allowed = CATALOG["alfworld"].python_requires
    assert [satisfies(f"3.{minor}.1", allowed) for minor in (8, 9, 10, 11, 12, 13)] == [False, *[True] * 4, False]


def test_every_package_is_locked_by_hash() -> None:
    lock = CATALOG["alfworld"].lock.read_text()
    blocks = [block for block in re.split(r"\n(?=[a-z])", lock) if "==" in block]
    assert {block.split("==")[0] for block in blocks} >= {
        "alfworld",
        "textworld",
        "fast-downward-textworld",
        "jericho",
    }
    assert all("--hash=sha256:" in block for block in blocks)
    assert not {block.split("==")[0] for block in blocks} & {"torch", "spacy"}
    assert "://" not in lock


@pytest.mark.engine
def test_the_adapter_asks_for_the_same_python(worker: AdapterWorker) -> None:
    assert worker.call("hello")["facts"]["python_requires"] == CATALOG["alfworld"].python_requires
