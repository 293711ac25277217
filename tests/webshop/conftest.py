"""Catalogues that the WebShop tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from webshop_kit import build_official

from env_servers.install import cache_home
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
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the tests' own for catalogues; installed environments are those of the machine."""
    folder = tmp_path_factory.mktemp("home")
    environments = cache_home() / "envs"
    environments.mkdir(parents=True, exist_ok=True)
    (folder / "envs").symlink_to(environments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def adapter(home: Path) -> Iterator[WebShopAdapter]:
    running = WebShopAdapter()
    yield running
    running.close()
