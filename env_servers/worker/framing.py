"""Frames between the service and a worker: four bytes of length (big endian), then JSON in UTF-8.

Whatever JSON or UTF-8 cannot carry (NaN, infinities, lone surrogates) is cleaned here, so that no layer above needs to
think of it.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from typing import Any, Dict, List, Optional, Union, cast

MAX_FRAME = 64 * 1024 * 1024
HEADER = struct.Struct(">I")


class FrameError(Exception):
    """A frame that cannot be sent or read."""


def clean(value: Any) -> Any:
    """Returns the value with NaN and infinities as `None` and lone surrogates as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {clean(str(key)): clean(item) for key, item in cast("Dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in cast("Any", value)]
    return value


def to_json(value: Any) -> bytes:
    """Returns compact JSON in UTF-8.

    Raises:
        FrameError: The value holds something that JSON has no form for.
    """
    try:
        try:
            return _dump(value)
        except (ValueError, UnicodeEncodeError):
            return _dump(clean(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"not a JSON value: {error}") from error


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def encode(message: Dict[str, Any]) -> bytes:
    """Returns the message as one frame.

    Raises:
        FrameError: The message is too long or no JSON.
    """
    body = to_json(message)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a message of {len(body)} bytes exceeds the limit of {MAX_FRAME}")
    return HEADER.pack(len(body)) + body


def body_length(header: Union[bytes, bytearray]) -> int:
    """Returns the length that a header announces.

    Raises:
        FrameError: It is over the limit.
    """
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise FrameError(f"a message of {length} bytes exceeds the limit of {MAX_FRAME}")
    return int(length)


class Frames:
    """Takes a stream apart that comes in pieces of any size."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """Returns the messages that a further piece completes.

        Raises:
            FrameError: One is too long.
            ValueError: One is no JSON.
        """
        self._left += data
        found: List[Dict[str, Any]] = []
        while len(self._left) >= HEADER.size:
            end = HEADER.size + body_length(self._left[: HEADER.size])
            if len(self._left) < end:
                break
            found.append(json.loads(self._left[HEADER.size : end]))
            del self._left[:end]
        return found


def read(connection: socket.socket) -> Optional[Dict[str, Any]]:
    """Returns the next message, or `None` at the end of the stream."""
    header = _exactly(connection, HEADER.size)
    body = None if header is None else _exactly(connection, body_length(header))
    return None if body is None else json.loads(body)


def _exactly(connection: socket.socket, size: int) -> Optional[bytes]:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
