"""The `step_index` table of `docs/protocol.md`, as a pure function of a session's state."""

from __future__ import annotations

from enum import Enum
from typing import Any

from env_servers.errors import ServiceError
from env_servers.front.session import Session


class Decision(Enum):
    """What a step request amounts to."""

    EXECUTE = "execute"
    JOIN = "join"
    REPEAT = "repeat"


def decide(session: Session, index: int, action: str, epoch: int) -> Decision:
    """Returns what to do with a step.

    Args:
        session: The session.
        index: The request's `step_index`.
        action: Canonical JSON of its action.
        epoch: The request's epoch.

    Raises:
        ServiceError: The request is refused; nothing changes.
    """
    _check_epoch(session, epoch)
    done = session.steps
    where: dict[str, Any] = {"session_id": session.id, "step_index": index}
    if session.running is not None and index == session.running.index:
        _check_same(session.running.action, action, where)
        return Decision.JOIN
    if index < done:
        if index < done - 1:
            detail = f"Step {index} is past; the next one is {done}. Only the last step can be asked for again."
            raise ServiceError("stale_step", detail, **where)
        _check_same(session.turns[index + 1].action, action, where)
        return Decision.REPEAT
    if session.failure is not None:
        raise session.failure.again()
    if session.over:
        detail = "The episode is over; start a new session for another one."
        raise ServiceError("episode_over", detail, **where)
    if index > done or session.running is not None:
        detail = f"Step {index} was sent but {done} is next; send the steps in order."
        raise ServiceError("step_gap", detail, **where)
    if session.intent is not None:
        _check_same(session.intent, action, where)
    return Decision.EXECUTE


def _check_epoch(session: Session, epoch: int) -> None:
    if epoch < session.epoch:
        detail = "Another client has attached to this session; attach again to take it over."
        raise ServiceError("superseded", detail, session_id=session.id, epoch=session.epoch)
    if epoch > session.epoch:
        detail = f"Epoch {epoch} was never given out; this session's is {session.epoch}."
        raise ServiceError("bad_request", detail, session_id=session.id)


def _check_same(known: str, action: str, where: dict[str, Any]) -> None:
    if known != action:
        detail = "This step was sent before with another action; repeat that action, or send the next step."
        raise ServiceError("action_mismatch", detail, **where)
