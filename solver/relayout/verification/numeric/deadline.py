"""Limits on the time of runs in Python: onnx's reference computes some operators element by element."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType


class UndecidedError(Exception):
    """The reason why models cannot be compared, in float64 or in the time for it."""


class Deadline:
    """The time until which nodes may run. While one is entered, Python code that runs past it is stopped.

    The reference computes some operators element by element, in minutes instead of milliseconds.
    """

    def __init__(self, seconds: float, stated: float | None = None) -> None:
        self._stated, self._end = seconds if stated is None else stated, perf_counter() + seconds

    def check(self) -> None:
        if perf_counter() > self._end:
            raise UndecidedError(f"it takes more than {self._stated:g} seconds")

    def _check(self, frame: FrameType, event: str, argument: object) -> None:
        self.check()

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._check)

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)


class Budget:
    """The seconds that several runs may take together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Run the block; raises UndecidedError where the time is up."""
        start = perf_counter()
        try:
            with Deadline(self._left, self._seconds):
                yield
        finally:
            self._left -= perf_counter() - start
