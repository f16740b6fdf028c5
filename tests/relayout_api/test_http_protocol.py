"""The protocol hands over every byte of a body, in order and once, however it arrives."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256

import pytest
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from relayout_api.http_protocol import Protocol

BODY = random.Random(0).randbytes(3_000_001)


async def digest(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the SHA-256 of the body; to /refused at once, without reading it."""
    request, found = Request(scope, receive), sha256()
    if request.url.path != "/refused":
        async for part in request.stream():
            found.update(part)
    text = found.hexdigest().encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
    await send({"type": "http.response.body", "body": text})


@contextmanager
def connection() -> Iterator[socket.socket]:
    """A connection to a server of `digest`."""
    config = uvicorn.Config(digest, http=Protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=60) as ours:
                yield ours
        finally:
            server.should_exit = True
            thread.join()


def answers(caller: socket.socket, sent: Iterable[bytes], number: int) -> list[bytes]:
    """The bodies of so many answers to what is sent at the same time."""

    def send() -> None:
        for part in sent:
            caller.sendall(part)

    sender = threading.Thread(target=send)
    sender.start()
    found = []
    with closing(caller.makefile("rb")) as received:
        for _ in range(number):
            assert received.readline() == b"HTTP/1.1 200 OK\r\n"
            while received.readline() != b"\r\n":
                pass
            found.append(received.read(64))
    sender.join()
    return found


def head(size: int, path: str = "/") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()


def parts(content: bytes, most: int) -> Iterator[bytes]:
    draw, start = random.Random(most), 0
    while start < len(content):
        end = start + draw.randint(1, most)
        yield content[start:end]
        start = end


@pytest.mark.parametrize("most", [3_000, 100_000, 2_000_000])
def test_a_body_arrives_whole_however_it_is_cut_and_what_follows_it_is_another_request(most: int) -> None:
    sent = (head(len(BODY)) + BODY) * 2 + head(5) + b"model"
    with connection() as caller:
        found = answers(caller, parts(sent, most), 3)
    assert found == [sha256(each).hexdigest().encode() for each in (BODY, BODY, b"model")]


def test_a_body_that_nobody_reads_does_not_become_a_request() -> None:
    with connection() as caller:
        found = answers(caller, [head(len(BODY), "/refused"), BODY, head(5), b"model"], 2)
    assert found == [sha256(each).hexdigest().encode() for each in (b"", b"model")]
