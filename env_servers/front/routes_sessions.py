"""Routes of the session protocol."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse

from env_servers.front import problem
from env_servers.front.models import CreateSession, Heartbeat, Step, StepMany
from env_servers.front.service import Service

Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
Document = dict[str, Any]


def routes(service: Service) -> APIRouter:
    """Returns the routes over a service."""
    router = APIRouter(prefix="/v1", responses=problem.OPENAPI)

    @router.post("/sessions/{session_id}/step")
    async def step(session_id: str, body: Step) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Executes, joins or repeats a step."""
        return JSONResponse(await service.step(session_id, body))

    @router.post("/sessions", status_code=201)
    async def create(body: CreateSession, key: Key = None) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Starts an episode."""
        return JSONResponse(await service.create(body, key), 201)

    @router.get("/sessions/{session_id}")
    async def read(session_id: str) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Returns a session with its last reply."""
        return JSONResponse(service.read(session_id))

    @router.post("/step_many")
    async def step_many(body: StepMany, key: Key = None) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Steps several sessions; `step_index` already makes a repetition safe, so the key adds nothing here."""
        return JSONResponse({"results": await service.step_many(body.steps)})

    @router.post("/sessions/{session_id}/attach")
    async def attach(session_id: str) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Takes a session over; older epochs are superseded."""
        return JSONResponse(await service.attach(session_id))

    @router.post("/sessions/{session_id}/fork", status_code=201)
    async def fork(session_id: str, key: Key = None) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Starts a second session in the same state."""
        return JSONResponse(await service.fork(session_id, key), 201)

    @router.post("/heartbeat")
    async def heartbeat(body: Heartbeat) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """Renews leases."""
        return JSONResponse(service.heartbeat(body.session_ids))

    @router.delete("/sessions/{session_id}", status_code=204)
    async def close(session_id: str, key: Key = None) -> Response:  # pyright: ignore[reportUnusedFunction]
        """Ends a session; a second time is fine."""
        await service.close(session_id)
        return Response(status_code=204)

    return router
