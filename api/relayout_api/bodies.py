"""Read a request's body, with limits of media type, size and time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

__all__ = ["JSON", "ONNX", "Bodies", "media_type"]

JSON = "application/json"
ONNX = "application/octet-stream"

# A client that is still sending does not read the answer, so its body is read a little longer before the answer.
_DRAIN_SECONDS = 2.0
_DRAIN_BYTES = 1 << 20
# A body has this long before its rate counts.
_SLOW_START_SECONDS = 5.0


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


class Bodies:
    """Reads bodies, and bounds what all of them hold in memory together."""

    def __init__(self, settings: Settings) -> None:
        self.held = 0
        self._settings = settings

    @asynccontextmanager
    async def read(self, request: Request, most: int | None = None) -> AsyncIterator[bytes]:
        """The whole body, of at most `most` bytes. Its bytes count as held until the block ends.

        Raises RefusedError if it is too large, with any Content-Length, too slow, or one too many; ClientDisconnect if
        the caller disconnects. Never holds more than the limits.
        """
        reading = _Reading(request, self, self._settings, self._settings.max_body_bytes if most is None else most)
        try:
            yield await reading.body()
        finally:
            self.held -= reading.size


class _Reading:
    """One body while it arrives. `size`: the bytes held so far."""

    def __init__(self, request: Request, bodies: Bodies, settings: Settings, most: int) -> None:
        self.size = 0
        self._request = request
        self._bodies = bodies
        self._settings = settings
        self._most = most
        self._chunks: list[bytes] = []
        self._refusal: RefusedError | None = None

    async def body(self) -> bytes:
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most:
            self._refuse(self._too_large(f"{declared} bytes"))
            if "expect" in self._request.headers:
                raise self._too_large(declared)
        await self._read()
        if self._refusal is not None:
            raise self._refusal
        return b"".join(self._chunks)

    async def _read(self) -> None:
        started = anyio.current_time()
        seen = 0
        with anyio.move_on_at(math.inf) as scope:
            while seen <= 2 * self._most + _DRAIN_BYTES:
                scope.deadline = self._deadline(started, seen) if self._refusal is None else scope.deadline
                message = await self._request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk = message.get("body", b"")
                seen += len(chunk)
                if self._refusal is None:
                    self._hold(chunk, seen)
                    if self._refusal is not None:
                        scope.deadline = anyio.current_time() + _DRAIN_SECONDS
                if not message.get("more_body", False):
                    return
        if scope.cancelled_caught and self._refusal is None:
            settings = self._settings
            self._refusal = RefusedError(
                "slow-body",
                "the body took too long to arrive",
                expected=f"all of it within {settings.body_seconds:g} s, {settings.body_rate} bytes a second or more",
                found=f"{seen} bytes",
            )

    def _deadline(self, started: float, seen: int) -> float:
        """The time by which the next chunk must be there."""
        settings = self._settings
        end = started + settings.body_seconds
        if not settings.body_rate:
            return end
        return min(end, started + _SLOW_START_SECONDS + seen / settings.body_rate)

    def _hold(self, chunk: bytes, seen: int) -> None:
        if seen > self._most:
            self._refuse(self._too_large(f"more than {self._most} bytes"))
        elif self._bodies.held + len(chunk) > self._settings.bodies_bytes:
            self._refuse(
                RefusedError("busy", "the bodies of other requests fill the memory", hint="retry later", retry_after=5)
            )
        else:
            self._chunks.append(chunk)
            self.size += len(chunk)
            self._bodies.held += len(chunk)

    def _refuse(self, refusal: RefusedError) -> None:
        self._refusal = refusal
        self._chunks.clear()
        self._bodies.held -= self.size
        self.size = 0

    def _too_large(self, found: str) -> RefusedError:
        return RefusedError("too-large", "the body is too large", expected=f"at most {self._most} bytes", found=found)
