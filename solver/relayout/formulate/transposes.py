"""The Transposes between the formats of a tensor, for backends that price each one.

A backend may state that one Transpose costs more than others that do the same in steps.

A tensor of n formats has n squared conversions. Nearly all are one Transpose of dimensions that it moves as wholes, or
two where the factors of an axis do not nest, and many of them are the same Transpose. They are found by the places of
the formats' factors, so that a pair of formats takes microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

from msgspec import Struct

from relayout.candidates.backend_conversions import Transposition
from relayout.layout.conversion import are_nested, split_at, tiling_of
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, atom_extent, normal_form, source_order

_MOST_GROUPS = 5
"""Groups of factors that a Transpose moves in one step, where it is to be made in several."""

_MOST_ORDERS = 24
"""Orders of the groups from which further steps are looked for."""

_Ends = frozenset[tuple[int, int]]
"""The ends of factors, each with its axis."""


class _Factors(Struct, frozen=True, eq=False):
    """A format as a sequence of factors: their numbers, the place of each number, their extents, and for each whether a
    Reshape can fuse it with the one before."""

    order: tuple[int, ...]
    places: dict[int, int]
    sizes: tuple[int, ...]
    fuses: tuple[bool, ...]


class Steps(NamedTuple):
    """The cost of a sequence of Transposes, and the orders of the groups between them."""

    cost: int
    orders: tuple[tuple[int, ...], ...]


class CutFormat(Struct, frozen=True, eq=False):
    """A format, with the ends of its factors, and with its factors when cut at more ends."""

    format: MemoryFormat
    ends: _Ends | None
    factors: dict[_Ends, _Factors]


class Transposes:
    """The Transposes between formats of tensors of these extents. `sizes`: the extents with one assumed for each that
    is not known."""

    def __init__(self, extents: tuple[Extent, ...], sizes: tuple[Extent, ...]) -> None:
        self._extents, self._sizes = extents, sizes
        # For the ends of two formats: those of both, or None where their factors do not nest.
        self._joint: dict[tuple[_Ends, _Ends], _Ends | None] = {}
        self._numbers: dict[Atom, int] = {}
        self._whole = self.cut(normal_form(source_order(len(extents)), extents))
        # For each format: the Transposes to whole axes in order, and from there.
        self._by_whole: dict[CutFormat, tuple[Transposition, Transposition]] = {}

    def cut(self, format_: MemoryFormat) -> CutFormat:
        """The format as `between` takes it."""
        return CutFormat(format_, tiling_of(format_, self._extents), {})

    def between(self, source: CutFormat, target: CutFormat) -> tuple[Transposition, ...]:
        """The Transposes between two different formats; none where the conversion may take other operators."""
        if source.ends is None or target.ends is None:
            return ()
        pair = source.ends, target.ends
        if pair not in self._joint:
            self._joint[pair] = source.ends | target.ends if are_nested(*pair) else None
        ends = self._joint[pair]
        if ends is not None:
            return (self._one(source, target, ends),)
        return self._by_whole_axes(source, source.ends)[0], self._by_whole_axes(target, target.ends)[1]

    def _by_whole_axes(self, each: CutFormat, ends: _Ends) -> tuple[Transposition, Transposition]:
        found = self._by_whole.get(each)
        if found is None:
            found = self._by_whole[each] = (self._one(each, self._whole, ends), self._one(self._whole, each, ends))
        return found

    def _one(self, source: CutFormat, target: CutFormat, ends: _Ends) -> Transposition:
        given = self._factors(source, ends)
        return _fused(given, [given.places[factor] for factor in self._factors(target, ends).order])

    def _factors(self, each: CutFormat, ends: _Ends) -> _Factors:
        found = each.factors.get(ends)
        if found is None:
            atoms = split_at(each.format, ends, self._extents)
            order = tuple([self._numbers.setdefault(atom, len(self._numbers)) for atom in atoms])
            sizes = tuple([int(atom_extent(atom, self._sizes) or 0) for atom in atoms])
            is_known = [False, *[isinstance(atom_extent(atom, self._extents), int) for atom in atoms]]
            places = {factor: place for place, factor in enumerate(order)}
            found = each.factors[ends] = _Factors(order, places, sizes, tuple(map(all, pairwise(is_known))))
        return found


def _fused(source: _Factors, perm: list[int]) -> Transposition:
    """The Transpose to the factors in this order, with those fused that it moves together."""
    starts: list[int] = []
    extents: list[int] = []
    sizes, fuses, following = source.sizes, source.fuses, -1
    for place in perm:
        if place == following and fuses[place]:
            extents[-1] *= sizes[place]
        else:
            starts.append(place)
            extents.append(sizes[place])
        following = place + 1
    in_place = sorted(range(len(starts)), key=starts.__getitem__)
    moved = [0] * len(starts)
    for index, group in enumerate(in_place):
        moved[group] = index
    return Transposition(tuple([extents[group] or 1 for group in in_place]), tuple(moved))


def cheapest_steps(turn: Transposition, known: Sequence[bool], price: Callable[[Transposition], int]) -> Steps:
    """The cheapest sequence of Transposes that does what `turn` does, or `turn` alone where it costs no more. A step
    exchanges two neighbouring sequences of groups, or leaves the innermost group, whole rows, where it is: operators
    have fast paths for these, and they make every order. `known`: whether the extent of each group is, as a Reshape
    fuses no others."""
    count, best = len(turn.perm), price(turn)
    if not 2 < count <= _MOST_GROUPS:
        return Steps(best, ())
    start, end = tuple(range(count)), turn.perm
    before: dict[tuple[int, ...], tuple[int, ...]] = {}
    least, queue, looked, step = {start: 0}, [(0, start)], 0, best
    while queue and looked < _MOST_ORDERS:
        cost, order = heappop(queue)
        # A further step is taken to cost no less than the cheapest so far.
        if order != start and cost + step >= best:
            break
        if cost > least[order]:
            continue
        looked += 1
        sizes = tuple([int(turn.shape[group] or 0) for group in order])
        fuses = (False, *[known[one] and known[other] for one, other in pairwise(order)])
        given = _Factors(order, {group: place for place, group in enumerate(order)}, sizes, fuses)
        for further in _steps_from(order):
            own = price(_fused(given, [given.places[group] for group in further]))
            step, whole = min(step, own), cost + own
            if whole < min(best, least.get(further, whole + 1)):
                least[further], before[further] = whole, order
                heappush(queue, (whole, further))
                best = whole if further == end else best
    found: list[tuple[int, ...]] = []
    while (end := before.get(end, start)) != start:
        found.append(end)
    return Steps(best, tuple(reversed(found)))


@cache
def _steps_from(order: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The orders that one step makes of an order."""
    exchanged = [
        (*order[:first], *order[middle:end], *order[first:middle], *order[end:])
        for first, middle, end in combinations(range(len(order) + 1), 3)
    ]
    in_rows = [(*others, order[-1]) for others in permutations(order[:-1])]
    return tuple(dict.fromkeys((*exchanged, *in_rows[1:])))
