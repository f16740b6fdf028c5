"""The pool: tasks in processes of their own, killed at the time limit or when the caller disconnects."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from time import monotonic

import anyio

from relayout.errors import OutOfTimeError
from relayout_api.problems import AnsweredError, Problem, RefusedError
from relayout_api.settings import Settings
from relayout_api.telemetry.metrics import Gauges, Metrics
from relayout_api.workers.fair_queue import FairQueue
from relayout_api.workers.messages import Answer, Content, Received, Task, receive
from relayout_api.workers.processes import End, Template, TemplateError, WorkerProcess

_log = logging.getLogger("relayout_api")

# A worker is replaced after so many tasks, so that what a task leaves behind does not add up.
_MOST_TASKS = 1000
# A task whose worker dies is tried again, in case the cause was outside.
_ATTEMPTS = 2
# So many workers more than there are places may end before they receive a task; all idle ones may have been killed.
_FALSE_STARTS = 3
# The pause before a worker is replaced that ended before its first task, as the next one may do the same.
_PAUSE_SECONDS = 1.0
# A worker that dies in native code with more than this share of its memory limit has died of it.
_MEMORY_SHARE = 0.7
_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError")
_Take = Callable[[dict[str, object]], None]


class WorkerDiedError(RefusedError):
    """A worker ended in the middle of a task, and not for lack of memory. `ends` are those of all tries."""

    def __init__(self, *ends: str, problem: str = "the worker process of this work ended abruptly") -> None:
        again = ", and so did that of a second try" if len(ends) > 1 else ""
        super().__init__("internal", f"{problem}{again}", found=", then ".join(ends), hint="retry later")
        self.ends = ends


class _GoneError(Exception):
    """A worker ended before it received the task. The text is that of its end."""


class Pool:
    """`settings.workers` processes, which callers share in turns."""

    def __init__(self, settings: Settings, metrics: Metrics, template: Template | None = None) -> None:
        self._first = template
        self._metrics = metrics
        self.queue = FairQueue(settings.workers, settings.share, settings.queue)
        self._settings = settings
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._template: Template | None = None
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Whether a worker is alive."""
        return bool(self._all)

    def gauges(self) -> Gauges:
        """The workers that are alive, and the tasks that wait for one."""
        return {
            "workers": {"busy": len(self._all) - len(self._idle), "idle": len(self._idle)},
            "queue_depth": {"requests": self.queue.waiting},
            "queue_oldest_seconds": {"requests": self.queue.oldest},
        }

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the workers in the background; at the end, stop them."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._keep_template)
            try:
                yield
            finally:
                self._stopping = True
                self._tasks.cancel_scope.cancel()
                if self._template is not None:
                    self._template.close()

    async def run(
        self,
        task: Task,
        body: Content,
        caller: str,
        *others: memoryview,
        wait: float | None = None,
        take: _Take = lambda event: None,
    ) -> Answer:
        """The answer to a task about a body and other parts, from a worker, with each event given to `take`.

        `wait`: the most seconds to wait for a worker; None: as long as it takes. The worker is killed when the task's
        time is over, or this is cancelled. Raises AnsweredError with the problem that the work ended with,
        RefusedError, OutOfTimeError, and WorkerDiedError where the worker ended by itself.
        """
        async with self.queue.place(caller, wait):
            ends: list[str] = []
            false_starts = 0
            while True:
                worker = await self._worker()
                try:
                    return await self._run(worker, task, body, others, take)
                except _GoneError as error:
                    false_starts += 1
                    if false_starts >= self._settings.workers + _FALSE_STARTS:
                        problem = "worker processes end before they receive a task"
                        raise WorkerDiedError(str(error), problem=problem) from None
                except WorkerDiedError as error:
                    ends += error.ends
                    if len(ends) == _ATTEMPTS:
                        raise WorkerDiedError(*ends) from error

    async def _run(
        self, worker: WorkerProcess, task: Task, body: Content, others: Sequence[memoryview], take: _Take
    ) -> Answer:
        is_whole = False
        try:
            with anyio.fail_after(task.seconds):
                answer = await self._converse(worker, task, body, others, take)
            is_whole = True
            return answer
        except AnsweredError:
            is_whole = True
            raise
        except TimeoutError:
            raise OutOfTimeError(
                "the time limit was reached and the work was stopped",
                where="the server's limit",
                expected=f"at most {task.seconds:g} s",
                hint="send a smaller model, or run the command relayout on your own machine",
            ) from None
        finally:
            self._log_errors(worker)
            worker.tasks += 1
            is_spare = len(self._all) > self._settings.workers
            if is_whole and worker.tasks < _MOST_TASKS and worker.end is None and not is_spare:
                self._idle.append(worker)
            else:
                worker.kill("renewed" if is_whole else "stopped")
                worker.channel.close()

    async def _converse(
        self, worker: WorkerProcess, task: Task, body: Content, others: Sequence[memoryview], take: _Take
    ) -> Answer:
        try:
            body.send(worker.channel, asdict(task), *others)
        except ConnectionError as error:
            await self._log_death(worker)
            raise _GoneError(worker.end) from error
        while True:
            message = await _next(worker)
            if message is None:
                await worker.ended.wait()
                assert worker.end is not None
                if not body.was_received:
                    await self._log_death(worker)
                    raise _GoneError(worker.end)
                raise self._death(worker, worker.end, task)
            header = message.header
            if "event" in header:
                take(header["event"])
            elif "problem" in header:
                if header["log"]:
                    _log.error("%s", header["log"])
                raise AnsweredError(Problem(**header["problem"]))
            elif "answer" in header:
                _, report, choices = message.parts
                answer = Answer(message.first, report, choices, **header["answer"])
                if answer.status is not None:
                    self._metrics.worked(answer.status, answer.seconds or {})
                return answer

    def _death(self, worker: WorkerProcess, end: End, task: Task) -> Exception:
        """The error of a task whose worker died."""
        errors = worker.take_errors()
        _log.error("worker %d died in a task: %s, at most %d MiB%s", worker.pid, end, end.peak >> 20, _shown(errors))
        return death(end, errors, task.memory_bytes)

    def _log_errors(self, worker: WorkerProcess) -> None:
        if errors := worker.take_errors():
            _log.warning("worker %d wrote%s", worker.pid, _shown(errors))

    async def _worker(self) -> WorkerProcess:
        """An idle worker, or a new one. Raises RefusedError where none can be made."""
        while self._idle:
            worker = self._idle.pop()
            if worker.end is None:
                return worker
            worker.channel.close()
            await self._log_death(worker)
        return await self._fork()

    async def _fork(self) -> WorkerProcess:
        for _ in range(3):
            template = self._template
            if template is None:
                break
            try:
                worker = await template.fork()
            except TemplateError as error:
                _log.warning("no worker is forked: %s", error)
                # Another template is started within a second, or other processes end.
                await anyio.sleep(1.5)
                continue
            self._all.add(worker)
            self._tasks.start_soon(worker.read_errors)
            self._tasks.start_soon(self._watch, worker)
            return worker
        raise RefusedError("starting", "no worker process can be started", hint="retry later", retry_after=5)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait for the end of a worker, and replace it if it was idle."""
        await worker.ended.wait()
        self._all.discard(worker)
        if not self._stopping:
            self._metrics.restarted(worker.cause)
        if worker in self._idle:
            self._idle.remove(worker)
            worker.channel.close()
            await self._log_death(worker)
        if not worker.tasks:
            await anyio.sleep(_PAUSE_SECONDS)
        await self._fill()

    async def _log_death(self, worker: WorkerProcess) -> None:
        """Log the end of a worker that had no task, or did not receive it."""
        with anyio.move_on_after(1.0):
            await worker.ended.wait()
        _log.error("worker %d died without a task: %s", worker.pid, worker.end)

    async def _fill(self) -> None:
        """Fork workers until there are as many as there are places."""
        while not self._stopping and len(self._all) < self._settings.workers:
            try:
                worker = await self._fork()
            except RefusedError:
                await anyio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._all) > self._settings.workers:
                # Another was forked in the meantime.
                worker.kill("renewed")
                worker.channel.close()
            else:
                self._idle.append(worker)

    async def _keep_template(self) -> None:
        """Start the template, and start it again when it ends."""
        while True:
            started = monotonic()
            self._template = template = self._first or Template()
            self._first = None
            self._tasks.start_soon(template.listen)
            async with anyio.create_task_group() as both:
                both.start_soon(self._fill_when_ready, template)
                await template.ended.wait()
                both.cancel_scope.cancel()
            _log.error("the template of the workers ended; it is started again")
            await anyio.sleep(max(0.0, 1.0 - (monotonic() - started)))

    async def _fill_when_ready(self, template: Template) -> None:
        await template.ready.wait()
        if not template.ended.is_set():
            await self._fill()


def death(end: End, errors: str, memory_bytes: int) -> RefusedError | WorkerDiedError:
    """The error of a task whose worker came to this end, after it wrote `errors`: of memory, or of something else."""
    is_of_memory = any(word in errors for word in _MEMORY_WORDS) or end.peak > _MEMORY_SHARE * memory_bytes
    if end.status < 0 and is_of_memory:
        problem = "the work on this takes more memory than a worker may have"
        return RefusedError("too-large", problem, expected=f"at most {memory_bytes} bytes")
    return WorkerDiedError(str(end))


async def _next(worker: WorkerProcess) -> Received | None:
    """The next message of a worker; None where it has ended. One that sends anything else is killed."""
    while True:
        await anyio.wait_readable(worker.channel)
        try:
            return receive(worker.channel)
        except BlockingIOError:
            continue
        except OSError:
            return None
        except ValueError as error:
            _log.error("worker %d sent no message: %s", worker.pid, error)
            worker.kill("died")
            return None


def _shown(errors: str) -> str:
    return f":\n{errors}" if errors else ""
