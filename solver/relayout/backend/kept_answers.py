"""Answers of backends about operator classes, kept for the further graphs of a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from relayout.backend.interface import Backend, Implementation

__all__ = ["KeptAnswers"]


class KeptAnswers:
    """The implementations that backends gave for operator classes, at most `most`: the least recently used go first.

    Only a backend that is pure and answers by type gives a class the same answer in every graph. Answers with a
    `rewrite` are not kept, as it may hold its node, and with it a whole model.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        # An entry holds its backend, so that no other one gets the same identity.
        self._found: dict[tuple[int, Hashable], tuple[Backend, tuple[Implementation, ...]]] = {}

    def of(
        self, backend: Backend, kind: Hashable | None, ask: Callable[[], tuple[Implementation, ...]]
    ) -> tuple[Implementation, ...]:
        """The backend's answer about the class with the key `kind`, a value without nodes, by `ask` where none is kept.
        The answer about None is never kept."""
        if kind is None:
            return ask()
        key = id(backend), kind
        known = self._found.pop(key, None)
        if known is None:
            known = backend, ask()
            if any(each.rewrite is not None for each in known[1]):
                return known[1]
            if len(self._found) >= self._most:
                del self._found[next(iter(self._found))]
        self._found[key] = known
        return known[1]
