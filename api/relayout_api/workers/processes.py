"""The processes as the server sees them: the template, and the workers that it forks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import anyio

_STDERR_KEPT = 16 << 10
_ENVIRONMENT = {
    # Threads of the linear algebra libraries: a fork has only the one that forks, and a worker has one processor.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    # glibc gives memory back after each task, and a page that is new takes 10 times as long as one that was there: a
    # model of 27 MB took 175 of 223 ms for its 44,000 pages. So a worker keeps up to 256 MiB.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


Cause = Literal["died", "stopped", "renewed"]
"""Why a worker ended: by itself, because its task was late or its caller left, or because it had served its turn."""


class TemplateError(Exception):
    """The template ended, or does not answer."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker: its exit status, negative for a signal, and the most memory that it had, in bytes."""

    status: int
    peak: int

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exit status {self.status}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"


class WorkerProcess:
    """One worker: its socket, and the last of what it wrote to stderr, which is read all the time."""

    def __init__(self, pid: int, channel: socket.socket, errors: int) -> None:
        self.pid = pid
        self.channel = channel
        self.tasks = 0
        self.cause: Cause = "died"
        self.end: End | None = None
        self.ended = anyio.Event()
        self._errors = errors
        self._written: deque[bytes] = deque()

    async def read_errors(self) -> None:
        """Read the worker's stderr until it ends."""
        os.set_blocking(self._errors, False)
        try:
            while True:
                await anyio.wait_readable(self._errors)
                data = os.read(self._errors, _STDERR_KEPT)
                if not data:
                    return
                self._written.append(data)
                while sum(map(len, self._written)) > 2 * _STDERR_KEPT:
                    self._written.popleft()
        finally:
            os.close(self._errors)

    def take_errors(self) -> str:
        """The text that the worker has written since the last call, at most its last 16 KiB."""
        text = b"".join(self._written)[-_STDERR_KEPT:].decode(errors="replace").strip()
        self._written.clear()
        return text

    def kill(self, cause: Cause) -> None:
        """Kill the worker for this cause, unless it has ended."""
        if self.end is None:
            self.cause = cause
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Template:
    """The process that forks the workers."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "relayout_api.workers.template"],
                stdin=theirs.fileno(),
                env={**os.environ, **_ENVIRONMENT},
                # Ctrl-C in a terminal is for the server, which ends the workers.
                start_new_session=True,
            )
        self._control.setblocking(False)
        self._text = b""
        self._pids: deque[Callable[[int], None]] = deque()
        self._workers: dict[int, WorkerProcess] = {}
        self.ready = anyio.Event()
        self.ended = anyio.Event()

    async def listen(self) -> None:
        """Read the template's lines until it ends."""
        try:
            while True:
                await anyio.wait_readable(self._control)
                data = self._control.recv(1 << 16)
                if not data:
                    return
                *lines, self._text = (self._text + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        except OSError as error:
            # `close` may come between the wait and the read.
            is_closed = self._control.fileno() < 0
            if not is_closed and not isinstance(error, ConnectionError):
                raise
        finally:
            self.close()
            # For those who wait for it: they find that it has ended.
            self.ready.set()

    async def fork(self) -> WorkerProcess:
        """A new worker, when the template is ready. A caller that is cancelled meanwhile gets it too.

        Raises TemplateError.
        """
        await self.ready.wait()
        if self.ended.is_set():
            raise TemplateError("the template of the workers ended")
        ours, theirs = socket.socketpair()
        errors, write = os.pipe()
        forked = anyio.Event()
        worker: WorkerProcess | None = None

        def take(pid: int) -> None:
            nonlocal worker
            if pid > 0:
                # At once, as the next line may be its end.
                worker = self._workers[pid] = WorkerProcess(pid, ours, errors)
            forked.set()

        try:
            socket.send_fds(self._control, [b"f"], [theirs.fileno(), write])
            self._pids.append(take)
        except OSError as error:
            ours.close()
            os.close(errors)
            raise TemplateError("the template of the workers ended") from error
        finally:
            theirs.close()
            os.close(write)
        # The template forks whether this is cancelled or not, and then the worker is the caller's.
        with anyio.CancelScope(shield=True):
            await forked.wait()
        if worker is None:
            ours.close()
            os.close(errors)
            raise TemplateError(
                "the template of the workers ended" if self.ended.is_set() else "the system makes no more processes"
            )
        ours.setblocking(False)
        return worker

    def close(self) -> None:
        """End the template, and with it its workers."""
        self.ended.set()
        self._process.kill()
        self._process.wait()
        while self._pids:
            self._pids.popleft()(-1)
        for pid in list(self._workers):
            self._end(pid, End(-signal.SIGKILL, 0))
        self._control.close()

    def _take(self, line: dict[str, int]) -> None:
        if "ready" in line:
            self.ready.set()
        elif "pid" in line:
            self._pids.popleft()(line["pid"])
        else:
            self._end(line["ended"], End(line["status"], line["peak"]))

    def _end(self, pid: int, end: End) -> None:
        # A library of the template may have had a process of its own.
        if worker := self._workers.pop(pid, None):
            worker.end = end
            worker.ended.set()
