"""Seconds by stage, and what is left of the time that was given."""

from __future__ import annotations

from time import perf_counter

__all__ = ["UNLIMITED", "Clock", "ExpiredError"]


class ExpiredError(Exception):
    """The time is over. It never leaves the solver: whoever knows the best solution so far catches it."""


class Clock:
    """Runs from when it is made. `deterministic` is a limit in CP-SAT's own measure, the same on every machine."""

    def __init__(self, time_limit: float | None = None, deterministic: float | None = None) -> None:
        self.deterministic = deterministic
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()
        self._end = None if time_limit is None else self._last + time_limit

    def stage(self, name: str) -> None:
        """Enter what has passed since the last stage under this one's name."""
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def left(self) -> float | None:
        """The seconds left, below 0 where it is over; None: no limit."""
        return None if self._end is None else self._end - perf_counter()

    def over(self) -> bool:
        return self._end is not None and perf_counter() >= self._end

    def check(self) -> None:
        """Raise ExpiredError where the time is over."""
        if self._end is not None and perf_counter() >= self._end:
            raise ExpiredError


UNLIMITED = Clock()
