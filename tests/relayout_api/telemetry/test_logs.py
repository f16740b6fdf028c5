"""Log lines."""

from __future__ import annotations

import json
import logging

from asgi_correlation_id.context import correlation_id

from relayout_api.telemetry.logs import JsonFormatter, TextFormatter, trace_id


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("relayout_api").makeRecord(
        "relayout_api", logging.WARNING, "file", 1, message, (), None, extra=extra
    )


def test_a_json_line_has_the_ids_and_what_the_call_gives() -> None:
    correlation_id.set("r1")
    trace_id.set("a" * 32)
    line = json.loads(JsonFormatter().format(record("a worker\nended", signal=9)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "relayout_api",
        "message": "a worker\nended",
        "request_id": "r1",
        "trace_id": "a" * 32,
        "signal": 9,
    }


def test_a_text_line_is_one_line_whatever_it_quotes() -> None:
    line = TextFormatter().format(record("found\n12:00:00 error forged", path="/a\nb"))
    assert "\n" not in line
    assert "path=/a\\nb" in line


def test_a_text_line_has_no_control_characters() -> None:
    line = TextFormatter().format(record("GET /\x00\x1b[2J\x85\u2028", path="é"))
    assert "GET /\\x00\\x1b[2J\\x85\\u2028 path=é" in line
