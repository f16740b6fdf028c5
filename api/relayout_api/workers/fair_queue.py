"""A fair queue for a few places: callers take turns, and no caller has all places."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import anyio

from relayout_api.problems import RefusedError

# Weight of the last duration in the running mean, and the mean before the first.
_WEIGHT, _FIRST = 0.1, 0.5


class FairQueue:
    """`places` places, of which one caller has at most `share`; `waiting` callers may wait, half of them one caller's.

    A place that becomes free goes to the caller whose turn it is, not to the one that has waited longest.
    """

    def __init__(self, places: int, share: int, waiting: int) -> None:
        self._places = places
        self._share = share
        self._most_waiting = waiting
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[anyio.Event]] = {}
        self._mean = _FIRST
        self._since: dict[anyio.Event, float] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def oldest(self) -> float:
        """The seconds that the first of them has waited."""
        return max(0.0, monotonic() - min(self._since.values())) if self._since else 0.0

    @property
    def used(self) -> int:
        """How many places are taken."""
        return self._used.total()

    @asynccontextmanager
    async def place(self, caller: str, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a place, at most `seconds`, and hold it. Raises RefusedError where too many wait, or too long."""
        await self._enter(caller, seconds)
        started = monotonic()
        try:
            yield
        finally:
            self._mean += _WEIGHT * (monotonic() - started - self._mean)
            self._release(caller)

    async def _enter(self, caller: str, seconds: float | None) -> None:
        if seconds is not None and (self.used >= self._places or self._used[caller] >= self._share):
            own, most_own = len(self._waiting.get(caller, ())), max(1, self._most_waiting // 2)
            if self.waiting >= self._most_waiting:
                expected = f"at most {self._most_waiting} requests waiting"
                raise self._refused("busy", "too many requests at once", expected, self.waiting)
            if own >= most_own:
                problem = "this caller has too many requests at once"
                expected = f"at most {most_own} requests of one caller waiting"
                raise self._refused("too-many-requests", problem, expected, own)
        turn = anyio.Event()
        self._since[turn] = monotonic()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._hand_out()
        try:
            with anyio.fail_after(seconds):
                await turn.wait()
        except BaseException as error:
            if turn.is_set():
                # The place came in the same moment.
                self._release(caller)
            else:
                self._leave(caller, turn)
            if isinstance(error, TimeoutError):
                kind, problem = "busy", "no worker became free in time"
                if self._used[caller] >= self._share:
                    kind, problem = "too-many-requests", "other work of this caller kept its share of the workers"
                raise self._refused(kind, problem, f"a free worker within {seconds:g} s", self.waiting) from None
            raise
        finally:
            del self._since[turn]

    def _release(self, caller: str) -> None:
        """Take a place from a caller and give it to the next one."""
        self._used[caller] -= 1
        if not self._used[caller]:
            del self._used[caller]
        self._hand_out()

    def _leave(self, caller: str, turn: anyio.Event) -> None:
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]

    def _hand_out(self) -> None:
        """Give free places to those whose turn it is. The order of the dictionary is the order of turns."""
        for caller in list(self._waiting):
            if self.used >= self._places:
                return
            if self._used[caller] >= self._share:
                continue
            turns = self._waiting.pop(caller)
            self._used[caller] += 1
            turns.popleft().set()
            if turns:
                # To the end of the row.
                self._waiting[caller] = turns
        if self.used < self._places and any(self._used[caller] < self._share for caller in self._waiting):
            self._hand_out()

    def _refused(self, kind: str, problem: str, expected: str, ahead: int) -> RefusedError:
        wait = max(1, math.ceil(self._mean * (ahead + 1) / self._places))
        return RefusedError(kind, problem, expected=expected, hint="retry later", retry_after=min(wait, 300))
