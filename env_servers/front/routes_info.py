"""Routes that change nothing: health, metadata, metrics, benchmarks and their tasks."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from env_servers.errors import ServiceError
from env_servers.front import problem
from env_servers.front.service import Service

PROTOCOL = "v1"

_MAX_LIMIT = 100_000
Document = dict[str, Any]


def routes(service: Service) -> APIRouter:
    """Returns the routes over a service."""
    router = APIRouter(responses=problem.OPENAPI)
    catalogue = service.catalogue

    @router.get("/health")
    async def health() -> Document:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "protocol": PROTOCOL}

    @router.get("/ready")
    async def ready() -> Response:  # pyright: ignore[reportUnusedFunction]
        if not service.ready or service.draining:
            return problem.response(ServiceError("draining", "The service is starting or shutting down; ask again."))
        if service.live >= service.settings.max_sessions:
            full = ServiceError("capacity", "All sessions are in use; ask again.", retry_after=2)
            return JSONResponse({**full.problem(), "status": 503}, 503, media_type=problem.MEDIA_TYPE)
        return JSONResponse({"status": "ready"})

    @router.get("/metadata")
    async def metadata() -> Document:  # pyright: ignore[reportUnusedFunction]
        found = await asyncio.gather(*(catalogue.metadata(env) for env in catalogue.envs))
        envs = {
            env: {**data, "facts": catalogue.describe(env)} for env, data in zip(catalogue.envs, found, strict=True)
        }
        return {"service": "cope-gym", "version": version("cope-gym"), "protocol": PROTOCOL, "envs": envs}

    @router.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(service.metrics_text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/envs")
    async def envs() -> Document:  # pyright: ignore[reportUnusedFunction]
        return {"envs": [catalogue.describe(env) for env in catalogue.envs]}

    @router.get("/v1/envs/{env}/tasks")
    async def tasks(  # pyright: ignore[reportUnusedFunction]
        env: str,
        split: str | None = None,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT)] = 1000,
    ) -> Document:
        found = await catalogue.tasks(env, split)
        page = found.tasks[offset : offset + limit]
        rows = [{"id": task, "split": part, "category": category} for task, part, category in page]
        return {"split": found.split, "total": len(found.tasks), "digest": found.digest, "tasks": rows}

    @router.get("/v1/envs/{env}/gold")
    async def gold(env: str, task_id: str, options: str = "{}") -> Document:  # pyright: ignore[reportUnusedFunction]
        return {"actions": await catalogue.gold(env, task_id, _options(options))}

    return router


def _options(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ServiceError("bad_request", "`options` must be a JSON object, e.g. options={}.")
    return {str(key): item for key, item in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
