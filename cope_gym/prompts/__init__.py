"""System prompts, one file a benchmark, in our own words and in the benchmark's published action format."""

from __future__ import annotations

from importlib.resources import files

from cope_gym.errors import InputError


def load(env: str) -> str:
    """Returns the system prompt of an environment.

    Raises:
        InputError: There is none.
    """
    try:
        return (files(__name__) / f"{env}.md").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise InputError(
            f"There is no prompt for '{env}'; there are: {', '.join(names())}.", type="unknown_env"
        ) from None


def names() -> list[str]:
    """Returns the environments that have a prompt."""
    return sorted(file.name[:-3] for file in files(__name__).iterdir() if file.name.endswith(".md"))
