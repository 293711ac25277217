"""A real server with the toy benchmark for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import at_home

from cope_gym.client import Client
from cope_gym.env import CopeEnv
from cope_gym.server import Address, LocalClient, LocalServer
from cope_gym.transport import Patience

ROOT = Path(__file__).resolve().parents[2]
HOME = os.environ.get("COPE_HOME")
ADAPTER = "tests.gym.toy:ToyAdapter"


@pytest.fixture(scope="session", autouse=True)
def _from_the_root() -> Iterator[None]:
    """The server finds the toy from its working directory."""
    before = os.getcwd()
    os.chdir(ROOT)
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def cope_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own."""
    return tmp_path_factory.mktemp("cope-home")


@pytest.fixture(autouse=True)
def _at_home(cope_home: Path) -> Iterator[None]:
    with at_home(cope_home):
        yield


@pytest.fixture(scope="session")
def log(cope_home: Path) -> Path:
    """Where the toy notes every executed action."""
    return cope_home / "actions.log"


@pytest.fixture(scope="session")
def address(cope_home: Path, log: Path) -> Iterator[Address]:
    """A toy server that stays for as long as a client of its own is open."""
    server = LocalServer("toy", {"log": str(log)}, ADAPTER, idle_exit=20, lease=60)
    with LocalClient(server) as warm:
        with at_home(cope_home):
            warm.envs()
            found = server.address()
        yield found


@pytest.fixture
def client(address: Address) -> Iterator[Client]:
    with Client(address.url, address.token, Patience(total=5)) as client:
        yield client


@pytest.fixture
def env(client: Client) -> Iterator[CopeEnv]:
    env = CopeEnv("toy", client=client, render_mode="ansi")
    yield env
    env.close()
