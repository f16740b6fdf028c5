"""The worker processes: warm, at most so many, and killed when the time is over or the caller has gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from relayout.errors import InternalError, OutOfTimeError, RelayoutError
from relayout_api.messages import Answer, Task
from relayout_api.problems import RefusedError
from relayout_api.settings import Settings
from relayout_api.tasks import perform, warm

__all__ = ["Workers"]

_log = logging.getLogger("relayout_api")

# Warming up imports everything; on a busy machine that takes a while, but not for ever.
_WARM_UP_SECONDS = 120.0
# Well below the 300 seconds after which anyio ends a worker that has nothing to do.
_ROUND_SECONDS = 120.0


class Workers:
    """Runs tasks in processes of their own. `ready` says that a first worker is there and warm."""

    def __init__(self, settings: Settings) -> None:
        self.ready = False
        self._settings = settings
        self._admitted = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the workers in the background; at the end, let go of them."""
        self._free = CapacityLimiter(self._settings.workers)
        # A task holds a place in `_free` already when it asks for a process, so it never waits for this one.
        self._processes = CapacityLimiter(self._settings.workers)
        self._lost = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_warm)
            yield
            tasks.cancel_scope.cancel()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A place at work or in the queue, for as long as a request lasts. Raises RefusedError where none is left."""
        most = self._settings.workers + self._settings.queue
        if self._admitted >= most:
            raise RefusedError("busy", "too many requests at once", expected=f"at most {most}", hint="come again")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, task: Task) -> Answer:
        """The answer to a request, from a worker. The worker is killed when its time is over, or this is cancelled.

        Raises the RelayoutErrors of the work, OutOfTimeError, and InternalError where the worker ended by itself.
        """
        seconds = self._settings.time_limit
        async with self._free:
            lost = True
            try:
                # A worker that is new does its imports first, on nobody's time.
                await self._warmed()
                with anyio.fail_after(seconds):
                    answer = await to_process.run_sync(perform, task, cancellable=True, limiter=self._processes)
                lost = False
                return answer
            except RelayoutError:
                lost = False
                raise
            except TimeoutError:
                raise OutOfTimeError(
                    "the time is over, and the work was stopped",
                    where="the server's limit",
                    expected=f"at most {seconds:g} s",
                    hint="ask for less, or run the command relayout on a machine of your own",
                ) from None
            except (BrokenWorkerProcess, OSError) as error:
                raise InternalError("a worker process could not be started, or ended abruptly") from error
            finally:
                if lost:
                    self._lost.set()

    async def _keep_warm(self) -> None:
        """Replace workers that are lost, and give those that have nothing to do a reason to stay."""
        while True:
            async with anyio.create_task_group() as everyone:
                # All at once: each takes an idle worker, and the last finds none and starts the one that is missing.
                for _ in range(self._settings.workers):
                    everyone.start_soon(self._warm_up)
            with anyio.move_on_after(_ROUND_SECONDS):
                await self._lost.wait()
            self._lost = anyio.Event()

    async def _warm_up(self) -> None:
        async with self._free:
            try:
                await self._warmed()
            except (RelayoutError, BrokenWorkerProcess, OSError):
                _log.exception("a worker could not be warmed up")

    async def _warmed(self) -> None:
        """Warm a worker up; one that is warm says so at once. Raises RelayoutError, BrokenWorkerProcess, OSError."""
        try:
            with anyio.fail_after(_WARM_UP_SECONDS):
                await to_process.run_sync(warm, self._settings.memory_bytes, cancellable=True, limiter=self._processes)
        except TimeoutError as error:
            raise InternalError("a worker does not get warm") from error
        self.ready = True
