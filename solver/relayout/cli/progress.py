"""The progress bar on a terminal, for work of more than a second."""

from __future__ import annotations

import sys
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

from relayout.cli.interrupts import Interrupts
from relayout.cli.terminal import print_status

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bar"]

PATIENCE = 1.0
# Steps without side effects that mostly run native code: Ctrl-C ends the process there at once.
TRACELESS = frozenset({"read", "requirements", "solve", "rewrite"})


class Bar:
    """Shows the current one of `steps` steps, after the first second and only on a terminal.

    Within the context, Ctrl-C works in every step.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = -1
        self._step = ""
        self._lock = Lock()
        self._timer: Timer | None = None
        self._shown: tuple[Progress, TaskID] | None = None
        self._interrupts = Interrupts(last=self._on_interrupt)

    def __enter__(self) -> Self:
        self._interrupts.__enter__()
        if sys.stderr.isatty():
            self._timer = Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._interrupts.__exit__(kind, error, trace)

    def __call__(self, step: str) -> None:
        """End the last step and begin `step`."""
        self.within(step)
        with self._lock:
            self._done, self._step = self._done + 1, step
            if self._shown is not None:
                progress, task = self._shown
                progress.update(task, description=step, completed=self._done)

    def within(self, step: str) -> None:
        """Begin a part of the current step, which is not shown."""
        self._interrupts.at_once = step in TRACELESS

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

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
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
