"""Imports WebShop's published data: `cope data import webshop PATH` or `hub:OWNER/NAME`. Standard library only.

The building itself runs in WebShop's own environment, the tagging of product names in one that has spaCy.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from env_servers.install import cache_home, environment, install
from env_servers.webshop import hub, official, tagging

_ROOT = Path(__file__).resolve().parents[2]
# `git hash-object` of the published files, to tell a genuine download from another.
_GENUINE = {
    "08dfda9a1c896e0f69d50e3437dd3fe94419b7d7": "items_shuffle_1000.json as published",
    "b2ab7479b9798e0b62ea394e065f3d506875f090": "items_human_ins.json as published",
    "22837ad99f3173712fc9cb1cce7de6b75fe90595": "items_ins_v2_1000.json as published",
}
_MAX_HASHED = 1 << 28

Report = Callable[[str], None]


class ImportFailed(Exception):
    """An import that cannot be done; the message says why and what to do."""


def import_data(
    source: str,
    name: str | None = None,
    *,
    nouns: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    strict: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Prepares a catalogue from published files and stores it under the cache folder.

    Args:
        source: A folder with `items_shuffle*.json`, `items_ins_v2*.json` and maybe `items_human_ins.json` and
            `title_nouns*.json`, or `hub:axon-rl/webshop`.
        name: Name of the catalogue, for `--set webshop.catalogue=NAME`; by default `official-N` with N products.
        nouns: File of noun lists by product name; by default one beside the products, else the names are tagged.
        seed: Of prices and price ceilings.
        limit: Take the first products only.
        strict: Fail at a malformed product in place of skipping it.
        report: Is told of each stage.

    Returns:
        The catalogue's manifest.

    Raises:
        ImportFailed: With the one line that mends it.
    """
    tell = report or _silent
    try:
        install("webshop")
        with tempfile.TemporaryDirectory(prefix="cope-webshop-") as scratch:
            folder = hub.download(source[4:], Path(scratch), tell) if source.startswith("hub:") else Path(source)
            return _import(folder.expanduser().resolve(), source, name, nouns, seed, limit, strict, tell)
    except (official.SourceError, tagging.TaggingFailed, hub.HubError) as error:
        raise ImportFailed(str(error)) from error


def _import(
    folder: Path,
    source: str,
    name: str | None,
    nouns: str | None,
    seed: int,
    limit: int | None,
    strict: bool,
    tell: Report,
) -> dict[str, Any]:
    files = official.find(folder)
    for path in files.values():
        tell(f"{path.name}: {_genuine(path)}")
    lists = Path(nouns).expanduser().resolve() if nouns else files.get("nouns") or tagging.tag(folder, limit, tell)
    tell("building the catalogue")
    home = cache_home() / "data" / "webshop"
    home.mkdir(parents=True, exist_ok=True)
    provenance = {"source": source if source.startswith("hub:") else "published files", "nouns": lists.name}
    with tempfile.TemporaryDirectory(prefix=".import-", dir=home) as aside:
        built = Path(aside) / "catalogue"
        command = [str(folder), str(built), "--nouns", str(lists), "--seed", str(seed)]
        command += ["--provenance", json.dumps(provenance), *(["--strict"] if strict else [])]
        manifest = _build(command + (["--limit", str(limit)] if limit is not None else []))
        manifest["name"] = name or f"official-{manifest['products']}"
        target = home / manifest["name"]
        shutil.rmtree(target, ignore_errors=True)
        built.rename(target)
    tell(_summary(manifest))
    return manifest


def _build(arguments: list[str]) -> dict[str, Any]:
    start = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from env_servers.webshop.prepare import main; main()"
    result = subprocess.run(
        [environment("webshop"), "-I", "-c", start, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode:
        raise ImportFailed(result.stderr.strip().rpartition("\n")[2])
    manifest: dict[str, Any] = json.loads(result.stdout)
    return manifest


def _genuine(path: Path) -> str:
    """Says whether a file is a published one, byte for byte."""
    size = path.stat().st_size
    if size > _MAX_HASHED:
        return "too large to be one of the files with a known hash"
    digest = hashlib.sha1(b"blob %d\0" % size + path.read_bytes(), usedforsecurity=False).hexdigest()
    return _GENUINE.get(digest, "not one of the files with a known hash")


def _summary(manifest: dict[str, Any]) -> str:
    goals = {kind: counts["total"] for kind, counts in manifest["goals"].items()}
    text = f"catalogue {manifest['name']}: {manifest['products']} products, "
    text += ", ".join(f"{count} {kind} goals" for kind, count in goals.items())
    if manifest["dropped"]["malformed"]:
        text += f", {manifest['dropped']['malformed']} malformed products skipped"
    if 0 < goals["human"] < 1500:
        text += "; with so few products only these crowd goals exist, so the splits are made of the synthetic ones"
    return f"{text}. Serve it with --set webshop.catalogue={manifest['name']}"


def _silent(what: str) -> None:
    pass
