"""Cache folders of a directory's own: for its tests only, or every directory after it would install anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from env_servers.install import cache_home


@contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """Makes the folder the cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPE_HOME", str(folder))
        yield


def furnish(folder: Path) -> Path:
    """Gives a cache folder the environments of the present one, those still to be installed too."""
    environments = cache_home() / "envs"
    environments.mkdir(parents=True, exist_ok=True)
    (folder / "envs").symlink_to(environments)
    return folder
