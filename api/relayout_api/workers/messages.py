"""The messages between the server and its worker processes: parts of bytes and a JSON header, in a file.

The file has no name (memory on Linux); its descriptor goes over a Unix socket. So a large model is neither copied
through a pipe nor pickled, and nothing that a worker sends can run code in the server. The header is behind the parts,
so that a request's body is written once, to the file that the worker reads.

Files on Linux are sealed before they are sent. A file that shrinks under a mapping ends its reader (SIGBUS), so a
message whose file could shrink is refused.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

Form = Literal["json", "bytes", "parts"]
# The place of the header in the file, and its size.
_PLACE = struct.Struct("<QQ")
# The byte behind the header, which tells the sender that the message was received.
_UNREAD, _READ = b"\0", b"\1"
_Part = bytes | memoryview


Parts = Sequence[_Part]
"""A request's body, and what else a task is about."""

Files = Sequence[tuple[str, int]]
"""The names and lengths of files, one after the other."""

Events = Callable[[dict[str, object]], None]
"""Takes an event of a task: {"stage": …, "progress": …} or {"cost": …, "bound": …}."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one request or job: of `verb`, legalize, explain or verify.

    `parameters` are the backend and the options that go with an ONNX model in the body; None where the body is JSON,
    which has its own. `files` are the names and lengths of the files in the body, one after the other, of a form.
    `seconds` and `memory_bytes` are the server's limits. `form` is the form of the answer: the JSON of the endpoint,
    the model's bytes with the report's summary, or model and report as two parts. `digest` is the SHA-256 of the body.
    The task `of_job` sends events, and its answer has the alternatives of the nodes, to draw them.
    """

    verb: str
    parameters: dict[str, Any] | None
    seconds: float
    memory_bytes: int
    form: Form = "json"
    files: Files = ()
    digest: str | None = None
    of_job: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task. `content` and `report` depend on the form of the task.

    | form | `content` | `report` |
    |---|---|---|
    | json | the endpoint's JSON | empty |
    | bytes | the model | the report without its lists |
    | parts | the model or graph, empty for other verbs than legalize | the whole report |

    `choices` are the alternatives of the nodes in JSON, of a job that legalizes. `status` and `seconds` (by stage) are
    the report's. `repeats`: the same task always has this answer, so that it may be stored.
    """

    content: _Part | Content
    report: _Part = b""
    choices: _Part = b""
    repeats: bool = False
    cost: int | None = None
    bound: int | None = None
    status: str | None = None
    seconds: dict[str, float] | None = None

    @property
    def view(self) -> memoryview:
        """The bytes of `content`."""
        return self.content.view() if isinstance(self.content, Content) else memoryview(self.content)


@dataclass(frozen=True, slots=True)
class Received:
    """A message: its header and its parts. The parts are views of a file in memory, and `first` is its first part."""

    header: dict[str, Any]
    parts: list[memoryview]
    first: Content


class Content:
    """The first bytes of a file without a name, which is closed with this object: those given, or the first `size` of
    `file`."""

    def __init__(self, content: _Part = b"", file: int | None = None, size: int = 0) -> None:
        self.size = size
        self.file = _anonymous_file() if file is None else file
        weakref.finalize(self, os.close, self.file)
        self._sent = 0
        self.write(content)

    def __len__(self) -> int:
        return self.size

    def write(self, part: _Part) -> None:
        """Append a part. Raises OSError."""
        view = memoryview(part)
        while view:
            count = os.pwrite(self.file, view, self.size)
            view = view[count:]
            self.size += count

    def clear(self) -> None:
        """Give the memory back, before anything is sent. No view of the bytes may be used any more."""
        os.ftruncate(self.file, 0)
        self.size = 0

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """A binary file to write these bytes to, from the first."""
        with open(self.file, "wb", closefd=False) as file:
            yield file
            self.size = file.tell()

    def view(self) -> memoryview:
        """The bytes, which are those of the file."""
        return _mapped(self.file)[: self.size]

    def send(self, channel: socket.socket, header: dict[str, Any], *parts: _Part) -> None:
        """Send a message whose first part this is. Raises OSError where the other side is gone."""
        size = self.size
        try:
            for part in parts:
                self.write(part)
            place = self.size
            self.write(json.dumps([header, [size, *map(len, parts)]]).encode())
            self._sent = self.size
            self.write(_UNREAD)
            _seal(self.file)
            socket.send_fds(channel, [_PLACE.pack(place, self._sent - place)], [self.file])
        finally:
            self.size = size

    @property
    def was_received(self) -> bool:
        """Whether the other side has taken the message out of the socket."""
        return os.pread(self.file, len(_READ), self._sent) == _READ


def receive(channel: socket.socket) -> Received | None:
    """The next message; None where the other side has closed.

    Raises OSError, BlockingIOError, and ValueError for what is no message.
    """
    data, files, _, _ = socket.recv_fds(channel, _PLACE.size, 1)
    if not data:
        return None
    [file] = files
    first = Content(file=file)
    if len(data) != _PLACE.size or not _is_sealed(file):
        raise ValueError("no message, or its file could shrink")
    place, size = _PLACE.unpack(data)
    whole = _mapped(file)
    os.pwrite(file, _READ, place + size)
    header, sizes = json.loads(bytes(whole[place : place + size]))
    parts, offset = [], 0
    for length in sizes:
        parts.append(whole[offset : offset + length])
        offset += length
    first.size = sizes[0]
    return Received(header, parts, first)


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("relayout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _mapped(file: int) -> memoryview:
    # An empty file cannot be mapped.
    return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b"")


def _seal(file: int) -> None:
    """Forbid all processes to make a file smaller."""
    if sys.platform == "linux":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def _is_sealed(file: int) -> bool:
    return sys.platform != "linux" or bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
