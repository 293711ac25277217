"""One HTTP call to a service: encoding, time-outs, retries, typed errors. Knows nothing of sessions.

Every call of the protocol may be repeated: a step by its `step_index`, create, fork, delete and `step_many` by their
idempotency key, the rest because it changes nothing. So every call is retried alike.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

import requests
import urllib3
from requests.adapters import HTTPAdapter

from cope_gym.errors import CopeError, InfrastructureError, InputError, from_problem

PROTOCOL = "v1"


@dataclass(frozen=True)
class Patience:
    """How long a call waits.

    Attributes:
        connect: Seconds for a connection to be made.
        read: Seconds between two bytes of a reply; a step may run for as long.
        total: Seconds over which retryable faults are retried. A broken connection is retried at least once.
    """

    connect: float = 5.0
    read: float = 300.0
    total: float = 60.0

    def delay(self, error: CopeError, attempt: int, elapsed: float) -> float | None:
        """Returns the seconds to wait before the next attempt, or `None` to give up.

        Args:
            error: What the last attempt met.
            attempt: Number of failed attempts, from 1.
            elapsed: Seconds since the first one began.
        """
        if not error.retryable:
            return None
        wait = error.retry_after
        if wait is None:
            wait = min(0.05 * 2**attempt, 5.0) * random.uniform(0.5, 1.0)
        if elapsed + wait <= self.total or (error.type == "connection" and attempt == 1):
            return wait
        return None


QUICK = Patience(connect=1.0, read=5.0, total=0.0)
"""For goodbyes: nobody waits for them."""


def encode(body: Any) -> bytes:
    """Returns the body as JSON.

    Raises:
        InputError: It is no JSON value.
    """
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"Actions and options must be JSON values: {error}.", type="bad_request") from error


def decode(base: str, status: int, content_type: str, content: bytes, retry_after: str | None) -> Any:
    """Returns the value of a reply.

    Raises:
        CopeError: The reply is a problem document, or not one of this protocol at all.
    """
    try:
        value = json.loads(content) if content else None
    except ValueError:
        value = None
    if 200 <= status < 300 and (value is not None or status == 204):
        return value
    if not isinstance(value, dict) or "type" not in value:
        raise _foreign(base, status, content_type)
    problem = cast("dict[str, Any]", value)
    if retry_after is not None and retry_after.isdigit():
        problem.setdefault("retry_after", int(retry_after))
    raise from_problem(problem, status)


def _foreign(base: str, status: int, content_type: str) -> CopeError:
    gateway = status in (502, 503, 504)
    return InfrastructureError(
        f"{base} answers with status {status} ({content_type or 'no content type'}), which no CoPE server does: "
        + (
            "the proxy before it finds no server." if gateway else "check the address, or start one with `cope serve`."
        ),
        type="connection" if gateway else "protocol",
        retryable=gateway,
        status=status,
    )


def unreachable(base: str, cause: object) -> CopeError:
    """Returns the error for a connection that failed or broke."""
    return InfrastructureError(
        f"No reply from {base} ({cause}): is `cope serve` running there?", type="connection", retryable=True
    )


def check_protocol(base: str, health: Mapping[str, Any]) -> None:
    """Refuses a server that speaks another protocol.

    Raises:
        InfrastructureError: With both versions.
    """
    version = health.get("protocol", PROTOCOL)
    if version != PROTOCOL:
        raise InfrastructureError(
            f"{base} speaks protocol {version} and this client speaks {PROTOCOL}: "
            "install the same version of cope-gym on both sides.",
            type="protocol",
        )


class Transport:
    """Keep-alive connections to any number of servers, for any number of threads.

    Args:
        token: Bearer token, sent with every call.
        patience: Default waits.

    Attributes:
        diagnose: May replace an error by one that knows more.
    """

    def __init__(self, token: str | None = None, patience: Patience | None = None) -> None:
        self.token = token
        self.patience = patience or Patience()
        self.diagnose: Callable[[CopeError], CopeError] | None = None
        self._adapter = self._connect()

    def call(
        self,
        method: str,
        base: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        patience: Patience | None = None,
    ) -> Any:
        """Makes one call, repeated until it succeeds, fails for good, or patience ends.

        Args:
            method: HTTP method.
            base: Address of the server.
            path: Route, from `/`.
            body: JSON value.
            params: Query parameters; those that are `None` are left out.
            key: Idempotency key.
            patience: Waits of this call.

        Raises:
            CopeError: The last fault.
        """
        waits = patience or self.patience
        data = None if body is None else encode(body)
        started = time.monotonic()
        attempt = 0
        while True:
            try:
                return self._once(method, base, path, data, params, key, waits)
            except CopeError as raised:
                error = raised if self.diagnose is None else self.diagnose(raised)
            attempt += 1
            delay = waits.delay(error, attempt, time.monotonic() - started)
            if delay is None:
                raise error
            time.sleep(delay)

    def _once(
        self,
        method: str,
        base: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, Any] | None,
        key: str | None,
        waits: Patience,
    ) -> Any:
        headers = {} if data is None else {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        pool, prefix = self._routes.get(base) or self._route(base)
        query = urlencode({k: v for k, v in (params or {}).items() if v is not None})
        try:
            reply = pool.urlopen(
                method,
                f"{prefix}{path}?{query}" if query else prefix + path,
                body=data,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,  # through a proxy a path is a whole address
                timeout=urllib3.Timeout(connect=waits.connect, read=waits.read),
            )
        except urllib3.exceptions.ReadTimeoutError:
            raise unreachable(base, f"none within {waits.read:g} s") from None
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(base, _cause(error)) from None
        content_type = reply.headers.get("Content-Type", "")
        return decode(base, reply.status, content_type, reply.data, reply.headers.get("Retry-After"))

    def _route(self, base: str) -> tuple[urllib3.HTTPConnectionPool, str]:
        """Connections to a server and what stands before a path there.

        Requests finds them, with the environment's proxies and certificates, once a server; calls then go to its pool
        directly, which takes half of the processor time. Rollouts make hundreds a second beside a sampler.
        """
        if not base.startswith(("http://", "https://")):
            raise _no_address(base)
        try:
            asked = requests.Request("GET", base).prepare()
            with requests.Session() as session:
                # A proxy of the environment must not come between a client and a server on its own machine.
                session.proxies = {"http://127.0.0.1": "", "http://localhost": ""}
                found: Any = session.merge_environment_settings(base, {}, None, None, None)
            pool: Any = self._adapter.get_connection_with_tls_context(asked, found["verify"], found["proxies"])
            self._adapter.cert_verify(pool, base, found["verify"], None)
        except (requests.exceptions.InvalidURL, urllib3.exceptions.LocationValueError):
            raise _no_address(base) from None
        prefix = self._adapter.request_url(asked, found["proxies"]).rstrip("/")
        self._routes[base] = (pool, prefix)
        return pool, prefix

    def _connect(self) -> HTTPAdapter:
        self._routes: dict[str, tuple[urllib3.HTTPConnectionPool, str]] = {}
        return HTTPAdapter(pool_connections=64, pool_maxsize=1024)

    def after_fork(self) -> None:
        """Leaves the connections to the parent process."""
        self._adapter = self._connect()

    def close(self) -> None:
        """Closes idle connections; a later call opens new ones."""
        self._routes.clear()
        self._adapter.close()


def _no_address(base: str) -> InputError:
    return InputError(f"'{base}' is no server address: write one like http://127.0.0.1:8000.", type="bad_request")


def _cause(error: BaseException) -> str:
    """The innermost reason in words, e.g. `Connection refused`."""
    seen: BaseException = error
    while isinstance(getattr(seen, "reason", None) or seen.__cause__ or seen.__context__, BaseException):
        seen = getattr(seen, "reason", None) or seen.__cause__ or seen.__context__ or seen
    return getattr(seen, "strerror", None) or type(seen).__name__
