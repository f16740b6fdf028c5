"""The worker processes: warm, limited in number, and killed at the time limit or when the caller disconnects."""

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

# The warm-up imports everything, which takes a while on a busy machine.
_WARM_UP_SECONDS = 120.0
# Well below the 300 seconds after which anyio ends an idle worker.
_ROUND_SECONDS = 120.0


class Workers:
    """Runs tasks in processes of their own. `ready`: at least one worker is warm."""

    def __init__(self, settings: Settings) -> None:
        self.ready = False
        self._settings = settings
        self._admitted = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the workers in the background; at the end, stop them."""
        self._free = CapacityLimiter(self._settings.workers)
        # A task already has a token of `_free` when it asks for a process, so it never waits for this limiter.
        self._processes = CapacityLimiter(self._settings.workers)
        self._lost = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_warm)
            yield
            tasks.cancel_scope.cancel()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a request to the workers or the queue. Raises RefusedError if both are full."""
        most = self._settings.workers + self._settings.queue
        if self._admitted >= most:
            raise RefusedError("busy", "too many requests at once", expected=f"at most {most}", hint="retry later")
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
                # The imports of a new worker do not count against the time limit.
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
                    "the time limit was reached and the work was stopped",
                    where="the server's limit",
                    expected=f"at most {seconds:g} s",
                    hint="send a smaller model, or run the command relayout on your own machine",
                ) from None
            except (BrokenWorkerProcess, OSError) as error:
                raise InternalError("a worker process could not be started, or ended abruptly") from error
            finally:
                if lost:
                    self._lost.set()

    async def _keep_warm(self) -> None:
        """Replace lost workers, and call idle ones before they end."""
        while True:
            async with anyio.create_task_group() as everyone:
                # Concurrently: each call takes an idle worker, and the last one starts a new worker if none is idle.
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
        """Warm a worker up, unless it is warm. Raises RelayoutError, BrokenWorkerProcess, OSError."""
        try:
            with anyio.fail_after(_WARM_UP_SECONDS):
                await to_process.run_sync(warm, self._settings.memory_bytes, cancellable=True, limiter=self._processes)
        except TimeoutError as error:
            raise InternalError("a worker cannot be warmed up") from error
        self.ready = True
