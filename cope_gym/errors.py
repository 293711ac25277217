"""What can go wrong, as a small tree; `type` is the word of `docs/protocol.md`.

```
CopeError
├── InputError            the call is wrong: an unknown task, a bad option, a missing token
├── SessionError          the episode does not take this call: it is over, or another client owns it
│   └── LostSession       also an InfrastructureError: the episode is gone and a new one may be tried
└── InfrastructureError   nobody's action is to blame: no server, no room, a dead worker. Never a reward.
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CopeError(Exception):
    """A fault with one sentence that says how to mend it.

    Attributes:
        type: The word of `docs/protocol.md`; the client's own: `connection`, `protocol`, `server_start`, `no_server`.
        detail: The sentence.
        retryable: Whether the same call can succeed later without a change.
        status: HTTP status, 0 where there was no reply.
        retry_after: Seconds after which to try again, where the server said so.
        extra: Whatever else the server said, e.g. `session_id`, `step_index`, `near`.
    """

    def __init__(
        self,
        detail: str,
        *,
        type: str,
        retryable: bool = False,
        status: int = 0,
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after
        self.extra: dict[str, Any] = dict(extra or {})

    def __reduce__(self) -> tuple[Any, ...]:
        members = ("detail", "type", "retryable", "status", "retry_after", "extra")
        return _rebuild, (type(self), {name: getattr(self, name) for name in members})


class InputError(CopeError):
    """The call is wrong and stays wrong: nothing was executed."""


class SessionError(CopeError):
    """The session does not take this call in its present state."""


class InfrastructureError(CopeError):
    """The service failed, not the agent: retry or drop the episode, never score it."""


class LostSession(SessionError, InfrastructureError):
    """The session is gone: it expired, could not be rebuilt, or its server was started anew."""


_CLASSES: dict[str, type[CopeError]] = {
    **dict.fromkeys(["unauthorized", "unknown_env", "unknown_split", "unknown_task"], InputError),
    **dict.fromkeys(["too_large", "bad_request", "bad_action", "bad_option", "key_reuse"], InputError),
    **dict.fromkeys(["episode_over", "stale_step", "step_gap", "action_mismatch", "superseded"], SessionError),
    **dict.fromkeys(["unknown_session", "session_expired", "episode_lost"], LostSession),
}


def from_problem(problem: Mapping[str, Any], status: int = 0) -> CopeError:
    """Returns the error that a problem document stands for.

    Args:
        problem: The parsed document. An unknown type is an `InfrastructureError` for 5xx and 429, else `InputError`.
        status: HTTP status, used where the document names none.
    """
    members = dict(problem)
    kind = str(members.pop("type", "internal"))
    status = int(members.pop("status", 0) or status)
    fallback = InfrastructureError if status >= 500 or status == 429 else InputError
    title = members.pop("title", kind)
    detail = str(members.pop("detail", "") or title)
    wait = members.pop("retry_after", None)
    return _CLASSES.get(kind, fallback)(
        detail,
        type=kind,
        retryable=bool(members.pop("retryable", False)),
        status=status,
        retry_after=float(wait) if isinstance(wait, int | float) else None,
        extra=members,
    )


def _rebuild(cls: type[CopeError], state: dict[str, Any]) -> CopeError:
    return cls(**state)
