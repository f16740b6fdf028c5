"""Limits of a caller: requests a minute, and requests at once. Each server process counts for itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from relayout_api.access.callers import Caller
from relayout_api.problems import RefusedError

# Buckets of this many callers are kept. A caller's that is full says nothing and is dropped first.
_MOST = 10_000


class Limits:
    """Counts requests of callers that have limits."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}

    @contextmanager
    def admitted(self, caller: Caller) -> Iterator[None]:
        """Admit one request. Raises RefusedError, which says after how many seconds to try again."""
        if caller.concurrency is not None and self._running[caller.name] >= caller.concurrency:
            raise RefusedError(
                "too-many-requests",
                "too many requests of this key at once",
                expected=f"at most {caller.concurrency}",
                hint="wait for an answer",
                retry_after=1,
            )
        self._take(caller)
        self._running[caller.name] += 1
        try:
            yield
        finally:
            self._running[caller.name] -= 1
            if not self._running[caller.name]:
                del self._running[caller.name]

    def _take(self, caller: Caller) -> None:
        """Take one request from the caller's bucket, which holds a minute's requests and fills steadily."""
        if caller.rate is None:
            return
        now = self._clock()
        size = max(caller.rate, 1.0)
        level, since = self._buckets.pop(caller.name, (size, now))
        level = min(size, level + (now - since) * caller.rate / 60)
        if level < 1:
            self._buckets[caller.name] = level, now
            raise RefusedError(
                "too-many-requests",
                "too many requests of this key",
                expected=f"at most {caller.rate:g} a minute",
                retry_after=math.ceil((1 - level) * 60 / caller.rate),
            )
        if len(self._buckets) >= _MOST:
            # The first was used longest ago.
            del self._buckets[next(iter(self._buckets))]
        self._buckets[caller.name] = level - 1, now
