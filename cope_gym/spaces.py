"""A space of texts that is cheap for long ones.

`gymnasium.spaces.Text` lists its characters: all of Unicode takes seconds to build, and its shared-memory batches come
back as garbage without an error. This one asks for a string of bounded length and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np

_WORDS = ("look", "open", "go", "take", "door", "box", "north", "red", "around", "inventory")


class TextSpace(gym.Space[str]):
    """Every string up to a length.

    Args:
        max_length: Characters allowed.
        seed: Seed of `sample`.
    """

    def __init__(self, max_length: int = 10_000_000, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Returns one to three plain words."""
        words = self.np_random.choice(_WORDS, size=int(self.np_random.integers(1, 4)))
        return " ".join(str(word) for word in words)[: self.max_length]

    def contains(self, x: Any) -> bool:
        """Returns whether it is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[Any]:
        """Returns the texts."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Returns the texts."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    def __repr__(self) -> str:
        return f"TextSpace(max_length={self.max_length})"
