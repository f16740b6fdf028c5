"""Answers that are sent piece by piece, as fast as the caller takes them, and not copied whole into its connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from relayout_api.bodies import ONNX, Bodies, more_time
from relayout_api.workers.messages import Content

_log = logging.getLogger("relayout_api")

FILE = "relayout.file"
"""The extension of a connection that has the kernel send files, and the key of a message's Content of the same bytes as
its `body`."""

SENT = "relayout.sent"
"""The key, beside a FILE, of a function that is called with the number of bytes of each part that the kernel sent."""

_PIECE = 1 << 18


class Pieces(Response):
    """A response whose content is sent in pieces. The kernel sends a model in a file, where the connection knows how;
    other kinds may be compressed.

    With `bodies`, the content is in memory: it counts there until it is sent, and the connection of a caller who does
    not take it in time is closed.
    """

    def __init__(self, content: bytes | memoryview | Content, bodies: Bodies | None = None, **options: Any) -> None:
        self._file = content if isinstance(content, Content) else None
        self._bodies = bodies
        super().__init__(content.view() if isinstance(content, Content) else content, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._bodies is None:
            await self._send(scope, send, lambda count: None)
        else:
            with self._bodies.sending(len(self.body)) as sending:
                await self._send(scope, send, partial(more_time, sending))
            if sending.cancelled_caught:
                await self._abort(scope)
        if self.background is not None:
            await self.background()

    async def _send(self, scope: Scope, send: Send, sent: Callable[[int], None]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        if self._file is not None and self.media_type == ONNX and FILE in scope.get("extensions", {}):
            await send({"type": "http.response.body", "body": view, FILE: self._file, SENT: sent})
            return
        for start in range(0, len(view) or 1, _PIECE):
            end = start + _PIECE
            piece: Message = {"type": "http.response.body", "body": view[start:end], "more_body": end < len(view)}
            await send(piece)
            sent(len(piece["body"]))

    async def _abort(self, scope: Scope) -> None:
        """Close the connection, with what is not sent yet: a caller who reads nothing would keep it open."""
        _log.warning("%s %s: the caller does not take the answer", scope["method"], scope["path"])
        if (extension := scope.get("extensions", {}).get(FILE)) is not None:
            extension["connection"].transport.abort()
        # The server learns of it in the next turn of the loop.
        await anyio.sleep(0)
