"""Unit-axis insertion: a memory format has no position for axes of extent 1, but an operator's operand does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, order_of

__all__ = ["unit_axis_insertions"]


def unit_axis_insertions(dims: Dims, rank: int) -> Iterator[Dims]:
    """The orders of all `rank` axes that keep the sequence `dims`, the likeliest first.

    The missing axes are unit axes: each is a dimension of its own and may go anywhere. First each follows its neighbour
    in the source, then come all other positions, at most a thousand.
    """
    present = {group[0].axis for group in dims}
    missing = [axis for axis in range(rank) if axis not in present]
    if not missing:
        yield dims
        return
    natural = list(dims)
    for axis in missing:
        before = [index for index, group in enumerate(natural) if group[0].axis < axis]
        nearest = max(before, key=lambda index: (natural[index][0].axis, index)) + 1 if before else 0
        natural.insert(nearest, (Atom(axis),))
    yield tuple(natural)
    # Unit axes leading, then trailing: the positions that broadcasting and matrices need.
    units = one_each(order_of(tuple(missing)))
    yield (*units, *dims)
    yield (*dims, *units)
    for count, merged in enumerate(_interleavings(dims, units)):
        if count == 1000:
            return
        yield merged


def _interleavings(first: Dims, rest: Dims) -> Iterator[Dims]:
    for order in permutations(rest):
        yield from _merge(first, order)


def _merge(a: Dims, b: Dims) -> Iterator[Dims]:
    if not a or not b:
        yield a + b
        return
    for tail in _merge(a[1:], b):
        yield (a[0], *tail)
    for tail in _merge(a, b[1:]):
        yield (b[0], *tail)
