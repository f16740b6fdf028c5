"""Read a request's body, with limits of media type, size and time."""

from __future__ import annotations

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

__all__ = ["JSON", "ONNX", "media_type", "read_body"]

JSON = "application/json"
ONNX = "application/octet-stream"

# A client that is still sending does not read the answer, so its body is read a little longer before the answer.
_DRAIN_SECONDS = 2.0


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type, one of `accepted`. Raises RefusedError for another, and for a body that is compressed."""
    given = request.headers.get("content-type", "")
    name = given.partition(";")[0].strip().lower()
    if name not in accepted:
        raise RefusedError(
            "unsupported-media-type",
            "unsupported media type",
            expected=" or ".join(accepted),
            found=given or "no Content-Type",
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise RefusedError(
            "unsupported-media-type",
            "the body is compressed",
            expected="an uncompressed body",
            found=f"{encoding} encoding",
        )
    return name


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body. Raises RefusedError if it is too large, with any Content-Length, or too slow.

    Raises ClientDisconnect if the caller disconnects. Never holds more than the limit.
    """
    most = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    too_large = RefusedError("too-large", "the body is too large", expected=f"at most {most} bytes", found=declared)
    is_too_large = declared.isdecimal() and int(declared) > most
    if is_too_large and "expect" in request.headers:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(_DRAIN_SECONDS if is_too_large else settings.body_seconds) as scope:
            while size <= 2 * most:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > most and not is_too_large:
                    is_too_large = True
                    scope.deadline = min(scope.deadline, anyio.current_time() + _DRAIN_SECONDS)
                if is_too_large:
                    chunks.clear()
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        if not is_too_large:
            raise RefusedError(
                "slow-body",
                "the body took too long to arrive",
                expected=f"all of it within {settings.body_seconds:g} s",
                found=f"{size} bytes",
            ) from None
    if is_too_large:
        raise too_large
    return b"".join(chunks)
