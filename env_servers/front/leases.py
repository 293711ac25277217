"""Leases: a session lives until nobody has asked for it for a while. Monotonic clock, one rule, no other eviction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


class Leases:
    """When each session runs out.

    Args:
        seconds: Length of a lease.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        # Equal lengths keep the dictionary in the order of expiry: a renewal moves to the end.
        self._deadlines: dict[str, float] = {}

    def renew(self, session: str) -> None:
        """Starts the lease, or starts it anew."""
        self._deadlines.pop(session, None)
        self._deadlines[session] = self._clock() + self.seconds

    def drop(self, session: str) -> None:
        """Forgets a session."""
        self._deadlines.pop(session, None)

    def expired(self) -> Iterator[str]:
        """Yields the sessions whose lease has run out, oldest first."""
        now = self._clock()
        for session, deadline in list(self._deadlines.items()):
            if deadline > now:
                return
            yield session
