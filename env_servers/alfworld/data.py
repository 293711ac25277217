"""Brings ALFWorld's games onto this machine: `cope data import alfworld PATH`, or `download` for the release.

Only game files are read (`<split>/<folder>/<trial>/game.tw-pddl`). Nothing is unpacked onto the disk, and no name in
an archive is used as a path.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from env_servers.alfworld import game, store
from env_servers.install import cache_home

DOWNLOAD_URL = "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip"
"""The release that `alfworld-download` of alfworld 0.4.2 takes its games from."""

_FILE = "game.tw-pddl"


class DataError(Exception):
    """Data that cannot be brought in; the message says how to mend it."""


def games_file() -> Path:
    """Returns where the imported games are kept; it need not exist."""
    return cache_home() / "data" / "alfworld" / "games.sqlite"


def import_data(source: str, *, report: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Imports games into the cache folder: `cope data import alfworld SOURCE`.

    Args:
        source: A folder or archive, or `download` for ALFWorld's release.
        report: Is told of each stage.

    Returns:
        `file`, `splits` (games of each) and `notes` (sentences that the user should read).

    Raises:
        DataError: With the line that mends it.
    """
    if report is not None:
        report(f"fetching {DOWNLOAD_URL}" if source == "download" else f"reading {source}")
    counts = download() if source == "download" else import_tree(source)
    return {"file": str(games_file()), "splits": counts, "notes": incomplete(counts)}


def import_tree(path: str | Path, target: Path | None = None) -> dict[str, int]:
    """Imports all games below a folder, or out of a `.zip` or `.tar` archive, compressed or not.

    Splits that come in replace those that were there. Games that ALFWorld itself leaves out (movable receptacles,
    slicing, unsolvable) are left out.

    Args:
        path: A folder such as `json_2.1.1`, any folder above it, a folder of archives, or an archive.
        target: The file to import into; by default `games_file()`.

    Returns:
        How many games of each split came in.

    Raises:
        DataError: There is nothing there, or a file is no game.
    """
    source = Path(path).expanduser()
    if not source.exists():
        raise DataError(f"{source} does not exist: give ALFWorld's data folder (the one with json_2.1.1 in it).")
    try:
        counts = store.write(target or games_file(), _games(source))
    except OSError as error:
        raise DataError(f"{source} cannot be imported: {error}.") from error
    if not counts:
        raise DataError(
            f"{source} holds no {_FILE} in folders `<split>/<task>/<trial>`; splits are {', '.join(store.SPLITS)}."
        )
    return counts


def download(url: str = DOWNLOAD_URL, target: Path | None = None) -> dict[str, int]:
    """Downloads ALFWorld's released games and imports them.

    Returns:
        How many games of each split came in.

    Raises:
        DataError: The download failed.
    """
    with tempfile.TemporaryDirectory(prefix="cope-alfworld-") as folder:
        archive = Path(folder) / PurePosixPath(url).name
        try:
            with urllib.request.urlopen(url, timeout=60) as reply, archive.open("wb") as out:
                shutil.copyfileobj(reply, out)
        except OSError as error:
            raise DataError(
                f"{url} cannot be fetched ({error}): run `alfworld-download` where there is a network, then "
                "`cope data import alfworld FOLDER` here; without it the generated games can be played."
            ) from error
        return import_tree(archive, target)


def incomplete(counts: dict[str, int]) -> list[str]:
    """Returns a sentence for each split whose number of games is not the official one: its ids by number differ."""
    return [
        f"{split} has {count} games, officially {official}: its ids by number are not comparable, those by name are."
        for split, count in counts.items()
        if count != (official := store.OFFICIAL_COUNTS[split])
    ]


def _games(source: Path) -> Iterator[tuple[str, game.Game]]:
    for name, content in _files(source):
        parts = PurePosixPath(name).parts
        if len(parts) < 4 or parts[-4] not in store.SPLITS:
            continue
        split, folder, trial = parts[-4:-1]
        try:
            data = json.loads(content)
            if game.is_playable(folder, data):
                yield split, game.parse(folder, trial, data)
        except (ValueError, AttributeError) as error:
            raise DataError(f"{source}, {name}: {error}.") from error


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of every game file; names have forward slashes."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.name == _FILE:
                yield path.as_posix(), path.read_bytes()
            elif path.parent == source and path.is_file() and _is_archive(path):
                yield from _files(path)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).name == _FILE:
                    yield name, archive.read(name)
    elif tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            for member in archive:
                content = archive.extractfile(member) if PurePosixPath(member.name).name == _FILE else None
                if content is not None:
                    yield member.name, content.read()
    else:
        raise DataError(f"{source} is neither a folder nor a zip or tar archive.")


def _is_archive(path: Path) -> bool:
    return path.name.endswith((".zip", ".tar", ".tar.gz", ".tar.xz", ".tgz"))
