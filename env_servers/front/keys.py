"""Idempotency keys: the same key again gives the reply of the first request, even while that is being worked on."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from env_servers.errors import ServiceError
from env_servers.worker.framing import to_json

_KEPT = 20_000

Document = dict[str, Any]


class Keys:
    """Remembers the latest requests by key. A failed request is forgotten: its retry is a new try."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, asyncio.Future[Document]]] = OrderedDict()

    async def once(self, key: str | None, request: Any, work: Callable[[], Awaitable[Document]]) -> Document:
        """Returns what the work gives, done once for a key.

        Args:
            key: The client's key, `None` for a request without one.
            request: What was asked, to tell a retry from another request under the same key.
            work: Does it.

        Raises:
            ServiceError: `key_reuse`, or what the work raises.
        """
        if key is None:
            return await work()
        fingerprint = self.fingerprint(request)
        if key in self._known:
            known, future = self._known[key]
            if known != fingerprint:
                detail = "This Idempotency-Key was used for another request; make a new key for each request."
                raise ServiceError("key_reuse", detail)
            return await asyncio.shield(future)
        task = asyncio.ensure_future(work())
        self._known[key] = (fingerprint, task)
        task.add_done_callback(lambda done: self._forget_failure(key, done))
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return await asyncio.shield(task)

    def _forget_failure(self, key: str, done: asyncio.Future[Document]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._known.pop(key, None)

    @staticmethod
    def fingerprint(request: Any) -> str:
        """Returns what tells one request from another."""
        return hashlib.sha256(to_json(request)).hexdigest()

    def restore(self, key: str, fingerprint: str, document: Document) -> None:
        """Puts back what a journal kept."""
        future: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        future.set_result(document)
        self._known[key] = (fingerprint, future)
