"""The fair queue, the messages to workers, and the ends of workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import httpx
import onnx
import pytest
from anyio import to_thread
from http_bodies import onnx_bytes
from http_server import WORKERS, Server, children, client_of, replaced, serving, wait_for, workers_of
from installed_packages import install

from relayout.backend import Backend, load_backend
from relayout_api.examples import GRAPH
from relayout_api.problems import RefusedError
from relayout_api.schemas import LegalizeParameters
from relayout_api.settings import Settings
from relayout_api.telemetry.metrics import Metrics
from relayout_api.workers import work, worker
from relayout_api.workers.fair_queue import FairQueue
from relayout_api.workers.installed import installed_backends
from relayout_api.workers.messages import Answer, Content, Task, receive
from relayout_api.workers.pool import Pool, WorkerDiedError, death
from relayout_api.workers.processes import End, Template, TemplateError, WorkerProcess
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
        full, own = "at most 4 requests waiting", "at most 2 requests of one caller waiting"
        assert [error.expected for error in refused] == [own, full, full, *["a free worker within 0.2 s"] * 4]
        assert (queue.used, queue.waiting) == (0, 0)
        async with queue.place("next", 1):
            assert queue.used == 1

    run(main)


def test_a_caller_is_told_that_its_own_work_keeps_its_share() -> None:
    async def main() -> None:
        queue = FairQueue(places=2, share=1, waiting=4)
        async with queue.place("job"):
            with pytest.raises(RefusedError, match="other work of this caller kept its share") as refused:
                async with queue.place("job", 0.01):
                    raise AssertionError("the place was not free")
            assert refused.value.kind == "too-many-requests"
            async with queue.place("other", 1):
                assert queue.used == 2
                with pytest.raises(RefusedError, match="no worker became free in time"):
                    async with queue.place("third", 0.01):
                        raise AssertionError("the place was not free")

    run(main)


def test_a_place_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    async def main() -> None:
        queue = FairQueue(places=1, share=1, waiting=4)

        async def leave() -> None:
            with scope:
                async with queue.place("leaving"):
                    raise AssertionError("the caller has left")

        async def stay() -> None:
            async with queue.place("staying"):
                assert queue.used == 1

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks, queue.place("first"):
            tasks.start_soon(leave)
            tasks.start_soon(stay)
            await anyio.wait_all_tasks_blocked()
            # The place is given to the caller before the cancelled task goes on.
            scope.cancel()
        assert (queue.used, queue.waiting) == (0, 0)

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


def test_a_worker_that_waits_keeps_nothing_of_its_last_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is in cycles, and has the request's file open."""

    class Model:
        itself: Model

    models: list[weakref.ref[Model]] = []

    def perform(task: Task, *_: object) -> Answer:
        model = Model()
        model.itself = model
        models.append(weakref.ref(model))
        return Answer(b"")

    for name, stub in (("perform", perform), ("limit_cpu", print), ("no_core_dump", print)):
        monkeypatch.setattr(worker, name, stub)
    ours, theirs = socket.socketpair()
    with theirs, ThreadPoolExecutor(1) as beside:
        working = beside.submit(worker.work, theirs)
        with ours:
            Content().send(ours, asdict(Task("legalize", None, 1.0, 1)))
            assert receive(ours) is not None
            wait_for(lambda: models[0]() is None, seconds=5)
        working.result()


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
    # An earlier test may have ended one, which is being replaced.
    wait_for(lambda: len(workers_of(server)) == WORKERS)
    workers, died = workers_of(server), replaced(client, "died")
    assert_replaced(server, client, workers)
    wait_for(lambda: replaced(client, "died") == died + len(workers))
    assert "died without a task: SIGKILL" in server.log()
    assert_replaced(server, client, {*children(server.pid)})
    assert "the template of the workers ended" in server.log()


def assert_replaced(server: Server, client: httpx.Client, victims: set[int]) -> None:
    before = workers_of(server)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    body = {**BODY, "graph": {**GRAPH, "name": f"without {sorted(victims)}"}}
    assert client.post("/v1/legalize", json=body).status_code == 200
    wait_for(lambda: len(workers_of(server)) == WORKERS and not workers_of(server) & before)


def test_a_template_that_is_closed_while_it_is_read_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may close it between the moment when a line is there and the read."""
    template = Template()

    async def closed_meanwhile(_: socket.socket) -> None:
        template.close()

    monkeypatch.setattr(anyio, "wait_readable", closed_meanwhile)
    anyio.run(template.listen)
    assert template.ended.is_set()


# A template in which the first calls of a function raise. It has nothing to warm up, so it is ready soon.
_FAULTY = """
from relayout_api.workers import tasks, template, worker
import os

function, faults = {function}, [BlockingIOError("made up")] * {times}

def faulty(*arguments):
    if faults:
        raise faults.pop()
    return function(*arguments)

{function} = faulty
tasks.warm = lambda: None
template.main()
"""


def faulty_template(monkeypatch: pytest.MonkeyPatch, function: str, times: int) -> Template:
    popen = subprocess.Popen
    command = [sys.executable, "-c", _FAULTY.format(function=function, times=times)]
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda _, **options: popen(command, **options))
        return Template()


async def ended(worker: WorkerProcess) -> str:
    """How a worker ended; with it end its descriptors."""
    worker.channel.close()
    await worker.read_errors()
    await worker.ended.wait()
    return str(worker.end)


def test_a_worker_is_known_though_its_caller_is_cancelled_while_it_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        template = faulty_template(monkeypatch, "os.fork", 0)
        scope = anyio.CancelScope()
        forked: list[WorkerProcess] = []

        async def fork() -> None:
            with scope:
                forked.append(await template.fork())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(template.listen)
            await template.ready.wait()
            os.kill(template._process.pid, signal.SIGSTOP)
            tasks.start_soon(fork)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            os.kill(template._process.pid, signal.SIGCONT)
            while not forked:
                await anyio.sleep(0)
            forked[0].kill("stopped")
            assert await ended(forked[0]) == "SIGKILL"
            tasks.cancel_scope.cancel()

    run(main)


def test_a_fork_that_fails_is_an_error_and_the_template_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        template = faulty_template(monkeypatch, "os.fork", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(template.listen)
            with pytest.raises(TemplateError, match="no more processes"):
                await template.fork()
            # It ends when its channel does.
            assert await ended(await template.fork()) == "exit status 0"
            tasks.cancel_scope.cancel()

    run(main)


def test_an_exception_of_a_worker_is_in_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        template = faulty_template(monkeypatch, "worker.work", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(template.listen)
            worker = await template.fork()
            assert await ended(worker) == "exit status 1"
            tasks.cancel_scope.cancel()
        assert worker.take_errors().endswith("BlockingIOError: made up")

    run(main)


def test_a_task_is_given_up_where_all_workers_end_at_their_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def main() -> None:
        template = faulty_template(monkeypatch, "worker.work", 1)
        pool = Pool(Settings(data=tmp_path, workers=1), Metrics(), template)
        async with pool.open():
            task = Task("legalize", None, 60.0, 1 << 30)
            with pytest.raises(WorkerDiedError, match="before they receive a task") as caught:
                await pool.run(task, Content(b"{}"), "caller")
            assert caught.value.found == "exit status 1"
            assert pool.queue.used == 0

    run(main)


def test_the_list_has_the_others_beside_two_backends_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "their-layouts", "nhwc = theirs:B")
    monkeypatch.syspath_prepend(tmp_path)
    listed = {each["name"]: each for each in json.loads(installed_backends())["backends"]}
    assert listed["nhwc"]["summary"].startswith("several backends are named 'nhwc': relayout 0.1.0 (relayout_backends")
    assert listed["nhwc"]["summary"].endswith("their-layouts 1.0 (theirs:B)")
    assert listed["nchw"]["summary"].startswith("Channels")


def test_two_backends_of_one_name_keep_no_other_from_being_served(tmp_path: Path) -> None:
    """The workers answer an example with this backend before they serve."""
    install(tmp_path, "their-layouts", "nhwc = theirs:B")
    with serving(tmp_path, ["env"], PYTHONPATH=str(tmp_path)) as server, client_of(server) as client:
        listed = {each["name"]: each["summary"] for each in client.get("/v1/backends").json()["backends"]}
        assert listed["nhwc"].startswith("several backends are named 'nhwc'")
        assert client.post("/v1/legalize", json={**BODY, "backend": "nchw"}).status_code == 200
        refused = client.post("/v1/legalize", json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/invalid-backend")
        assert "their-layouts 1.0 (theirs:B)" in refused.json()["found"]
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.parametrize("is_pure", [True, False])
def test_a_pure_backend_serves_all_requests_of_a_worker(monkeypatch: pytest.MonkeyPatch, *, is_pure: bool) -> None:
    made: list[Backend] = []

    def load(*arguments: Any, **options: Any) -> Backend:
        made.append(load_backend(*arguments, **options))
        made[-1].is_pure = is_pure
        return made[-1]

    monkeypatch.setattr(work, "load_backend", load)
    monkeypatch.setattr(work, "_pure", {})
    for options in ({}, {}, {"block": 16}):
        given = {"backend": "x86-nchwc", "options": {"backend_options": options}}
        parameters = LegalizeParameters.model_validate(given).model_dump(mode="json")
        work.WORK["legalize"](Task("legalize", parameters, 60.0, 1 << 30), [onnx_bytes()], lambda event: None)
    assert len(made) == (2 if is_pure else 3)
