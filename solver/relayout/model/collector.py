"""The search for cyclic garbage, paused while a model is worked on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the search for cyclic garbage. Nearly all objects of a run live to its end, and the collector would visit
    them again and again: half of the CPU time, measured."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
