"""Read a request's body, with limits of media type, size and time, and bound the memory of bodies and answers."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from relayout.errors import UsageError
from relayout_api.problems import MalformedBodyError, RefusedError
from relayout_api.schemas import FILES, MOST_SAMPLES
from relayout_api.settings import Settings
from relayout_api.workers.messages import Content

JSON = "application/json"
ONNX = "application/octet-stream"
MULTIPART = "multipart/form-data"
ZIP = "application/zip"

_MOST_FILES = 2 + MOST_SAMPLES

# A client that is still sending does not read the answer, so its body is read a little longer before the answer.
_DRAIN_SECONDS = 2.0
_DRAIN_BYTES = 1 << 20
# A body has this long before its rate counts.
_SLOW_START_SECONDS = 5.0
# For so many bytes that came, or were taken, there is a second more: a large model on a line of 1 Mbit/s gets through.
_BYTES_A_SECOND = 1 << 17
# Bytes that are decompressed, parsed or hashed at once, while other requests wait.
_PIECE = 1 << 20


class Body(Content):
    """A body in a file, from which a worker reads it, and its SHA-256.

    A thread computes the SHA-256 of a large body while the rest of it arrives.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._hashing: asyncio.Future[None] | None = None
        super().__init__()

    def hash_behind(self) -> None:
        """Have a thread hash what is there, if that is worth one and none does it now."""
        if self.size - self._hashed >= _PIECE and (self._hashing is None or self._hashing.done()):
            self._hashing = asyncio.get_running_loop().run_in_executor(None, self._hash_more)

    async def digest(self) -> str:
        """The SHA-256 of the body, which is whole."""
        self.hash_behind()
        while self._hashing is not None:
            await self._hashing
            self._hashing = None
            self.hash_behind()
        self._hash_more()
        return self._hash.hexdigest()

    def _hash_more(self) -> None:
        # More may be written in the meantime.
        end = self.size
        self._hash.update(self.view()[self._hashed : end])
        self._hashed = end


_LIMIT = "the server's variable RELAYOUT_MAX_BODY_BYTES is this limit; the command relayout legalize has none"
_FORM = "state the body's type in the header Content-Type; curl sends that of a form where none is given"


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type, one of `accepted`. Raises RefusedError for another, or a compression other than gzip."""
    name = _media_type(request)
    if name not in accepted:
        raise RefusedError(
            "unsupported-media-type",
            "unsupported media type",
            expected=" or ".join(accepted),
            found=request.headers.get("content-type") or "no Content-Type",
            hint=_FORM if name == "application/x-www-form-urlencoded" else "",
        )
    encoding = _encoding(request)
    if encoding not in ("", "identity", "gzip"):
        raise RefusedError(
            "unsupported-media-type",
            "the body is compressed in another way",
            expected="gzip, or an uncompressed body",
            found=f"{encoding} encoding",
        )
    return name


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _encoding(request: Request) -> str:
    """The encodings of the body, of all headers that name some."""
    return ", ".join(request.headers.getlist("content-encoding")).strip().lower()


class _Form(MultiPartParser):
    """A parser that knows whether it has seen the end of the form; without it, files may be missing."""

    is_whole = False

    def on_end(self) -> None:
        self.is_whole = True


async def _form_in(request: Request, body: Body) -> FormData:
    """The files of a form (see `Bodies.files`). Raises MalformedBodyError, UsageError."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        view = body.view()
        for start in range(0, len(view), _PIECE):
            yield bytes(view[start : start + _PIECE])
            await anyio.sleep(0)

    expected = "a form with the file `model` and, for a comparison, the files `against` and `inputs`"
    try:
        parser = _Form(request.headers, chunks(), max_files=_MOST_FILES, max_fields=0)
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        if str(error).startswith("Too many files"):
            raise _too_many(f"more than {_MOST_FILES} files") from None
        # Starlette's words are of its own settings.
        is_field = str(error).startswith("Too many fields")
        found = "a field that is no file; options go into the query" if is_field else str(error)[:200]
        raise MalformedBodyError(expected, found) from None
    names = sorted(name for name, _ in form.multi_items())
    others = [name for name in names if name != "inputs"]
    samples = len(names) - len(others)
    if parser.is_whole and others in (["model"], ["against", "model"]) and samples <= MOST_SAMPLES:
        return form
    await form.close()
    if not parser.is_whole:
        raise MalformedBodyError(expected, "a form without its last boundary")
    if samples > MOST_SAMPLES:
        raise _too_many(f"{samples} files `inputs`")
    found = ", ".join(names) or "none"
    raise UsageError("the form has other files", where="body", expected=expected, found=found)


def _too_many(found: str) -> UsageError:
    expected = f"`model`, `against` and at most {MOST_SAMPLES} `inputs`"
    return UsageError("the form has too many files", where="body", expected=expected, found=found)


class Bodies:
    """Reads bodies, and bounds what all of them, and the answers that are sent, hold in memory together."""

    def __init__(self, settings: Settings) -> None:
        self.held = 0
        self._settings = settings
        self._arriving: set[_Reading] = set()
        self._is_over = False

    @asynccontextmanager
    async def read(self, request: Request, most: int | None = None) -> AsyncIterator[Body]:
        """The whole body, of at most `most` bytes. Its bytes count as held until the block ends.

        Raises RefusedError if it is too large, with any Content-Length, too slow, or one too many; ClientDisconnect if
        the caller disconnects. Never holds more than the limits.
        """
        reading = _Reading(request, self, self._settings, self._settings.max_body_bytes if most is None else most)
        self._arriving.add(reading)
        if self._is_over:
            reading.stop()
        try:
            body = await reading.body()
            self._arriving.discard(reading)
            yield body
        finally:
            self._arriving.discard(reading)
            self.held -= reading.content.size

    @asynccontextmanager
    async def files(self, request: Request) -> AsyncIterator[tuple[Body, list[tuple[str, int]]]]:
        """A body, or the files of a form one after the other: the model, then what it is compared with and on.

        The names and lengths are those of the files where there are several. Raises as `read`, MalformedBodyError,
        UsageError.
        """
        async with self.read(request) as body:
            if media_type(request, JSON, ONNX, MULTIPART) != MULTIPART:
                yield body, []
                return
            form = await _form_in(request, body)
            # The parser has the files on disk.
            self.held -= body.size
            body.clear()
            whole, files = Body(), []
            try:
                try:
                    for name, file in sorted(form.multi_items(), key=lambda each: FILES.index(each[0])):
                        assert isinstance(file, UploadFile)
                        start = whole.size
                        while piece := await file.read(_PIECE):
                            self.hold(whole, piece)
                        files.append((name, whole.size - start))
                finally:
                    await form.close()
                yield whole, files if len(files) > 1 else []
            finally:
                self.held -= whole.size

    @contextmanager
    def sending(self, size: int) -> Iterator[anyio.CancelScope]:
        """Count the bytes of an answer as held while the block sends them, and cancel it when the caller has not taken
        them in the time that a body has to arrive: a caller who reads nothing would keep their memory forever. The
        block calls `more_time` for what is sent."""
        self.held += size
        try:
            with anyio.move_on_after(self._settings.body_seconds) as scope:
                yield scope
        finally:
            self.held -= size

    def hold(self, body: Body, part: bytes) -> None:
        """Append a part to a body. Raises RefusedError where all bodies together would be too large."""
        if self.held + len(part) > self._settings.bodies_bytes:
            problem = "the bodies and answers of other requests fill the memory"
            raise RefusedError("busy", problem, hint="retry later", retry_after=5)
        body.write(part)
        self.held += len(part)

    def stop(self) -> None:
        """Refuse the bodies that are not there yet, as the server's grace is over."""
        self._is_over = True
        for reading in self._arriving:
            reading.stop()


def more_time(scope: anyio.CancelScope, sent: int) -> None:
    """Give the caller who took so many bytes more time for the others."""
    scope.deadline += sent / _BYTES_A_SECOND


class _Reading:
    """One body while it arrives. `content`: the part that is held."""

    def __init__(self, request: Request, bodies: Bodies, settings: Settings, most: int) -> None:
        self.content = Body()
        self._request = request
        self._bodies = bodies
        self._settings = settings
        self._most = most
        self._refusal: RefusedError | None = None
        self._scope = anyio.CancelScope()
        self._inflater = zlib.decompressobj(wbits=31) if _encoding(request) == "gzip" else None
        # Nobody asks for the SHA-256 of a form, but for that of the files in it.
        self._is_form = _media_type(request) == MULTIPART

    def stop(self) -> None:
        """Wait for no more of the body."""
        self._refuse(RefusedError("stopping", "the server is being stopped", hint="retry later", retry_after=5))
        self._scope.cancel()

    async def body(self) -> Body:
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most:
            refusal = self._too_large(f"{declared} bytes")
            self._refuse(refusal)
            if "expect" in self._request.headers:
                raise refusal
            self._scope.deadline = anyio.current_time() + _DRAIN_SECONDS
        await self._read()
        if self._refusal is not None:
            raise self._refusal
        if self._inflater is not None and not self._inflater.eof:
            raise MalformedBodyError("a gzip file", "one that is cut off")
        if self._inflater is not None and self._inflater.unused_data:
            raise MalformedBodyError("one gzip file", "more after its end")
        return self.content

    async def _read(self) -> None:
        started = anyio.current_time()
        seen = 0
        with self._scope as scope:
            while seen <= 2 * self._most + _DRAIN_BYTES:
                scope.deadline = self._deadline(started, seen) if self._refusal is None else scope.deadline
                message = await self._request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk = message.get("body", b"")
                seen += len(chunk)
                if self._refusal is None:
                    await self._take(chunk)
                    if self._refusal is not None:
                        scope.deadline = anyio.current_time() + _DRAIN_SECONDS
                if not message.get("more_body", False):
                    return
        if scope.cancelled_caught and self._refusal is None:
            settings = self._settings
            self._refusal = RefusedError(
                "slow-body",
                "the body took too long to arrive",
                expected=f"all of it within {settings.body_seconds:g} s, and a second more for each "
                f"{_BYTES_A_SECOND >> 10} KiB; {settings.body_rate} bytes a second or more",
                found=f"{seen} bytes",
            )

    def _deadline(self, started: float, seen: int) -> float:
        """The time by which the next chunk must be there."""
        settings = self._settings
        end = started + settings.body_seconds + seen / _BYTES_A_SECOND
        if not settings.body_rate:
            return end
        return min(end, started + _SLOW_START_SECONDS + seen / settings.body_rate)

    async def _take(self, chunk: bytes) -> None:
        """Hold a chunk, decompressed piece by piece, so that neither time nor memory goes beyond the limits."""
        if self._inflater is None:
            self._hold(chunk)
            return
        if chunk and self._inflater.eof:
            self._refuse(MalformedBodyError("one gzip file", "more after its end"))
        while chunk and not self._inflater.eof and self._refusal is None:
            try:
                self._hold(self._inflater.decompress(chunk, _PIECE))
            except zlib.error as error:
                self._refuse(MalformedBodyError("a gzip file", str(error)))
            chunk = self._inflater.unconsumed_tail
            await anyio.sleep(0)

    def _hold(self, chunk: bytes) -> None:
        if self.content.size + len(chunk) > self._most:
            self._refuse(self._too_large(f"more than {self._most} bytes"))
            return
        try:
            self._bodies.hold(self.content, chunk)
        except RefusedError as refusal:
            self._refuse(refusal)
            return
        if not self._is_form:
            self.content.hash_behind()

    def _refuse(self, refusal: RefusedError) -> None:
        self._refusal = refusal
        self._bodies.held -= self.content.size
        self.content = Body()

    def _too_large(self, found: str) -> RefusedError:
        is_limit = self._most == self._settings.max_body_bytes
        return RefusedError(
            "too-large",
            "the body is too large",
            expected=f"at most {self._most} bytes",
            found=found,
            hint=_LIMIT if is_limit else "",
        )
