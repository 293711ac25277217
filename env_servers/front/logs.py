"""Structured logs: one JSON object a line on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, event and every extra field."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD and key[0] != "_"},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(level: str) -> None:
    """Sends all logs of this process to standard error in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Each request is in the metrics; a line for each would bury the rest.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
