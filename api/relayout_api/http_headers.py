"""Headers: entity tags, and middleware for those that protect a browser, what a caller accepts, and HEAD."""

from __future__ import annotations

import re

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# RFC 9110, section 12.5.3: a weight of 0 is a refusal.
_NO_GZIP = re.compile(r"\bgzip\s*;\s*q\s*=\s*0(\.0{0,3})?\s*(,|$)", re.IGNORECASE)

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A cache between a caller and the service does not know X-API-Key, and would give one caller's answer to another.
    "Cache-Control": "private, no-cache",
    # The page has a policy of its own.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def tag_of(digest: str) -> str:
    """The header ETag of an answer: weak, because the answer may be compressed on its way (RFC 9110, section 8.8.3)."""
    return f'W/"{digest}"'


def is_known(request: Request, digest: str) -> bool:
    """Whether the caller has the answer of this digest: If-None-Match, which compares weakly (section 13.1.2), or says
    that it has any answer that is there before the request, as those are that are read."""
    tags = ", ".join(request.headers.getlist("if-none-match"))
    return f'"{digest}"' in tags or (tags.strip() == "*" and request.method in ("GET", "HEAD"))


class SecurityHeaders:
    """Adds the headers that keep browsers and caches from guessing, framing and leaking, where an answer has none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class Gzip(GZipMiddleware):
    """Compresses answers for callers that accept it: starlette's looks for the word alone, whatever its weight."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _NO_GZIP.search(",".join(Headers(scope=scope).getlist("accept-encoding"))):
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != b"accept-encoding"]}
        await super().__call__(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET without the body (RFC 9110, section 9.3.2). A stream of events, which may not end, is left
    at its head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)
            if is_stream and message["type"] == "http.response.start":
                await send({"type": "http.response.body", "body": b""})
                answering.cancel()

        is_stream = scope["path"].endswith("/events")
        with anyio.CancelScope() as answering:
            await self._app({**scope, "method": "GET"}, receive, send_head)
