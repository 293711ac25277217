"""The service's errors: what `docs/protocol.md` lists, as one exception with a table of statuses.

Any layer of the service raises `ServiceError`; the front turns it into a problem document, workers' named errors
arrive as it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

STATUS: dict[str, int] = {
    "unauthorized": 401,
    "forbidden_host": 403,
    "unknown_env": 404,
    "unknown_split": 404,
    "unknown_task": 404,
    "unknown_session": 404,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "episode_over": 409,
    "stale_step": 409,
    "step_gap": 409,
    "action_mismatch": 409,
    "superseded": 409,
    "key_reuse": 409,
    "session_expired": 410,
    "episode_lost": 410,
    "too_large": 413,
    "bad_request": 422,
    "bad_action": 422,
    "bad_option": 422,
    "capacity": 429,
    "internal": 500,
    "user_model_failed": 502,
    "not_installed": 503,
    "draining": 503,
    "worker_failed": 503,
    "step_timeout": 504,
}
RETRYABLE = frozenset({"capacity", "user_model_failed", "draining", "worker_failed"})


class ServiceError(Exception):
    """A fault with a type of the protocol.

    Args:
        type: A key of `STATUS`.
        detail: One sentence that says what is wrong and how to mend it.
        retryable: Whether the same request can succeed later; by default what the protocol says of the type.
        extra: Further members of the problem document.
    """

    def __init__(self, type: str, detail: str, retryable: bool | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.retryable = type in RETRYABLE if retryable is None else retryable
        self.extra = extra

    @property
    def status(self) -> int:
        """The HTTP status; a type of an adapter's own counts as a refused request."""
        return STATUS.get(self.type, 422)

    def problem(self) -> dict[str, Any]:
        """Returns the problem document (RFC 9457)."""
        title = self.type.replace("_", " ").capitalize()
        known = {"type": self.type, "title": title, "status": self.status, "detail": self.detail}
        return {**self.extra, **known, "retryable": self.retryable}

    def again(self) -> ServiceError:
        """Returns an equal error; one instance raised many times would collect tracebacks."""
        return ServiceError(self.type, self.detail, self.retryable, **self.extra)

    @classmethod
    def from_problem(cls, problem: dict[str, Any]) -> ServiceError:
        """Returns the error that a problem document was made of."""
        extra = {k: v for k, v in problem.items() if k not in ("type", "title", "status", "detail", "retryable")}
        return cls(problem["type"], problem["detail"], problem["retryable"], **extra)


def near(name: str, names: Iterable[str], limit: int = 3) -> str:
    """Returns ` Did you mean …?` for the known names that resemble the given one, or an empty string."""
    known = list(names)
    close = difflib.get_close_matches(name, known, limit, 0.5) if len(known) <= 20_000 else []
    return f" Did you mean {' or '.join(close)}?" if close else ""
