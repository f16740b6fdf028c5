"""Reading a request's body: of the right media type, not larger and not slower than allowed."""

from __future__ import annotations

import anyio
from fastapi import Request

from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

__all__ = ["JSON", "ONNX", "media_type", "read_body"]

JSON = "application/json"
ONNX = "application/octet-stream"

# A client that still sends does not look at the answer: it is listened to a little longer before it is told.
_DRAIN_SECONDS = 2.0


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type, one of `accepted`. Raises RefusedError for another, and for a body that is compressed."""
    given = request.headers.get("content-type", "")
    name = given.partition(";")[0].strip().lower()
    if name not in accepted:
        raise RefusedError(
            "unsupported-media-type",
            "the body is of no media type that this takes",
            expected=" or ".join(accepted),
            found=given or "no Content-Type",
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise RefusedError(
            "unsupported-media-type", "the body is compressed", expected="a body as it is", found=f"{encoding} encoding"
        )
    return name


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body. Raises RefusedError as soon as it is too large, whatever Content-Length says, or too slow."""
    most = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        if "expect" not in request.headers:
            await _drain(request, most)
        raise _too_large(most, declared)
    chunks: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(settings.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    break
                chunks.append(chunk)
    except TimeoutError:
        raise RefusedError(
            "slow-body",
            "the body took too long to arrive",
            expected=f"all of it within {settings.body_seconds:g} s",
            found=f"{size} bytes",
        ) from None
    if size > most:
        chunks.clear()
        await _drain(request, most)
        raise _too_large(most, "more")
    return b"".join(chunks)


def _too_large(most: int, found: str) -> RefusedError:
    return RefusedError("too-large", "the body is too large", expected=f"at most {most} bytes", found=found)


async def _drain(request: Request, most: int) -> None:
    """Read on for a little while, and throw it away."""
    size = 0
    with anyio.move_on_after(_DRAIN_SECONDS):
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                return
