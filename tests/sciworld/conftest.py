"""ScienceWorld's own environment, and workers in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker

from env_servers.install import install


@pytest.fixture(scope="session")
def sciworld_python() -> Path:
    """The benchmark's interpreter; made on first use."""
    return install("sciworld")


@pytest.fixture(scope="session")
def worker(sciworld_python: Path) -> Iterator[AdapterWorker]:
    """A worker that tests share: its sessions are independent, which is itself under test."""
    with AdapterWorker(sciworld_python) as running:
        yield running
