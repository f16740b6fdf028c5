"""A wall-clock deadline, and the seconds that each stage took."""

from __future__ import annotations

from time import perf_counter

__all__ = ["UNLIMITED", "Deadline", "ExpiredError"]


class ExpiredError(Exception):
    """The deadline has passed. It never leaves the solver: the engine that holds the best solution catches it."""


class Deadline:
    """A limit in seconds from the construction of the object; None: no limit.

    `deterministic` is a limit in CP-SAT's deterministic time, which is the same on every machine.
    """

    def __init__(self, time_limit: float | None = None, deterministic: float | None = None) -> None:
        self.deterministic = deterministic
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()
        self._end = None if time_limit is None else self._last + time_limit

    def stage(self, name: str) -> None:
        """Add the seconds since the last call to the stage `name`."""
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def left(self) -> float | None:
        """The seconds that remain, negative after the deadline; None: no limit."""
        return None if self._end is None else self._end - perf_counter()

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and perf_counter() >= self._end

    def check(self) -> None:
        """Raise ExpiredError after the deadline."""
        if self._end is not None and perf_counter() >= self._end:
            raise ExpiredError


UNLIMITED = Deadline()
