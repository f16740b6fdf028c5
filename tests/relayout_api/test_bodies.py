"""Bodies while they arrive: how many bytes of all of them are held, and how slowly one may come."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.types import Message

from relayout_api.bodies import Bodies, Body, files_in
from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

Receive = Callable[[], Awaitable[Message]]


def request(receive: Receive) -> Request:
    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def whole(size: int) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * size}

    return receive


def test_all_bodies_together_are_bounded_and_each_is_given_back(tmp_path: Path) -> None:
    bodies = Bodies(Settings(data=tmp_path, bodies_bytes=100))

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


def test_others_have_their_turns_while_a_form_is_parsed() -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\n'
    body = Body()
    body.write(head + b"\r\n" * (16 << 20) + b"\r\n--b--\r\n")
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
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
            form, split = await files_in(Request({"type": "http", "method": "POST", "headers": headers}), body)
            tasks.cancel_scope.cancel()
        assert (form.size, split) == (32 << 20, None)
        assert await form.digest() == hashlib.sha256(b"\r\n" * (16 << 20)).hexdigest()

    anyio.run(main)
    assert longest < 0.05
