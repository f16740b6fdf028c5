"""The protocol hands over every byte of a body, and sends every byte of a file, in order and once."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import onnx
import pytest
import uvicorn
from http_bodies import onnx_bytes
from http_server import client_of, serving, wait_for
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from relayout_api.bodies import JSON, ONNX, Bodies
from relayout_api.http_headers import HeadAsGet
from relayout_api.http_protocol import Protocol, with_files
from relayout_api.pieces import Pieces
from relayout_api.settings import Settings
from relayout_api.workers.messages import Content

BODY = random.Random(0).randbytes(3_000_001)
_LONG = 64 << 20
BODIES = Bodies(Settings(body_seconds=0.5))


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the SHA-256 of the body; to /refused at once, without reading it; to /file with a file; to /long with
    one of this media type that no buffer holds; to /target with the path, the query and the host."""
    if scope["path"] == "/target":
        said = b"|".join([scope["raw_path"], scope["query_string"], dict(scope["headers"])[b"host"]])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
        await send({"type": "http.response.body", "body": said})
        return
    if scope["path"] == "/file":
        await Pieces(Content(BODY), media_type=ONNX)(scope, receive, send)
        return
    if scope["path"] == "/long":
        await Pieces(Content(bytes(_LONG)), BODIES, media_type=scope["query_string"].decode())(scope, receive, send)
        return
    request, found = Request(scope, receive), sha256()
    if request.url.path != "/refused":
        async for part in request.stream():
            found.update(part)
    text = found.hexdigest().encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
    await send({"type": "http.response.body", "body": text})


@contextmanager
def connection() -> Iterator[socket.socket]:
    """A connection to a server of `answer`."""
    with server() as address, socket.create_connection(address, timeout=60) as ours:
        yield ours


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """The address of a server of `answer`."""
    config = uvicorn.Config(with_files(HeadAsGet(answer)), http=Protocol, ws="none", lifespan="off", log_config=None)
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            running.should_exit = True
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
            headers = dict(line.lower().split(b": ") for line in iter(received.readline, b"\r\n"))
            found.append(received.read(int(headers[b"content-length"])))
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


def test_a_file_is_sent_whole_and_the_connection_goes_on() -> None:
    with connection() as caller:
        found = answers(caller, [head(0, "/file") * 2, head(5), b"model"], 3)
    assert found[:2] == [BODY, BODY]
    assert found[2] == sha256(b"model").hexdigest().encode()


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/target?a=http://b", b"/target|a=http://b|localhost"),
        ("http://other.example:80/target?a=b", b"/target|a=b|other.example:80"),
        ("HTTPS://[::1]/target", b"/target||[::1]"),
    ],
)
def test_an_absolute_target_is_its_path_and_its_host(target: str, found: bytes) -> None:
    with connection() as caller:
        assert answers(caller, [head(0, target)], 1) == [found]


def test_head_has_no_file() -> None:
    with connection() as caller:
        caller.sendall(b"HEAD /file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with closing(caller.makefile("rb")) as received:
            text = received.read()
    assert text.startswith(b"HTTP/1.1 200 ")
    assert text.endswith(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(BODY) in text


def test_a_caller_who_leaves_in_the_middle_of_a_file_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with server() as address:
        for _ in range(3):
            with socket.create_connection(address, timeout=60) as leaving:
                leaving.sendall(head(0, "/file"))
                # The next read would find more, so that to close is to reset the connection.
                assert leaving.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
        with socket.create_connection(address, timeout=60) as caller:
            assert answers(caller, [head(0, "/file")], 1) == [BODY]
    assert caplog.text == ""


@pytest.mark.parametrize("media", [ONNX, JSON])
def test_a_caller_who_takes_no_answer_keeps_it_no_longer_than_a_body_may_take(
    media: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some of it is taken by the buffers of the connection.
    monkeypatch.setattr("relayout_api.bodies._BYTES_A_SECOND", 1 << 30)
    with server() as address, socket.create_connection(address, timeout=60) as stalled:
        stalled.sendall(head(0, f"/long?{media}"))
        assert stalled.recv(10) == b"HTTP/1.1 2"
        assert BODIES.held == _LONG
        wait_for(lambda: BODIES.held == 0)
        wait_for(lambda: "/long: the caller does not take the answer" in caplog.text)
        # The connection ends before the answer does.
        assert sum(map(len, iter(lambda: stalled.recv(1 << 20), b""))) < _LONG
        with socket.create_connection(address, timeout=60) as caller:
            assert answers(caller, [head(0, "/file")], 1) == [BODY]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("media", [ONNX, JSON])
def test_a_caller_who_takes_an_answer_steadily_gets_all_of_it(media: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout_api.bodies._BYTES_A_SECOND", 1 << 24)
    with server() as address, socket.create_connection(address, timeout=60) as slow:
        slow.sendall(head(0, f"/long?{media}").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        began, taken = time.monotonic(), 0
        while part := slow.recv(1 << 20):
            taken += len(part)
            time.sleep(len(part) / (1 << 26))
    assert taken > _LONG
    assert time.monotonic() - began > 0.5
    assert BODIES.held == 0


def refused(sent: bytes) -> bytes:
    """The answer to what is sent, after which the connection is closed."""
    with connection() as caller, closing(caller.makefile("rb")) as received:
        caller.sendall(sent)
        return received.read()


def test_two_lengths_end_the_connection_before_what_follows_is_a_request() -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = refused(head + b"0\r\n\r\nGET /file HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.count(b"HTTP/1.1 ") == 1
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in found.lower()
    assert re.search(rb"\r\nx-request-id: \w+\r\n", found.lower())
    assert b"both Content-Length and Transfer-Encoding" in found


@pytest.mark.parametrize("size", [70_000, 200_000])
@pytest.mark.parametrize(
    "head", [b"GET /%b HTTP/1.1\r\nHost: localhost\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n"]
)
def test_a_head_that_is_too_long_is_told_so(head: bytes, size: int) -> None:
    found = refused(head % (b"x" * size) + b"\r\n")
    assert found.startswith(b"HTTP/1.1 431 ")
    assert b"/problems/long-head" in found
    assert b"at most 65536 bytes" in found
    assert b"\r\nconnection: close\r\n" in found.lower()


def test_a_request_to_upgrade_is_answered_as_one_without(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
    found = refused(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
    assert found.startswith(b"HTTP/1.1 200 ")
    assert caplog.text == ""


def test_an_installed_uvloop_is_not_used(tmp_path: Path) -> None:
    """uvicorn takes it by itself where it is installed, and it cannot send files."""
    (tmp_path / "uvloop.py").write_text("def new_event_loop():\n    raise RuntimeError('no files')\n")
    with serving(tmp_path, ["env"], PYTHONPATH=str(tmp_path)) as server, client_of(server) as client:
        types = {"Content-Type": ONNX, "Accept": ONNX}
        found = client.post("/v1/legalize?backend=nhwc", content=onnx_bytes(), headers=types)
        assert found.status_code == 200
        onnx.load_model_from_string(found.content)
