"""Answers that are sent piece by piece, as fast as the caller takes them, and not copied whole into its connection."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from relayout_api.bodies import ONNX
from relayout_api.workers.messages import Content

__all__ = ["FILE", "Pieces"]

FILE = "relayout.file"
"""The extension of a connection that has the kernel send files, and the key of a message's Content of the same bytes as
its `body`."""

_PIECE = 1 << 18


class Pieces(Response):
    """A response whose content is sent in pieces. The kernel sends a model in a file, where the connection knows how;
    other kinds may be compressed."""

    def __init__(self, content: bytes | memoryview | Content, **options: Any) -> None:
        self._file = content if isinstance(content, Content) else None
        super().__init__(content.view() if isinstance(content, Content) else content, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        if self._file is not None and self.media_type == ONNX and FILE in scope.get("extensions", {}):
            await send({"type": "http.response.body", "body": view, FILE: self._file})
        else:
            for start in range(0, len(view) or 1, _PIECE):
                end = start + _PIECE
                piece: Message = {"type": "http.response.body", "body": view[start:end], "more_body": end < len(view)}
                await send(piece)
        if self.background is not None:
            await self.background()
