"""The fair queue, the messages to workers, and the ends of workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import onnx
import pytest
from anyio import to_thread
from http_bodies import GRAPH, onnx_bytes
from http_server import Server, children, wait_for, workers_of

from relayout_api.problems import RefusedError
from relayout_api.schemas import LegalizeParameters
from relayout_api.workers.fair_queue import FairQueue
from relayout_api.workers.messages import Content, Task, receive
from relayout_api.workers.pool import WorkerDiedError, death
from relayout_api.workers.processes import End, Template, WorkerProcess
from relayout_api.workers.work import WORK

BODY = {"graph": {**GRAPH, "name": "workers"}, "backend": "nhwc"}


def run(test: Callable[[], Awaitable[None]]) -> None:
    anyio.run(test)


def test_callers_take_turns_and_none_has_all_places() -> None:
    order: list[str] = []
    running: set[str] = set()

    async def main() -> None:
        queue = FairQueue(places=2, share=1, waiting=100)

        async def work(caller: str) -> None:
            async with queue.place(caller, 30):
                assert caller not in running, "one place of two"
                running.add(caller)
                order.append(caller)
                await anyio.sleep(0)
                running.discard(caller)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(work, "many")
            for _ in range(3):
                tasks.start_soon(work, "few")
        assert (queue.used, queue.waiting) == (0, 0)

    run(main)
    # The three of the one are done while three or four of the twenty are.
    assert [index for index, caller in enumerate(order) if caller == "few"][-1] <= 7
    assert order.count("many") == 20


def test_too_many_or_too_long_waits_get_a_retry_time() -> None:
    async def main() -> None:
        queue = FairQueue(places=1, share=1, waiting=4)
        refused: list[RefusedError] = []

        async def wait(caller: str, seconds: float) -> None:
            try:
                async with queue.place(caller, seconds):
                    raise AssertionError("the place was not free")
            except RefusedError as error:
                refused.append(error)

        async with queue.place("first"), anyio.create_task_group() as tasks:
            for caller in "aaabbbc":
                tasks.start_soon(wait, caller, 0.2)
        assert [error.kind for error in refused] == ["too-many-requests", "busy", "busy", *["busy"] * 4]
        assert all((error.retry_after or 0) >= 1 for error in refused)
        assert (queue.used, queue.waiting) == (0, 0)
        async with queue.place("next", 1):
            assert queue.used == 1

    run(main)


def test_a_message_carries_large_parts_in_a_file() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        content = Content(b"x" * (8 << 20))
        # The second time in place of the first, as where the first worker has died.
        for verb in ("verify", "legalize"):
            content.send(ours, {"verb": verb}, b"", memoryview(b"report"))
            assert not content.was_received
            message = receive(theirs)
            assert content.was_received
            assert message is not None
            assert message.header == {"verb": verb}
            assert [bytes(part[:6]) for part in message.parts] == [b"xxxxxx", b"", b"report"]
        assert len(content.view()) == 8 << 20
        ours.close()
        assert receive(theirs) is None


@pytest.mark.skipif(sys.platform != "linux", reason="files have seals on Linux alone")
def test_no_worker_can_shrink_a_file_that_the_server_maps() -> None:
    """A process that reads a mapped file behind its new end is ended by SIGBUS."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        content = Content(b"answer")
        content.send(theirs, {"answer": {}})
        message = receive(ours)
        with pytest.raises(PermissionError):
            os.ftruncate(content.file, 0)
        assert message is not None
        assert bytes(message.parts[0]) == b"answer"
        place = len(content), os.fstat(content.file).st_size - len(content) - 1
        unsealed = os.memfd_create("worker", os.MFD_ALLOW_SEALING)
        os.pwrite(unsealed, os.pread(content.file, sum(place), 0), 0)
        socket.send_fds(theirs, [struct.pack("<QQ", *place)], [unsealed])
        os.close(unsealed)
        with pytest.raises(ValueError, match="shrink"):
            receive(ours)
        theirs.send(b"no file")
        with pytest.raises(ValueError, match="unpack"):
            receive(ours)


@pytest.mark.parametrize(("memory", "is_enough"), [(64, True), (63, False)])
def test_a_legal_model_takes_no_more_memory_than_its_worker_may(memory: int, is_enough: bool) -> None:
    parameters = LegalizeParameters(backend="nhwc").model_dump(mode="json")
    # 16 weights of 4 bytes.
    task = Task("legalize", parameters, 60.0, memory, "bytes")
    with contextlib.nullcontext() if is_enough else pytest.raises(MemoryError):
        answer = WORK["legalize"](task, [onnx_bytes()], lambda event: None)
        assert onnx.load_from_string(bytes(answer.view)).graph.initializer


def test_a_worker_that_writes_much_to_stderr_does_not_block() -> None:
    async def main() -> None:
        read, write = os.pipe()
        channel, other = socket.socketpair()
        with channel, other:
            worker = WorkerProcess(0, channel, read)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.read_errors)
                await to_thread.run_sync(os.write, write, b"x" * 1_000_000 + b"last words")
                os.close(write)
            assert worker.take_errors().endswith("xlast words")
            assert worker.take_errors() == ""

    run(main)


@pytest.mark.parametrize(
    ("status", "peak", "errors", "is_of_memory"),
    [
        (-signal.SIGABRT, 0, "terminate called after throwing an instance of 'std::bad_alloc'", True),
        (-signal.SIGSEGV, 900, "", True),
        (-signal.SIGSEGV, 100, "", False),
        (-signal.SIGKILL, 100, "", False),
        (1, 900, "MemoryError", False),
    ],
)
def test_the_death_of_a_worker_is_the_callers_where_memory_is_the_cause(
    status: int, peak: int, errors: str, is_of_memory: bool
) -> None:
    error = death(End(status, peak), errors, memory_bytes=1000)
    assert isinstance(error, WorkerDiedError) is not is_of_memory
    assert error.kind == ("too-large" if is_of_memory else "internal")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux has them")
def test_idle_workers_and_their_template_are_replaced(server: Server, client: httpx.Client) -> None:
    assert_replaced(server, client, workers_of(server))
    assert "died: SIGKILL" in server.log()
    assert_replaced(server, client, {*children(server.process.pid)})
    assert "the template of the workers ended" in server.log()


def assert_replaced(server: Server, client: httpx.Client, victims: set[int]) -> None:
    before = workers_of(server)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    body = {**BODY, "graph": {**GRAPH, "name": f"without {sorted(victims)}"}}
    assert client.post("/v1/legalize", json=body).status_code == 200
    wait_for(lambda: len(workers_of(server)) == len(before) and not workers_of(server) & before)


def test_a_template_that_is_closed_while_it_is_read_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may close it between the moment when a line is there and the read."""
    template = Template()

    async def closed_meanwhile(_: socket.socket) -> None:
        template.close()

    monkeypatch.setattr(anyio, "wait_readable", closed_meanwhile)
    anyio.run(template.listen)
    assert template.ended.is_set()
