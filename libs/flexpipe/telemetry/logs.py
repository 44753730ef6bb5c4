"""JSON logs, one object a line, on standard error. Called once by each service at its start."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

REDACTED_FIELDS = frozenset({"password", "authorization", "api_key", "token"})
"""Fields whose value is never written, whatever the level."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """`time, level, service, logger, message`, what was passed as `extra`, and the traceback as text."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field, value in vars(record).items():
            if field not in _STANDARD:
                line[field] = "[redacted]" if field.lower() in REDACTED_FIELDS else value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(service: str, level: str = "INFO") -> None:
    """Route all logging of this process through one JSON handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "faststream"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
