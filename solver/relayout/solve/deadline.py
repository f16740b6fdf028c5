"""A wall-clock deadline, the seconds that each stage took, and a listener for better solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

Improved = Callable[[int, int], None]
"""Takes the cost of the best solution so far, and a lower bound of all."""


class ExpiredError(Exception):
    """The deadline has passed. It never leaves the solver: the engine that holds the best solution catches it."""


class Deadline:
    """A limit in seconds from the construction of the object; None: no limit.

    `improved` is called with each better cost of a solution and each better bound; the outcome may be better still.
    """

    def __init__(self, time_limit: float | None = None, improved: Improved | None = None) -> None:
        self.improved = improved
        self._cost: int | None = None
        self._bound = 0
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()
        self._end = None if time_limit is None else self._last + time_limit

    def stage(self, name: str) -> None:
        """Add the seconds since the last call to the stage `name`."""
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def include(self, seconds: Mapping[str, float]) -> None:
        """Add the stages of a part that has just ended, which began at the last call."""
        for name, spent in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self._last = perf_counter()

    def found(self, cost: int | None, bound: int) -> None:
        """Tell the listener of a cost and a bound, if one of them is better than before."""
        if self.improved is None:
            return
        best = self._cost if cost is None else cost if self._cost is None else min(cost, self._cost)
        bound = max(bound, self._bound)
        if best is None or (best, bound) == (self._cost, self._bound):
            self._bound = bound
            return
        self._cost, self._bound = best, bound
        self.improved(best, min(bound, best))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """A context in which the listener is not told: what is solved in it is another problem."""
        improved, self.improved = self.improved, None
        try:
            yield
        finally:
            self.improved = improved

    def left(self) -> float | None:
        """The seconds that remain, negative after the deadline; None: no limit."""
        return None if self._end is None else self._end - perf_counter()

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and perf_counter() >= self._end

    def check(self) -> None:
        """Raise ExpiredError after the deadline."""
        if self.is_over():
            raise ExpiredError


UNLIMITED = Deadline()
