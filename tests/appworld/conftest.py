"""AppWorld's own environment, and a worker in it on the self-made world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker

from env_servers.install import install


@pytest.fixture(scope="session")
def appworld_python() -> Path:
    """The benchmark's interpreter; made on first use."""
    return install("appworld")


@pytest.fixture(scope="session")
def worker(appworld_python: Path) -> Iterator[AdapterWorker]:
    """A worker that tests share."""
    with AdapterWorker(appworld_python, "appworld", output_limit=2000) as running:
        assert running.call("metadata")["engine_flags"]["data"] == "self-made"
        yield running
