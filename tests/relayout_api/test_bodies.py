"""Bodies while they arrive: how many bytes of all of them are held, and how slowly one may come."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.types import Message

from relayout_api.bodies import Bodies
from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

Receive = Callable[[], Awaitable[Message]]


def request(receive: Receive, **headers: str) -> Request:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": named}, receive)


def form(receive: Receive) -> Request:
    return request(receive, content_type="multipart/form-data; boundary=b")


def file(name: str, content: bytes) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode() + content + b"\r\n"


def whole(size: int) -> Receive:
    return sent(b"x" * size)


def sent(*parts: bytes) -> Receive:
    left = list(parts)

    async def receive() -> Message:
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return receive


def test_all_bodies_together_are_bounded_and_each_is_given_back(tmp_path: Path) -> None:
    bodies = Bodies(Settings(data=tmp_path, max_body_bytes=100, bodies_bytes=100))

    async def main() -> None:
        async with bodies.read(request(whole(60))) as first:
            assert bytes(first.view()) == b"x" * 60
            assert await first.digest() == hashlib.sha256(b"x" * 60).hexdigest()
            with pytest.raises(RefusedError) as refused:
                async with bodies.read(request(whole(60))):
                    pass
            assert (refused.value.kind, refused.value.retry_after) == ("busy", 5)
            async with bodies.read(request(whole(40))):
                assert bodies.held == 100
        assert bodies.held == 0
        async with bodies.read(request(whole(100))):
            pass

    anyio.run(main)


def test_the_digest_of_a_body_is_that_of_all_its_bytes_in_whatever_parts_they_come(tmp_path: Path) -> None:
    bodies = Bodies(Settings(data=tmp_path))
    parts = [bytes([number]) * (number * 100_003) for number in range(1, 16)]
    left = iter(parts)

    async def receive() -> Message:
        # A thread hashes in the meantime.
        await anyio.sleep(0)
        return {"type": "http.request", "body": next(left, b""), "more_body": left.__length_hint__() > 0}

    async def main() -> None:
        async with bodies.read(request(receive)) as body:
            assert await body.digest() == hashlib.sha256(b"".join(parts)).hexdigest()
            assert await body.digest() == hashlib.sha256(b"".join(parts)).hexdigest()

    anyio.run(main)


def test_a_body_may_not_come_more_slowly_than_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout_api.bodies._SLOW_START_SECONDS", 0.1)
    bodies = Bodies(Settings(data=tmp_path, body_rate=1000))

    async def trickle() -> Message:
        await anyio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def main() -> None:
        with pytest.raises(RefusedError) as refused:
            async with bodies.read(request(trickle)):
                pass
        assert refused.value.kind == "slow-body"
        assert "1000 bytes a second" in refused.value.expected
        assert bodies.held == 0

    anyio.run(main)


def test_a_large_body_may_come_steadily_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(Settings(data=tmp_path, body_seconds=0.2, body_rate=0))
    left = [b"x" * 1000] * 20

    async def receive() -> Message:
        await anyio.sleep(0.02)
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    async def main() -> None:
        with pytest.raises(RefusedError) as refused:
            async with bodies.read(request(receive)):
                pass
        assert refused.value.kind == "slow-body"
        left[:] = [b"x" * 1000] * 20
        # 0.1 s more for each part, which comes after 0.02 s.
        monkeypatch.setattr("relayout_api.bodies._BYTES_A_SECOND", 10_000)
        async with bodies.read(request(receive)) as body:
            assert body.size == 20_000

    anyio.run(main)


def test_a_body_that_says_it_is_too_large_says_so_before_it_is_sent_too(tmp_path: Path) -> None:
    bodies = Bodies(Settings(data=tmp_path, max_body_bytes=100))

    async def main() -> None:
        for expecting in ({}, {"expect": "100-continue"}):
            with pytest.raises(RefusedError) as refused:
                async with bodies.read(request(whole(101), content_length="101", **expecting)):
                    pass
            assert (refused.value.expected, refused.value.found) == ("at most 100 bytes", "101 bytes")

    anyio.run(main)


def test_the_files_of_a_form_are_held_in_place_of_the_form(tmp_path: Path) -> None:
    content = file("against", b"a" * 300) + file("model", b"m" * 200) + b"--b--\r\n"
    bodies = Bodies(Settings(data=tmp_path, max_body_bytes=len(content), bodies_bytes=len(content)))

    async def main() -> None:
        async with bodies.files(form(sent(content))) as (body, files):
            assert (bytes(body.view()), files) == (b"m" * 200 + b"a" * 300, [("model", 200), ("against", 300)])
            assert bodies.held == 500
        assert bodies.held == 0

    anyio.run(main)


def test_the_files_of_a_form_are_refused_where_others_have_taken_its_room(tmp_path: Path) -> None:
    # A file of this size is written to disk by a thread, and others have their turns.
    content = file("model", b"m" * (4 << 20)) + b"--b--\r\n"
    bodies = Bodies(Settings(data=tmp_path, max_body_bytes=len(content), bodies_bytes=len(content)))

    async def main() -> None:
        is_there, is_refused = anyio.Event(), anyio.Event()

        async def arriving() -> Message:
            is_there.set()
            return {"type": "http.request", "body": content}

        async def take_room() -> None:
            await is_there.wait()
            while True:
                with contextlib.suppress(RefusedError):
                    async with bodies.read(request(whole(1 << 20))):
                        await is_refused.wait()
                        return
                await anyio.sleep(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_room)
            with pytest.raises(RefusedError) as refused:
                async with bodies.files(form(arriving)):
                    pass
            is_refused.set()
        assert (refused.value.kind, refused.value.retry_after) == ("busy", 5)
        assert bodies.held == 0

    anyio.run(main)


def test_others_have_their_turns_while_a_form_is_parsed(tmp_path: Path) -> None:
    bodies = Bodies(Settings(data=tmp_path))
    content = file("model", b"\r\n" * (16 << 20)) + b"--b--\r\n"
    parts = [content[start : start + (1 << 16)] for start in range(0, len(content), 1 << 16)]
    longest = 0.0

    async def others() -> None:
        nonlocal longest
        while True:
            # The processor's time, which other processes do not take.
            before = time.thread_time()
            try:
                await anyio.sleep(0)
            finally:
                longest = max(longest, time.thread_time() - before)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            await anyio.sleep(0)
            async with bodies.files(form(sent(*parts))) as (body, files):
                tasks.cancel_scope.cancel()
                assert (body.size, files) == (32 << 20, [])
                digest = hashlib.sha256(body.view()).hexdigest()
        assert digest == hashlib.sha256(b"\r\n" * (16 << 20)).hexdigest()

    anyio.run(main)
    assert longest < 0.05
