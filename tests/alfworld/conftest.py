"""ALFWorld's own environment, official games where they are at hand, and workers in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alfworld_kit import AdapterWorker

from env_servers.alfworld import data
from env_servers.install import install


@pytest.fixture(scope="session")
def alfworld_python() -> Path:
    """The benchmark's interpreter; made on first use."""
    return install("alfworld")


@pytest.fixture(scope="session")
def official_games(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 134 games of valid_unseen, imported."""
    target = tmp_path_factory.mktemp("alfworld") / "games.sqlite"
    assert data.import_tree(shared_data / "alfworld" / "valid_unseen.tar.xz", target) == {"valid_unseen": 134}
    return target


@pytest.fixture(scope="session")
def worker(alfworld_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterWorker]:
    """A worker without any imported game."""
    with AdapterWorker(alfworld_python, data=str(tmp_path_factory.mktemp("empty") / "none.sqlite")) as running:
        yield running


@pytest.fixture(scope="session")
def official(alfworld_python: Path, official_games: Path) -> Iterator[AdapterWorker]:
    """A worker with the games of valid_unseen."""
    with AdapterWorker(alfworld_python, data=str(official_games)) as running:
        yield running
