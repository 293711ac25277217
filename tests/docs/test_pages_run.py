"""README and docs do what they say: their blocks are executed in order, page by page, in a folder of their own.

Where they train, the model `quickstart` is a random one of a few thousand weights: the commands and what they do are
the same, and minutes become seconds. `make quickstart` and `tests/objectives/test_smollm.py` have the real one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from cope_gym.server import cache_home
from env_servers.catalog import CATALOG
from env_servers.install import install
from tests.docs.pages import PAGES, ROOT, Block, blocks

NEEDS = {"engine": "fastapi", "train": "trl"}  # mark → a package of its extra


def _cases() -> Iterator[object]:
    for page in PAGES:
        found = [block for block in blocks(page) if block.word in ("run", "server", "file", "output")]
        for slow in (False, True):
            chosen = [block for block in found if slow or "slow" not in block.marks]
            if any(block.word == "run" for block in chosen) and (not slow or len(chosen) < len(found) or _slow(found)):
                marks = set().union(*(block.marks for block in chosen)) & {"slow", "engine", "train"}
                if "slow" in marks:  # such a page trains for minutes; what it shows has quicker tests of its own
                    marks.add("soak")
                name = str(page.relative_to(ROOT)) + (" (slow)" if slow else "")
                yield pytest.param(chosen, id=name, marks=[getattr(pytest.mark, mark) for mark in sorted(marks)])


def _slow(found: list[Block]) -> bool:
    return any("slow" in block.marks for block in found)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chosen", list(_cases()))
def test_page(chosen: list[Block], tmp_path: Path) -> None:
    marks = set().union(*(block.marks for block in chosen))
    for mark in marks & NEEDS.keys():
        pytest.importorskip(NEEDS[mark], reason=f"the page needs what the `{mark}` tests need")
    for name in marks & CATALOG.keys():
        install(name)
    with Reader(tmp_path) as reader:
        if "train" in marks:
            reader.environ["COPE_HOME"] = str(_home_with_a_tiny_model(tmp_path / ".home"))
        for block in chosen:
            reader.do(block)


def _home_with_a_tiny_model(home: Path) -> Path:
    from tests.train.toy import make_model, make_tokenizer

    home.mkdir()
    for part in ("envs", "data"):
        (cache_home() / part).mkdir(parents=True, exist_ok=True)
        (home / part).symlink_to(cache_home() / part)
    tokenizer = make_tokenizer()
    model = home / "models" / "SmolLM2-135M-Instruct"
    make_model(tokenizer, max_position_embeddings=8192).save_pretrained(model)
    tokenizer.save_pretrained(model)
    return home


class Reader:
    """Somebody who follows a page from its top to its end.

    Args:
        folder: Where the commands run; what lies in the repository lies there too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.program = ""
        self.printed = ""
        self.servers: list[subprocess.Popen[bytes]] = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name not in ("runs", "evaluations", "site", "build"):
                (folder / entry.name).symlink_to(entry)

    def do(self, block: Block) -> None:
        """Does what a block is there for."""
        text = block.text.replace("8420", str(self.port))  # the default port may be taken
        if block.word == "file":
            (self.folder / block.rest).write_text(text, encoding="utf-8")
        elif block.word == "output":
            self._compare(block)
        elif block.word == "server":
            for other in blocks(ROOT / "docs" / block.rest) if block.rest else []:
                if other.word == "file":
                    self.do(other)
            self._serve(text)
        elif block.language == "python":
            self.program = self.program + "\n" + text if "continues" in block.marks else text
            self._run(block, [sys.executable, "-c", self.program])
        else:
            self._run(block, ["bash", "-euo", "pipefail", "-c", text])

    def _run(self, block: Block, command: list[str]) -> None:
        result = subprocess.run(
            command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=580
        )
        self.printed = result.stdout.decode()
        assert result.returncode == 0, f"{block.where}\n{self.printed[-4000:]}"

    def _compare(self, block: Block) -> None:
        printed = iter(" ".join(line.split()) for line in self.printed.splitlines())
        for wanted in filter(str.strip, block.text.splitlines()):
            pattern = re.compile(re.escape(" ".join(wanted.split())).replace("…", ".*"))
            assert wanted.strip() == "…" or any(pattern.fullmatch(line) for line in printed), (
                f"{block.where} shows {wanted!r}, which is not (in this order) in:\n{self.printed}"
            )

    def _serve(self, text: str) -> None:
        command = text.strip() if f"--port {self.port}" in text else f"{text.strip()} --port {self.port}"
        with (self.folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder, env=self.environ, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.servers.append(server)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"http://127.0.0.1:{self.port}/ready", timeout=10).status_code == 200:
                    return
            time.sleep(0.1)
        pytest.fail(f"{command} is not ready:\n{(self.folder / 'server.log').read_text()}")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
        for server in self.servers:
            server.wait(60)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
