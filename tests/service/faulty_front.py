"""A server whose replies can get lost: `cope serve` with one layer around its app.

A request with the header `X-Fault: drop` is executed, then its connection is cut; `X-Fault: kill` has the server kill
itself between execution and reply.
"""

from __future__ import annotations

import os
import signal

import typer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env_servers.cli_serve import serve
from env_servers.front import server as front


class Faults:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = dict(scope.get("headers", [])).get(b"x-fault")

        async def sending(message: Message) -> None:
            if fault == b"kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == b"drop":
                send.__self__.transport.abort()  # type: ignore[attr-defined]  # uvicorn's own; ASGI cannot cut a connection
                return
            await send(message)

        await self.app(scope, receive, sending)


build_app = front.build_app
front.build_app = lambda service: Faults(build_app(service))  # type: ignore[assignment, return-value]

if __name__ == "__main__":
    typer.run(serve)
