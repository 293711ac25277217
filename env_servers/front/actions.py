"""Actions as they are compared and stored: canonical JSON."""

from __future__ import annotations

import json
from typing import Any

from env_servers.errors import ServiceError
from env_servers.worker.framing import clean


def canonical(action: Any, limit: int) -> str:
    """Returns an action's canonical JSON.

    Args:
        action: Any JSON value.
        limit: Characters allowed.

    Raises:
        ServiceError: `bad_action` for one that is too long or nested too deeply.
    """
    try:
        text = json.dumps(clean(action), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ServiceError("bad_action", "The action is nested too deeply; send a flatter value.") from None
    if len(text) > limit:
        raise ServiceError("bad_action", f"The action has {len(text)} characters; at most {limit} are accepted.")
    return text


def parse(action: str) -> Any:
    """Returns the value of canonical JSON."""
    return json.loads(action)
