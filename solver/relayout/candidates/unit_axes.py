"""Unit-axis insertion: a memory format has no position for axes of extent 1, but an operator's operand does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, order_of, place_after_neighbour

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
        natural.insert(place_after_neighbour([group[0].axis for group in natural], axis), (Atom(axis),))
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
    count = len(first) + len(rest)
    for order in permutations(rest):
        for places in combinations(range(count), len(first)):
            own, others = iter(first), iter(order)
            yield tuple([next(own if place in places else others) for place in range(count)])
