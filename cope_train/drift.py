"""A guard against what auxiliary targets are known to do: the policy's own turns take on another form.

It watches one share (turns without an action in the policy's format) from the first step on.
"""

from __future__ import annotations

from collections import deque

from cope_gym.actions import FORMATS, parse

FIRST_STEPS = 3  # the share before training had an effect is the mean over these
LAST_STEPS = 3  # and it is compared with the mean over these, so that one odd batch stops nothing


def in_another_format(text: str, format: str) -> bool:
    """Whether a turn holds no action in the policy's format, but one in another."""
    others = set(FORMATS) - {format, "plain"}
    return parse(text, format).error is not None and any(parse(text, other).error is None for other in others)


class DriftGuard:
    """Says when a share has grown too far.

    Args:
        limit: Largest growth over the first steps; `None` never stops anything.

    Attributes:
        drift: Growth so far.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.drift = 0.0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=LAST_STEPS)

    def passes(self, share: float) -> bool:
        """Takes the share of one step.

        Returns:
            Whether training may go on as it is.
        """
        if len(self._first) < FIRST_STEPS:
            self._first.append(share)
            return True
        self._last.append(share)
        self.drift = self._growth()
        return self.limit is None or len(self._last) < LAST_STEPS or self.drift <= self.limit

    def state(self) -> dict[str, list[float]]:
        """What a checkpoint keeps: else a resumed run would take its drifted shares for the first ones."""
        return {"first": self._first, "last": list(self._last)}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Takes it back."""
        self._first, self._last = list(state["first"]), deque(state["last"], maxlen=LAST_STEPS)
        self.drift = self._growth() if self._last else 0.0

    def _growth(self) -> float:
        return sum(self._last) / len(self._last) - sum(self._first) / FIRST_STEPS
