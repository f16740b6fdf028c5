"""The cheapest copies of one item: all formats required, each converted from the one produced or from another copy.

It is a minimum Steiner arborescence of the formats, found by dynamic programming over sets of required formats ("The
Steiner problem in graphs", Dreyfus & Wagner 1971). A set of formats is an int with one bit a format.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property, lru_cache

_Edges = frozenset[tuple[int, int]]
_Tree = tuple[int, _Edges]
"""The cost of some copies, and the copies as (from, to)."""


class FormatCopies:
    """The cheapest copies under one matrix: `conversion[f][g]` is the cost from `f` to `g`, None: impossible."""

    def __init__(self, conversion: tuple[tuple[int | None, ...], ...]) -> None:
        self._conversion = conversion
        self._formats = range(len(conversion))
        self._tree, self._split = cache(self._cheapest_tree), cache(self._cheapest_split)

    def cost(self, source: int, required: int) -> int | None:
        """The cost of all required formats from `source`; None: one of them cannot be made."""
        tree = self._tree(source, required & ~(1 << source))
        return None if tree is None else tree[0]

    def edges(self, source: int, required: int) -> list[tuple[int, int]] | None:
        """The copies as (from, to), each after the one that it is made from; None: a required format cannot be made.

        A copy is made from `source` itself wherever that costs no more.
        """
        tree = self._tree(source, required & ~(1 << source))
        if tree is None:
            return None
        made: dict[int, int] = {}
        for _ in tree[1]:
            for origin, target in sorted(tree[1]):
                if target not in made and target != source and (origin == source or origin in made):
                    made[target] = origin
        for target, origin in made.items():
            price, direct = self._conversion[origin][target], self._conversion[source][target]
            if direct is not None and price is not None and direct <= price:
                made[target] = source
        found: dict[int, int] = {}
        for target in members(required):
            path = []
            while target != source and target not in found:
                path.append(target)
                target = made[target]
            found |= {each: made[each] for each in reversed(path)}
        return [(origin, target) for target, origin in found.items()]

    @cached_property
    def _paths(self) -> list[dict[int, _Tree]]:
        return [self._shortest_from(f) for f in self._formats]

    def _shortest_from(self, source: int) -> dict[int, _Tree]:
        """The cheapest way to each format that can be reached (Bellman & Ford)."""
        best: dict[int, _Tree] = {source: (0, frozenset())}
        for _ in self._formats:
            for f, (cost, edges) in list(best.items()):
                for g, price in enumerate(self._conversion[f]):
                    if price is not None and (g not in best or cost + price < best[g][0]):
                        best[g] = cost + price, edges | {(f, g)}
        return best

    def _cheapest_tree(self, root: int, required: int) -> _Tree | None:
        """The cheapest copies of `required` from `root`, which is not among them."""
        if not required:
            return 0, frozenset()
        if required & (required - 1) == 0:
            return self._paths[root].get(required.bit_length() - 1)
        best: _Tree | None = None
        for via, (cost, edges) in self._paths[root].items():
            rest = self._tree(via, required & ~(1 << via)) if required >> via & 1 else self._split(via, required)
            if rest is not None and (best is None or cost + rest[0] < best[0]):
                best = cost + rest[0], edges | rest[1]
        return best

    def _cheapest_split(self, via: int, required: int) -> _Tree | None:
        """The cheapest copies of `required` from `via` in two parts."""
        lowest = required & -required
        others = required & ~lowest
        best: _Tree | None = None
        part = others
        while part:
            one, other = self._tree(via, part), self._tree(via, required & ~part)
            if one is not None and other is not None and (best is None or one[0] + other[0] < best[0]):
                best = one[0] + other[0], one[1] | other[1]
            part = (part - 1) & others
        return best


@lru_cache(maxsize=4096)
def copies_between(conversion: tuple[tuple[int | None, ...], ...]) -> FormatCopies:
    """The copies under this matrix, computed once: networks repeat their blocks."""
    return FormatCopies(conversion)


def members(formats: int) -> Iterator[int]:
    """The formats of a set, ascending."""
    while formats:
        lowest = formats & -formats
        yield lowest.bit_length() - 1
        formats -= lowest
