"""Logs: one line a record, as JSON or as text, with the ids of request and trace."""

from __future__ import annotations

import json
import logging
import logging.config
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from asgi_correlation_id.context import correlation_id

LogFormat = Literal["json", "text"]

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""The trace of the request in hand, from its header `traceparent` (W3C Trace Context)."""

# Control characters.
_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}

# Fields that every record has, apart from those that the log call gives.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


def _ids() -> dict[str, str]:
    found = {"request_id": correlation_id.get(), "trace_id": trace_id.get()}
    return {name: value for name, value in found.items() if value}


def _given(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, ids, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(),
            **_given(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """For people: time, level, message, and the id of the request."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        given = [f"{name}={value}" for name, value in {**_given(record), **_ids()}.items()]
        line = " ".join([time, record.levelname.lower(), record.getMessage(), *given])
        # A caller's text must neither begin a line of its own nor steer a terminal.
        line = line.translate(_ESCAPED)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(form: LogFormat) -> None:
    """Send all logs to stderr in this form."""
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": JsonFormatter if form == "json" else TextFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": "INFO"},
        "loggers": {
            # Our own middleware logs each answer, with its id, size and seconds.
            "uvicorn.access": {"handlers": [], "propagate": False, "level": "CRITICAL"},
            # Other libraries speak up only when something is wrong.
            **{name: {"level": "WARNING"} for name in ("asyncio", "dbos", "httpx", "sqlalchemy")},
        },
    }
    logging.config.dictConfig(config)
