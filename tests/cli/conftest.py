"""The `cope` command as a user types it, against a real server with the toy benchmark."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from homes import at_home

from cope_gym.cli import common, main
from cope_gym.server import Address, LocalClient, LocalServer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own, in which no benchmark is installed."""
    return tmp_path_factory.mktemp("cope-home-cli")


@pytest.fixture(scope="session")
def toy(home: Path) -> Iterator[Address]:
    before = os.getcwd()
    os.chdir(ROOT)
    with LocalClient(LocalServer("toy", adapter="tests.gym.toy:ToyAdapter", idle_exit=20)) as warm:
        with at_home(home):
            warm.envs()
            found = warm.server.address()
        os.chdir(before)
        yield found


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Cope = Callable[..., Done]


@pytest.fixture
def cope(toy: Address, home: Path, tmp_path: Path) -> Cope:
    """Runs `cope` with the toy server in the environment; in this process, for speed."""

    def run(*arguments: str, stdin: str = "", **env: str) -> Done:
        output, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            own = {"COPE_HOME": str(home), "COPE_BASE_URL": toy.url, "COPE_TOKEN": toy.token}
            for name, value in {**own, **env}.items():
                patch.setenv(name, value) if value else patch.delenv(name, raising=False)
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["cope", *arguments])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr(sys, "stdout", output)
            patch.setattr(sys, "stderr", errors)
            patch.setattr(common.out, "width", 200)
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return Done(code, output.getvalue(), errors.getvalue())

    return run
