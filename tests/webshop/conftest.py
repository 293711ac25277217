"""Catalogues that the WebShop tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import at_home, furnish
from webshop_kit import build_official

from env_servers.webshop.adapter import WebShopAdapter
from env_servers.webshop.store import Catalogue


@pytest.fixture(scope="session")
def official_folder(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published 1,000 products with the prices of the recorded original."""
    return build_official(shared_data / "webshop", tmp_path_factory.mktemp("webshop") / "official-1000")


@pytest.fixture(scope="session")
def official(official_folder: Path) -> Iterator[Catalogue]:
    catalogue = Catalogue(official_folder)
    yield catalogue
    catalogue.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own for catalogues; installed environments are those of the machine."""
    return furnish(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _at_home(home: Path) -> Iterator[None]:
    with at_home(home):
        yield


@pytest.fixture(scope="session")
def adapter(home: Path) -> Iterator[WebShopAdapter]:
    with at_home(home):
        running = WebShopAdapter()
    yield running
    running.close()
