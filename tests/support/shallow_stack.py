"""A stack with little room, in which a function that calls itself once a node fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shallow_stack(room: int) -> Iterator[None]:
    """So many calls may nest below this one."""
    depth, limit, frame = 0, sys.getrecursionlimit(), sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(depth + room)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
