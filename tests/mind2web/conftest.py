"""Mind2Web's own environment, and the adapter without imported data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker

from env_servers.install import cache_home, install

sys.path.append(str(Path(__file__).parents[1] / "data"))  # the stand-in of the Hub

pytest.importorskip("lxml", reason="pages are read with lxml, of the `dev` extra")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the tests' own for data; installed environments are those of the machine."""
    folder = tmp_path_factory.mktemp("home")
    environments = cache_home() / "envs"
    environments.mkdir(parents=True, exist_ok=True)
    (folder / "envs").symlink_to(environments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def python(home: Path) -> Path:
    """The benchmark's interpreter; made on first use."""
    return install("mind2web")


@pytest.fixture(scope="session")
def worker(python: Path) -> Iterator[AdapterWorker]:
    """A worker that tests share: its sessions are independent, which is itself under test."""
    with AdapterWorker(python, "mind2web") as running:
        yield running
