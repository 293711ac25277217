"""Puts the ASGI app together."""

from __future__ import annotations

import time

from fastapi import FastAPI

from env_servers.front import agentgym, openenv, problem, routes_info, routes_sessions
from env_servers.front.gate import Gate
from env_servers.front.service import Service
from env_servers.front.steps import Steps


def build_app(service: Service) -> FastAPI:
    """Returns the app over a service; starting and stopping that is the caller's."""

    def begun() -> None:
        service.in_flight += 1

    def seen(method: str, status: int, seconds: float) -> None:
        service.in_flight -= 1
        service.last_used = time.monotonic()
        service.metrics.request(method, status, seconds)

    app = FastAPI(title="CoPE Gym environment service", version=routes_info.PROTOCOL)
    problem.install(app, service.metrics.error)
    # Routes are tried in order, and nearly all requests are steps.
    app.include_router(routes_sessions.routes(service))
    app.include_router(routes_info.routes(service))
    app.include_router(openenv.routes(service))
    app.include_router(agentgym.routes(service))
    app.add_middleware(Steps, service=service, failed=service.metrics.error)
    app.add_middleware(Gate, settings=service.settings, begun=begun, seen=seen)
    return app
