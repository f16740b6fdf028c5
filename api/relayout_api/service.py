"""The parts of a running service, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import anyio
from anyio import to_thread

from relayout.errors import RelayoutError
from relayout_api.bodies import Bodies
from relayout_api.jobs.jobs import Jobs
from relayout_api.problems import SEE_LOG, AnsweredError, RefusedError
from relayout_api.results import Results
from relayout_api.settings import Settings
from relayout_api.store import store_of
from relayout_api.telemetry.metrics import Metrics
from relayout_api.workers.messages import Content, Task
from relayout_api.workers.pool import Pool
from relayout_api.workers.processes import Template

_log = logging.getLogger("relayout_api")

_CHECK_SECONDS = 1.0
# The job database opens within this time, or is not reached.
_IMPORT_SECONDS = 10.0


class Service:
    """The settings, the workers, the store and the jobs of one server.

    `stopping` is set when the server is told to stop, and `over` when the grace of what runs is over.
    """

    def __init__(self, settings: Settings, template: Template | None = None) -> None:
        self.settings = settings
        self.bodies = Bodies(settings)
        self.metrics = Metrics()
        self.pool = Pool(settings, self.metrics, template)
        self.results = Results(settings, store_of(settings))
        self.jobs = Jobs(settings, self.pool, self.results)
        self.metrics.watch(self.pool.gauges, self.jobs.gauges)
        self.stopping = anyio.Event()
        self.over = anyio.Event()
        self._hurried = anyio.Event()
        self._working: set[anyio.CancelScope] = set()
        self._is_warm = False
        self._backends: bytes | None = None
        self._listing = anyio.Lock()
        self._checked = -math.inf
        self._store_fault = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start everything in the background; at the end, stop it."""
        self._loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_grace)
            tasks.start_soon(self._warm)
            tasks.start_soon(self._list)
            async with self.pool.open(), self.jobs.open(self.over):
                try:
                    yield
                finally:
                    self._stop()
            tasks.cancel_scope.cancel()

    def stop_soon(self) -> None:
        """Take no more jobs, and give what runs its grace; may be called in a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def stop_now(self) -> None:
        """End the grace; may be called in a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurried.set)

    def _stop(self) -> None:
        self.jobs.stop_taking()
        self.stopping.set()

    @contextmanager
    def ends(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel a scope, in which a request is answered, when the grace is over."""
        self._working.add(scope)
        if self.over.is_set():
            scope.cancel()
        try:
            yield
        finally:
            self._working.discard(scope)

    async def _end_grace(self) -> None:
        try:
            await self.stopping.wait()
            with anyio.move_on_after(self.settings.grace):
                await self._hurried.wait()
        finally:
            self.over.set()
        self.bodies.stop()
        for scope in self._working:
            scope.cancel()

    async def _warm(self) -> None:
        """Wait until all modules are imported, so that no caller waits for them, and make all objects permanent. A
        search for garbage that visits them stops all requests: 145,000 objects took 0.1 to 0.3 s."""
        with anyio.move_on_after(_IMPORT_SECONDS):
            await self.jobs.tried.wait()
        gc.freeze()
        # The command turns it off: a tenth of the time of the imports.
        gc.enable()
        await self.jobs.tried.wait()
        self._is_warm = True

    async def _list(self) -> None:
        try:
            await self.backends()
        except (RelayoutError, AnsweredError) as error:
            # A request for the list gets this error. Others load only the backend that they name.
            _log.error("the installed backends cannot be listed: %s", error)

    async def backends(self) -> bytes:
        """The answer about the installed backends, in JSON. A worker makes it once: a backend may have any code.

        Raises as `Pool.run`.
        """
        async with self._listing:
            if self._backends is None:
                task = Task("backends", None, self.settings.time_limit, self.settings.memory_bytes)
                self._backends = bytes((await self.pool.run(task, Content(), "the service")).view)
            return self._backends

    async def check(self) -> None:
        """Raise RefusedError unless work is accepted. An answer is kept for a second, as many may ask."""
        if self.stopping.is_set():
            raise RefusedError("stopping", "the server is being stopped", retry_after=5)
        if not (self.pool.ready and self._is_warm):
            problem = "the server is not warm yet" if self.pool.ready else "no worker is warm yet"
            raise RefusedError("starting", problem, retry_after=1)
        if monotonic() < self._checked + _CHECK_SECONDS:
            return
        await self.jobs.check()
        try:
            await to_thread.run_sync(self.results.check)
        except OSError as error:
            # Everybody may ask, and the whole error has a path or an address in it. It is logged once.
            if str(error) != self._store_fault:
                _log.error("the store cannot be used: %s", error)
            self._store_fault = str(error)
            problem, found = "the store cannot be used", error.strerror or ""
            raise RefusedError("starting", problem, found=found, hint=SEE_LOG, retry_after=10) from error
        if self._store_fault:
            _log.info("the store can be used again")
        self._store_fault = ""
        self._checked = monotonic()
