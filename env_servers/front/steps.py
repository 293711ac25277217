"""A short way for steps: nearly all requests are steps, and half of what one cost was the framework's.

Only a well-formed step goes this way. All else, a malformed one included, is the framework's to answer, whose route of
the same path stays what the documentation shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env_servers.errors import ServiceError
from env_servers.front import problem
from env_servers.front.models import Step
from env_servers.front.service import Service

_PATH = re.compile(r"/v1/sessions/([A-Za-z0-9_-]{1,100})/step")
_JSON = (b"content-type", b"application/json")


class Steps:
    """ASGI middleware.

    Args:
        app: Answers every other request.
        service: Executes the steps.
        failed: Is told the type of every error.
    """

    def __init__(self, app: ASGIApp, service: Service, failed: Callable[[str], None]) -> None:
        self._app = app
        self._service = service
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a step, or passes the request on."""
        path = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if path is None or _JSON not in scope["headers"]:
            await self._app(scope, receive, send)
            return
        messages = await _messages(receive)
        try:
            step = Step.model_validate_json(b"".join(message.get("body", b"") for message in messages))
        except ValidationError:
            await self._app(scope, _again(messages, receive), send)
            return
        try:
            response = JSONResponse(await self._service.step(path[1], step))
        except ServiceError as error:
            self._failed(error.type)
            response = problem.response(error)
        except Exception as error:
            self._failed("internal")
            response = problem.defect(error, scope["path"])
        await response(scope, receive, send)


async def _messages(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    left = list(reversed(messages))

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
