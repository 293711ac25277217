"""A minimal HTTP/1.1 client on asyncio streams: one kept connection a session.

General clients spend more time on a request than the service does, and with thousands of connections on the same cores
one would measure them.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """One connection to a service.

    Args:
        url: Address of the service, `http://host:port`.
        token: Bearer token.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        self._head += f"Authorization: Bearer {token}\r\n" if token else ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """Returns status and body of a reply.

        Raises:
            OSError: The connection failed.
        """
        content = b"" if body is None else json.dumps(body).encode()
        status, reply = await self._exchange(method, path, content, f"Idempotency-Key: {key}\r\n" if key else "")
        return status, json.loads(reply) if reply else None

    async def text(self, path: str) -> bytes:
        """Returns what stands at a path that has no JSON.

        Raises:
            OSError: The connection failed.
        """
        return (await self._exchange("GET", path, b"", ""))[1]

    async def _exchange(self, method: str, path: str, content: bytes, headers: str) -> tuple[int, bytes]:
        # A connection that was long idle the service has closed.
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self.close()
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{headers}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        return await self._reply(self._reader)

    def close(self) -> None:
        """Closes the connection."""
        if self._writer is not None:
            self._writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            lengths = [line.partition(":")[2] for line in head if line.startswith("content-length:")]
            content = await reader.readexactly(int(lengths[0])) if lengths else b""
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the service closed the connection") from error
        return int(head[0].split()[1]), content
