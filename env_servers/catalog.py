"""The benchmarks that come with CoPE Gym: where each one's adapter, lock and interpreter range stand.

This file knows nothing of how they are installed (`install.py`) or run (`pool/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Entry:
    """One benchmark.

    Attributes:
        name: Short name on the command line and in URLs, e.g. `sciworld`.
        title: The benchmark's own name.
        gym_id: Id for `gymnasium.make`.
        adapter: `module:attribute` of the adapter class.
        python_requires: Version range of the benchmark's interpreter, e.g. `>=3.9,<3.13`.
        needs_compiler: Programs that must be on the path because a package is distributed as source only.
        post_install: Commands for the new interpreter, each a tuple of its arguments, run once after the packages;
            `{package}` is this package's folder.
        install_env: Environment variables of `post_install` and of every worker; `{env}` is the environment's folder.
        settings: Default settings of the adapter.
    """

    name: str
    title: str
    gym_id: str
    adapter: str
    python_requires: str
    needs_compiler: tuple[str, ...] = ()
    post_install: tuple[tuple[str, ...], ...] = ()
    install_env: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def lock(self) -> Path:
        """The pip lock (with hashes) of the benchmark's own environment."""
        return _PACKAGE / self.name / "requirements.lock"

    @property
    def build_lock(self) -> Path:
        """The lock of what builds the packages that are distributed as source only; there is none without such."""
        return _PACKAGE / self.name / "build.lock"


_ENTRIES = (
    Entry(
        name="sciworld",
        title="ScienceWorld",
        gym_id="cope/SciWorld-v0",
        adapter="env_servers.sciworld.adapter:ADAPTER",
        python_requires=">=3.10",
    ),
    Entry(
        name="alfworld",
        title="ALFWorld",
        gym_id="cope/ALFWorld-v0",
        adapter="env_servers.alfworld.adapter:ADAPTER",
        # 3.13 breaks TextWorld's grammar silently (PEP 667): games load and the first command fails.
        python_requires=">=3.9,<3.13",
        needs_compiler=("g++", "make"),
    ),
    Entry(
        name="webshop",
        title="WebShop",
        gym_id="cope/WebShop-v0",
        adapter="env_servers.webshop.adapter:ADAPTER",
        python_requires=">=3.11",
    ),
    Entry(
        name="appworld",
        title="AppWorld",
        gym_id="cope/AppWorld-v0",
        adapter="env_servers.appworld.adapter:ADAPTER",
        python_requires=">=3.11,<3.14",
        # Its apps come encrypted inside the wheel; then our own small world is built, for use without the download.
        post_install=(("-m", "appworld.cli", "install"), ("-I", "{package}/appworld/data.py")),
        install_env={"APPWORLD_CACHE": "{env}/appworld-cache"},
    ),
    Entry(
        name="tau2",
        title="τ²-bench",
        gym_id="cope/Tau2-v0",
        adapter="env_servers.tau2.adapter:ADAPTER",
        python_requires=">=3.11",
    ),
    Entry(
        name="mind2web",
        title="Mind2Web",
        gym_id="cope/Mind2Web-v0",
        adapter="env_servers.mind2web.adapter:ADAPTER",
        python_requires=">=3.10",
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
