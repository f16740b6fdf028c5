"""uvicorn's HTTP protocol, with a deadline for the head of a request and its parser's errors as problem details."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from h11._readers import ContentLengthReader
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

from relayout_api.pieces import FILE, SENT
from relayout_api.problems import MEDIA_TYPE, RefusedError, problem_of
from relayout_api.workers.messages import Content

_log = logging.getLogger("relayout_api.access")

# Each read takes a turn of the loop and of the application. More bytes than these leave the processor's cache.
_READ_BYTES = 1 << 19
# A refused caller may send so much more, in so many seconds.
_LAST_BYTES, _LAST_SECONDS = 1 << 20, 2.0
# The line and the headers of a request.
_HEAD_BYTES = 1 << 16
# Of a file that is sent: more than the buffers of a connection hold, so that the caller has taken some.
_PIECE = 8 << 20
# A target with scheme and host, as requests to a proxy have it.
_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/?#]+)(?P<path>.*)", re.IGNORECASE)


class _Connection(h11.Connection):
    """h11's side of a connection. `refusal`: why a request is refused before the application sees it."""

    refusal: RefusedError | None = None

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                self.refusal = self._too_long()
            raise
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"content-length" in names and b"transfer-encoding" in names:
                # A proxy in between may believe the other one, and see two requests where there is one: what follows
                # on this connection is not to be trusted (RFC 9112, section 6.1).
                problem = "the request has both Content-Length and Transfer-Encoding"
                self.refusal = RefusedError("malformed-request", problem)
            elif len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > _HEAD_BYTES:
                # It came at once.
                self.refusal = self._too_long()
            if self.refusal is not None:
                raise h11.RemoteProtocolError(self.refusal.problem)
            return _in_origin_form(event)
        return event

    def _too_long(self) -> RefusedError:
        problem = "the head of the request is too long"
        expected, where = f"at most {_HEAD_BYTES} bytes", "the request line or a header"
        return RefusedError("long-head", problem, where=where, expected=expected)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """The request with a path as its target. The host of an absolute target takes the place of the header Host, which a
    server must ignore beside it (RFC 9112, section 3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        return request
    path = absolute["path"] if absolute["path"].startswith(b"/") else b"/" + absolute["path"]
    headers = [(b"host", absolute["host"]), *((name, value) for name, value in request.headers if name != b"host")]
    return h11.Request(method=request.method, target=path, headers=headers, http_version=request.http_version)


class Protocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection. `head_seconds`: the time in which the head of a request must arrive.

    All connections read into one buffer, for what was read is copied before the next read. asyncio would take new
    memory for each read.
    """

    _buffer = memoryview(bytearray(_READ_BYTES))

    head_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None
    # After a refusal: the bytes that are still read, and thrown away.
    _left: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = _Connection(h11.SERVER, _HEAD_BYTES)
        self._arm()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left is None:
            self.data_received(self._buffer[:nbytes])
            return
        self._left -= nbytes
        if self._left < 0:
            self.transport.close()

    def handle_events(self) -> None:
        super().handle_events()
        # The application begins in the next turn of the loop.
        if self.scope is not None:
            self.scope.setdefault("extensions", {})[FILE] = {"connection": self}

    async def send_file(self, content: Content, body: memoryview, sent: Callable[[int], None]) -> None:
        """Send a part of an answer, which are the bytes of a file, without a copy of them in this process. `sent` is
        called with the number of bytes of each piece."""
        await self.flow.drain()
        # The parser counts the bytes, and has nothing to add where the answer says how many they are.
        parts = self.conn.send_with_data_passthrough(h11.Data(data=body))  # type: ignore[arg-type]
        assert parts is not None
        assert len(parts) == 1
        if self.transport.is_closing():
            return
        with open(content.file, "rb", closefd=False) as file:
            try:
                for start in range(0, len(body), _PIECE):
                    sent(await self.loop.sendfile(self.transport, file, start, min(_PIECE, len(body) - start)))
            except ConnectionError:
                # The caller has left.
                self.transport.abort()

    def data_received(self, data: bytes | memoryview) -> None:
        if self._is_inside_body(len(data)):
            self._pass_on(data)
            return
        super().data_received(data)  # type: ignore[arg-type]
        if self.conn.their_state is h11.IDLE:
            # Part of a head is there. More parts do not move the deadline.
            self._arm()
        else:
            self._disarm()

    def _is_inside_body(self, size: int) -> bool:
        """Whether the next `size` bytes belong to a body of known length that goes on after them, and are awaited."""
        reader = self.conn._reader
        return (
            isinstance(reader, ContentLengthReader)
            and size < reader._remaining
            and not self.conn._receive_buffer
            and self.conn.our_state is not h11.DONE
        )

    def _pass_on(self, data: bytes | memoryview) -> None:
        """Give a part of a body to the application with one copy. h11 and uvicorn make five, and look for nothing in
        it but its size."""
        assert isinstance(self.conn._reader, ContentLengthReader)
        self.conn._reader._remaining -= len(data)
        # uvicorn makes bytes of it, which takes no copy of bytes.
        self.cycle.body = b"".join([self.cycle.body, data])  # type: ignore[assignment]
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self.scope is not None:
            # Else both are there until the garbage collector comes.
            self.scope["extensions"].pop(FILE, None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        assert isinstance(self.conn, _Connection)
        self._refuse(self.conn.refusal or RefusedError("malformed-request", "this is no valid HTTP request"))

    def _unsupported_upgrade_warning(self) -> None:
        """A request to upgrade is answered as if it were none (RFC 9110, section 7.8), without a word in the log."""

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(
                RefusedError(
                    "slow-body",
                    "the head of the request took too long to arrive",
                    expected=f"all of it within {self.head_seconds:g} s",
                )
            )

    def _refuse(self, error: RefusedError) -> None:
        """Answer without the application, and close."""
        problem, name = problem_of(error), uuid.uuid4().hex
        _log.info("refused: %s", problem.detail, extra={"status": problem.status, "request_id": name})
        body = problem.model_dump_json().encode()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", name.encode()),
        ]
        phrase = HTTPStatus(problem.status).phrase.encode()
        events = [
            h11.Response(status_code=problem.status, headers=headers, reason=phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        # In the middle of another answer there is no place for this one.
        with contextlib.suppress(h11.LocalProtocolError):
            self.transport.write(b"".join([self.conn.send(event) or b"" for event in events]))
        # A caller who still sends does not read the answer, and to close before all is read resets the connection,
        # which takes the answer away.
        self._left = _LAST_BYTES
        self._disarm()
        self._timer = self.loop.call_later(_LAST_SECONDS, self.transport.close)
        self.transport.write_eof()


def with_files(app: ASGIApp) -> ASGIApp:
    """An application whose answers with a FILE are sent by the kernel."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        connection: Any = scope.get("extensions", {}).get(FILE, {}).get("connection")

        async def send_file_or(message: Message) -> None:
            # Where another body was put in its place, such as none for HEAD, it is not that of the file.
            content, body = message.get(FILE), message.get("body")
            if isinstance(content, Content) and isinstance(body, memoryview) and len(body) == content.size:
                await connection.send_file(content, body, message[SENT])
                message = {**message, "body": b""}
            await send(message)

        await app(scope, receive, send_file_or)

    return outer
