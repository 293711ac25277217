"""Configuration files: where the shipped ones are, and files that extend others.

`extends: ../lora.yaml` (or a list) takes over another file's keys; those of the file itself win, whole values at a
time.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from cope_gym.errors import InputError

FOLDER = Path(__file__).with_name("configs")


def shipped() -> dict[str, Path]:
    """Returns the shipped configurations by name, e.g. `sciworld/cope`."""
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(FOLDER.glob("*/*.yaml")) if _trains(path)}


def find(name: str) -> Path:
    """Returns the file of a path or of a shipped configuration's name.

    Raises:
        InputError: There is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = shipped()
    if name.removesuffix(".yaml") in known:
        return known[name.removesuffix(".yaml")]
    near = get_close_matches(name, known, 3)
    hint = f"; near: {', '.join(near)}" if near else f"; shipped are {', '.join(known)}"
    raise InputError(f"there is no configuration file '{name}'{hint}", type="bad_option")


def read(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Reads a file and those that it extends.

    Raises:
        InputError: A file that is missing, is no mapping, or extends itself.
    """
    path = path.resolve()
    if path in within:
        raise InputError(f"{path} extends itself", type="bad_option")
    if not path.is_file():
        raise InputError(f"there is no configuration file '{path}'", type="bad_option")
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{path} is no YAML: {' '.join(str(error).split())}", type="bad_option") from error
    if not isinstance(own, dict):
        raise InputError(f"{path} must hold a mapping of options", type="bad_option")
    parents = own.pop("extends", [])
    merged: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        merged |= read(path.parent / parent, (*within, path))
    return merged | own


def _trains(path: Path) -> bool:
    return path.parent.name != "accelerate"
