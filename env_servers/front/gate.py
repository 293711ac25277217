"""What a request must pass before any route sees it: host, token, rate, size. Plain ASGI, for speed."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env_servers.errors import ServiceError
from env_servers.front import problem
from env_servers.front.settings import FrontSettings

OPEN_PATHS = frozenset({"/health", "/ready"})
_ADDRESSES = 10_000
_POLICY_VIOLATION = 1008


class RateLimit:
    """A token bucket for each address, with a burst of two seconds' worth.

    Args:
        rate: Requests a second.
        clock: Monotonic clock.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, 2 * rate)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, address: str) -> float:
        """Takes a request; returns 0, or the seconds after which there is room for one."""
        now = self._clock()
        left, then = self._buckets.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[address] = (left - 1 if wait == 0 else left, now)
        if len(self._buckets) > _ADDRESSES:  # the oldest has long been full again
            del self._buckets[next(iter(self._buckets))]
        return wait


class Gate:
    """ASGI middleware.

    Args:
        app: What is behind it.
        settings: The service's settings.
        begun: Is told of the beginning of every request.
        seen: Is told the method, status and seconds of every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: FrontSettings,
        begun: Callable[[], None],
        seen: Callable[[str, int, float], None],
    ) -> None:
        self._app = app
        self._settings = settings
        self._begun = begun
        self._seen = seen
        self._rate = RateLimit(settings.rate_limit) if settings.rate_limit else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through or answers it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._begun()
        began = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                body = await self._check(scope, receive)
            except ServiceError as error:
                if scope["type"] == "websocket":
                    # Closing before accepting makes the handshake fail with 403.
                    await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.type})
                else:
                    await problem.response(error)(scope, receive, sending)
            else:
                await self._app(scope, body, sending)
        finally:
            self._seen(scope.get("method", "WEBSOCKET"), status, time.perf_counter() - began)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        headers = {name.lower(): value for name, value in scope["headers"]}
        self._check_host(headers)
        if scope["path"] in OPEN_PATHS:
            return receive
        self._check_token(headers)
        self._check_rate(scope)
        return receive if scope["type"] != "http" else await self._limited(headers, receive)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        hosts = self._settings.hosts
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if hosts is not None and name not in hosts:
            detail = f"The host {name!r} is not served; use one of: {', '.join(sorted(hosts))}."
            raise ServiceError("forbidden_host", detail)

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        token = self._settings.token
        if token is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token.encode()):
            detail = "The bearer token is missing or wrong; pass the server's token (`token=` or COPE_TOKEN)."
            raise ServiceError("unauthorized", detail)

    def _check_rate(self, scope: Scope) -> None:
        if self._rate is not None and (wait := self._rate.take((scope.get("client") or ("",))[0])):
            detail = f"More than {self._settings.rate_limit:g} requests a second; slow down."
            raise ServiceError("capacity", detail, retry_after=max(1, round(wait)))

    async def _limited(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        limit = self._settings.max_body
        too_large = ServiceError("too_large", f"The request exceeds {limit} bytes; send a shorter one.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        if b"transfer-encoding" not in headers:
            return receive
        # A chunked request names no length: it is read here, so that it can still be refused.
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > limit:
                raise too_large
            if not message.get("more_body"):
                break

        async def replay() -> Any:
            return messages.pop(0) if messages else await receive()

        return replay
