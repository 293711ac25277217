"""Every error as a problem document (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from env_servers.errors import ServiceError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

OPENAPI: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem; `type` says which, `retryable` whether the same request can succeed later.",
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail", "retryable"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "retryable": {"type": "boolean"},
                    },
                }
            }
        },
    },
}


def response(error: ServiceError) -> JSONResponse:
    """Returns the reply for an error."""
    headers: dict[str, str] = {}
    if "retry_after" in error.extra:
        headers["Retry-After"] = str(error.extra["retry_after"])
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.problem(), error.status, headers, MEDIA_TYPE)


def defect(error: Exception, path: str) -> JSONResponse:
    """Logs an error that should not have happened and returns the reply for it."""
    log.error("request failed inside the service", exc_info=error, extra={"path": path})
    return response(ServiceError("internal", "A defect of the service; its log has the details."))


def install(app: FastAPI, seen: Callable[[str], None]) -> None:
    """Makes the app answer every error so, and tells the type of each."""

    def answer(error: ServiceError) -> JSONResponse:
        seen(error.type)
        return response(error)

    async def service_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ServiceError)
        return answer(error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return answer(ServiceError("bad_request", _sentence(error)))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(_http(request, error))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        seen("internal")
        return defect(error, request.url.path)

    app.add_exception_handler(ServiceError, service_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _sentence(error: RequestValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return f"The request is malformed{f' at {place}' if place else ''}: {first['msg']}; see /docs for its form."


def _http(request: Request, error: HTTPException) -> ServiceError:
    if error.status_code == 404:
        return ServiceError("unknown_route", f"There is nothing at {request.url.path}; /docs lists the routes.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return ServiceError("method_not_allowed", f"{request.method} is not allowed here; allowed: {allowed}.")
    return ServiceError("bad_request", f"The request is malformed: {error.detail}.")
