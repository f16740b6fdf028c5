"""The progress bar on a terminal, for work of more than a second, and the time limit of a whole run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from threading import TIMEOUT_MAX, Event, Lock, Thread, Timer
from time import perf_counter
from typing import TYPE_CHECKING, Self

from relayout.cli.exit_status import OUT_OF_TIME, describe
from relayout.cli.interrupts import Interrupts
from relayout.cli.terminal import print_status
from relayout.errors import OutOfTimeError, RelayoutError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0
GRACE = 5.0
# Steps without side effects that mostly run native code: Ctrl-C ends the process there at once.
TRACELESS = frozenset({"read", "requirements", "solve", "rewrite"})
WRITING = "write"


class Bar:
    """Shows the current one of `steps` steps, after the first second and only on a terminal.

    Within the context, Ctrl-C works in every step. After `limit` seconds the process ends with status 4, wherever it
    is, unless a file is being written. Before that, `expired` is called with the reason, and has `GRACE` seconds.
    """

    def __init__(
        self, steps: int, limit: float | None = None, expired: Callable[[RelayoutError], None] | None = None
    ) -> None:
        self._expired = expired
        self._steps = steps
        self._limit = limit
        self._start = perf_counter()
        self._watch: Timer | None = None
        self._done = -1
        self._began: dict[str, float] = {}
        self._step = self._part = ""
        self._is_over = False
        self._stop: Callable[[], object] | None = None
        self._lock = Lock()
        self._timer: Timer | None = None
        self._shown: tuple[Progress, TaskID] | None = None
        self._interrupts = Interrupts(last=self._on_interrupt)

    def __enter__(self) -> Self:
        self._interrupts.__enter__()
        if self._limit is not None:
            self._watch = Timer(min(self._limit, TIMEOUT_MAX), self._on_limit)
            self._watch.daemon = True
            self._watch.start()
        if sys.stderr.isatty():
            self._timer = Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()
        with self._lock:
            if self._watch is not None:
                self._watch.cancel()
        self._wait_if_over()
        self._interrupts.__exit__(*raised)

    def __call__(self, step: str) -> None:
        """End the last step and begin `step`."""
        self._interrupts.at_once = self._stop is not None or step in TRACELESS
        if step == WRITING:
            self._interrupts.catch_termination()
        with self._lock:
            # Once a file is being written, the limit ends nothing any more.
            self._part = step if not self._is_over else self._part
        self._wait_if_over()
        with self._lock:
            self._done, self._step = self._done + 1, step
            self._began[step] = perf_counter()
            if self._shown is not None:
                progress, task = self._shown
                progress.update(task, description=step, completed=self._done)

    def catch_termination(self) -> None:
        """From now on SIGTERM raises SystemExit, so that the other processes of this work are ended."""
        self._interrupts.catch_termination()

    def within(self, step: str) -> None:
        """Begin a part of the current step, which is shown behind it."""
        self._interrupts.at_once = self._stop is not None or step in TRACELESS
        self._part = step
        self._detail(step)

    @contextmanager
    def elsewhere(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block another machine does the work, and `stop` stops it there, in at most `GRACE` seconds: before
        Ctrl-C and the limit end the process, which they do at once, and before an exception, or SIGTERM, leaves."""
        self._interrupts.catch_termination()
        self._stop, self._interrupts.at_once = stop, True
        try:
            yield
        except BaseException:
            _given_grace(stop)
            raise
        finally:
            self._stop, self._interrupts.at_once = None, False

    def improved(self, cost: int, bound: int) -> None:
        """Show the cost of the best solution so far, and the lower bound of all, behind the current step."""
        self._detail(f"cost {cost:,}, bound {bound:,}")

    def _detail(self, text: str) -> None:
        with self._lock:
            if self._shown is not None:
                progress, task = self._shown
                progress.update(task, description=f"{self._step}: {text}" if self._step else text)

    def time_for_search(self) -> float | None:
        """The seconds that the steps up to the search may take: the rest of the limit, less the time so far and a
        tenth of the rest. None without a limit.

        What comes after them (a second reading, the numerical comparison, the file) takes about as long as the first
        reading, and longer for a model that is large or compared."""
        if self._limit is None:
            return None
        spent = perf_counter() - self._start
        left = self._limit - spent
        return max(0.9 * left - spent, left / 2, 0.001)

    def clear(self) -> None:
        """Remove the bar."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown is not None:
                self._shown[0].stop()
                self._shown = None

    def _on_interrupt(self) -> None:
        self.clear()
        print_status("relayout: interrupted")
        if self._stop is not None:
            _given_grace(self._stop)

    def _on_limit(self) -> None:
        with self._lock:
            if self._part == WRITING:
                # The result exists: finish writing the file first.
                return
            self._is_over = True
        self.clear()
        where, step = f"--time-limit {self._limit:g}", self._part or "read"
        error = OutOfTimeError(
            f"the time was up in the step '{step}'",
            where=where,
            expected="time for every step: the limit shortens the search alone",
            found=", ".join(self._seconds()),
            hint="raise it",
        )
        print_status(f"relayout: error: {describe(error)[1]}")
        if self._stop is not None:
            _given_grace(self._stop)
        if self._expired is not None:
            _given_grace(self._expired, error)
        os._exit(OUT_OF_TIME)

    def _seconds(self) -> Iterator[str]:
        """How long each step took, up to now."""
        began = [*self._began.items(), ("", perf_counter())]
        for (step, start), (_, end) in pairwise(began):
            yield f"{step} {end - start:.1f} s"

    def _wait_if_over(self) -> None:
        """Write nothing after the limit: the watch is about to end the process."""
        if self._is_over:
            Event().wait()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with self._lock:
            if self._timer is None:
                return
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            task = progress.add_task(self._step, total=self._steps, completed=max(self._done, 0))
            progress.start()
            self._shown = progress, task


def _given_grace(function: Callable[..., object], *arguments: object) -> None:
    """Call a function, and wait for its end no longer than `GRACE` seconds."""
    last = Thread(target=function, args=arguments, daemon=True)
    last.start()
    last.join(GRACE)
