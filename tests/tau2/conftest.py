"""τ²-bench's own environment, and workers in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker
from tau2_kit import Customer

from env_servers.install import install


@pytest.fixture(scope="session")
def tau2_python() -> Path:
    """The benchmark's interpreter; made on first use."""
    return install("tau2")


@pytest.fixture(scope="session")
def customer() -> Iterator[Customer]:
    """An OpenAI-compatible endpoint that plays the customer."""
    with Customer() as running:
        yield running


@pytest.fixture(scope="session")
def worker(tau2_python: Path, customer: Customer) -> Iterator[AdapterWorker]:
    """A worker whose default customer is the scripted one; `user=endpoint` asks the endpoint."""
    settings = {"user": "scripted", "user_base_url": customer.url, "user_model": "someone", "user_timeout": 5}
    with AdapterWorker(tau2_python, "tau2", **settings) as running:
        yield running
