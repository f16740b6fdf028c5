"""Answers that are sent piece by piece, as fast as the caller takes them, and not copied whole into its connection."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Pieces"]

_PIECE = 1 << 18


class Pieces(Response):
    """A response whose content is sent in pieces."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for start in range(0, len(view) or 1, _PIECE):
            is_last = start + _PIECE >= len(view)
            await send({"type": "http.response.body", "body": view[start : start + _PIECE], "more_body": not is_last})
        if self.background is not None:
            await self.background()
