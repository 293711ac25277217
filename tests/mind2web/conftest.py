"""Mind2Web's own environment, and the adapter without imported data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker
from homes import at_home, furnish

from env_servers.install import install

sys.path.append(str(Path(__file__).parents[1] / "data"))  # the stand-in of the Hub

pytest.importorskip("lxml", reason="pages are read with lxml, of the `dev` extra")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own for data; installed environments are those of the machine."""
    return furnish(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _at_home(home: Path) -> Iterator[None]:
    with at_home(home):
        yield


@pytest.fixture(scope="session")
def python(home: Path) -> Path:
    """The benchmark's interpreter; made on first use."""
    with at_home(home):
        return install("mind2web")


@pytest.fixture(scope="session")
def worker(python: Path, home: Path) -> Iterator[AdapterWorker]:
    """A worker that tests share: its sessions are independent, which is itself under test."""
    with at_home(home):
        running = AdapterWorker(python, "mind2web")
    with running:
        yield running
