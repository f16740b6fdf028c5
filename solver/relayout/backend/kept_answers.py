"""Facts about operator classes that follow from a pure backend, kept for the further graphs of a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from relayout.backend.interface import Backend, Implementation

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """Facts by backend and key, at most `most`: the least recently used go first.

    Only a backend that is pure and answers by type gives a class the same answer in every graph. The key of a class is
    a value, and neither it nor a fact may hold a node, for that would hold a whole model.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        # An entry holds its backend, so that no other one gets the same identity.
        self._found: dict[tuple[int, Hashable], tuple[Backend, _T]] = {}
        # A caller may legalize in several threads.
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._found)

    def of(
        self, backend: Backend, key: Hashable, make: Callable[[], _T], may_keep: Callable[[_T], bool] = lambda _: True
    ) -> _T:
        """The fact of this key; by `make` where none is kept."""
        place = id(backend), key
        with self._lock:
            known = self._found.pop(place, None)
            if known is not None:
                self._found[place] = known
                return known[1]
        made = make()
        if may_keep(made):
            with self._lock:
                self._found[place] = backend, made
                if len(self._found) > self._most:
                    del self._found[next(iter(self._found))]
        return made


def ask_once(
    kept: Kept[tuple[Implementation, ...]],
    backend: Backend,
    key: Hashable | None,
    ask: Callable[[], tuple[Implementation, ...]],
) -> tuple[Implementation, ...]:
    """The implementations that a backend gives a class; by `ask` where they are not kept.

    Those about None are never kept, and those with a `rewrite` neither: it may hold its node.
    """
    if key is None:
        return ask()
    return kept.of(backend, key, ask, lambda found: all(each.rewrite is None for each in found))
