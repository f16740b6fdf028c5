"""The outermost middleware: it logs and counts each answer."""

from __future__ import annotations

import logging
import re
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relayout_api.access.callers import Caller
from relayout_api.telemetry.logs import trace_id
from relayout_api.telemetry.metrics import Metrics

_log = logging.getLogger("relayout_api.access")
# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
# Probes come every few seconds.
_QUIET = ("/healthz", "/readyz", "/metrics")


class Observer:
    """Counts answers, bytes and seconds, and logs each answer without its query, which may be private."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        # 499, as nginx has it: the caller disconnected before an answer.
        status, received, sent = 499, 0, 0
        found = _TRACEPARENT.fullmatch(Headers(scope=scope).get("traceparent", ""))
        trace_id.set(found[1] if found else None)

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def send_counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_counted, send_counted)
        finally:
            seconds = perf_counter() - started
            # Paths that callers make up would make as many time series.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.answered(method, route, status, seconds, received, sent)
            caller: Caller | None = scope.get("relayout.caller")
            _log.log(
                logging.DEBUG if scope["path"] in _QUIET and status < 400 else logging.INFO,
                "%s %s %s",
                scope["method"],
                scope["path"],
                status,
                extra={
                    "method": method,
                    "route": route,
                    "status": status,
                    "seconds": round(seconds, 4),
                    "bytes_in": received,
                    "bytes_out": sent,
                    "caller": caller.name if caller else "unknown",
                },
            )


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
