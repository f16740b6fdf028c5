"""Immediate Ctrl-C without partly written files.

Solvers and runtimes keep the main thread in native code, where Python raises no KeyboardInterrupt. CP-SAT handles the
signal itself, stops its search, and continues as if its time limit was reached. So the signal is blocked in every
thread (later threads inherit the mask), and one thread waits for it.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Self

from relayout.cli.exit_status import INTERRUPTED


class Interrupts:
    """Within the context, Ctrl-C raises KeyboardInterrupt in the main thread. If `at_once` is set, it calls `last` and
    ends the process with status 130: no file is being written, and Python may not run for minutes."""

    def __init__(self, last: Callable[[], None]) -> None:
        self.at_once = False
        self._last = last
        self._over = False
        self._waiter: threading.Thread | None = None
        self._catches_termination = False

    def __enter__(self) -> Self:
        # Elsewhere (Windows, a thread of a program that calls `main`) the signal stays as it is.
        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            self._waiter = threading.Thread(target=self._wait, name="interrupts", daemon=True)
            self._waiter.start()
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform == "win32" or self._waiter is None:
            return
        self._over = True
        if self._waiter.is_alive():
            signal.pthread_kill(self._waiter.ident or 0, signal.SIGINT)
        self._waiter.join()
        handler = signal.getsignal(signal.SIGINT)
        if handler is not None:
            # CP-SAT restores the system's default handler, which would end the process.
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if self._catches_termination:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def catch_termination(self) -> None:
        """From now on SIGTERM raises SystemExit, so that a file that is written in part is removed. Before, it ends the
        process at once, also in native code."""
        if self._waiter is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit)
            self._catches_termination = True

    def _wait(self) -> None:
        if sys.platform == "win32":
            return
        while True:
            signal.sigwait({signal.SIGINT})
            if self._over:
                return
            if self.at_once:
                self._last()
                os._exit(INTERRUPTED)
            _thread.interrupt_main()


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
