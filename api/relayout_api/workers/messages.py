"""The messages between the server and its worker processes: a JSON header and parts of bytes, in a file.

The file has no name (memory on Linux); its descriptor goes over a Unix socket. So a large model is neither copied
through a pipe nor pickled, and nothing that a worker sends can run code in the server.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Answer", "Events", "Form", "Received", "Task", "anonymous_file", "receive", "send"]

Form = Literal["json", "bytes", "parts"]
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_Part = bytes | memoryview


Events = Callable[[dict[str, object]], None]
"""Takes an event of a task: {"stage": …, "progress": …} or {"cost": …, "bound": …}."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one request or job: of `verb`, legalize, explain or verify.

    `parameters` are the backend and the options that go with an ONNX model in the body; None where the body is JSON,
    which has its own. `split` is the length of the model in the body where the original to compare with follows it.
    `seconds` and `memory_bytes` are the server's limits. `form` is the form of the answer: the JSON of the endpoint,
    the model's bytes with the report's summary, or model and report as two parts.
    """

    verb: str
    parameters: dict[str, Any] | None
    seconds: float
    memory_bytes: int
    form: Form = "json"
    split: int | None = None

    def header(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task. `content` and `report` depend on the form of the task.

    | form | `content` | `report` |
    |---|---|---|
    | json | the endpoint's JSON | empty |
    | bytes | the model | the report without its lists |
    | parts | the model or graph, empty for other verbs than legalize | the whole report |

    `status` and `seconds` (by stage) are the report's. `repeats`: the same task always has this answer, so that it may
    be stored.
    """

    content: _Part
    report: _Part = b""
    repeats: bool = False
    cost: int | None = None
    bound: int | None = None
    status: str | None = None
    seconds: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A message: its header and its parts. The parts are views of a file in memory."""

    header: dict[str, Any]
    parts: list[memoryview]


def anonymous_file() -> int:
    """The descriptor of a new file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("relayout")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(channel: socket.socket, header: dict[str, Any], *parts: _Part) -> None:
    """Send a message. Raises OSError where the other side is gone."""
    text = json.dumps(header).encode()
    file = anonymous_file()
    try:
        sizes = [len(text), *map(len, parts)]
        _write(file, [_COUNT.pack(len(sizes)), *map(_SIZE.pack, sizes), text, *parts])
        socket.send_fds(channel, [b"m"], [file])
    finally:
        os.close(file)


def receive(channel: socket.socket) -> Received | None:
    """The next message; None where the other side has closed. Raises OSError, BlockingIOError."""
    data, files, _, _ = socket.recv_fds(channel, 1, 1)
    if not data:
        return None
    [file] = files
    try:
        whole = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(file)
    [count] = _COUNT.unpack_from(whole)
    offset = _COUNT.size + count * _SIZE.size
    parts = []
    for index in range(count):
        [size] = _SIZE.unpack_from(whole, _COUNT.size + index * _SIZE.size)
        parts.append(whole[offset : offset + size])
        offset += size
    return Received(json.loads(bytes(parts[0])), parts[1:])


def _write(file: int, parts: Sequence[_Part]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(file, view) :]
