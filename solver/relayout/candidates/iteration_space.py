"""Iteration spaces: the orders of a free node's axes as formats of its operands' tensors, and back. A memory format has
no position for axes of extent 1, but an operator's operand does: `unit_axis_insertions` gives the possible ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations, pairwise, permutations, takewhile

from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, cuts_nest, one_each
from relayout.layout.memory_format import (
    Atom,
    Extent,
    MemoryFormat,
    is_whole,
    normal_form,
    order_of,
    place_after_neighbour,
    source_order,
)
from relayout.layout.view import View
from relayout.ops import Axes, AxisTraits, Free

InsertionRule = Callable[[Axes, int], int | None]


class IndexingMaps:
    """The maps between an iteration space and its operands. Equal spaces share them and their cached results."""

    def __init__(
        self,
        extents: tuple[Extent, ...],
        traits: tuple[AxisTraits, ...],
        is_named: bool,
        insertion_rule: InsertionRule | None,
        operands: tuple[tuple[View, Axes], ...],
    ) -> None:
        # An axis has no position only if its extent is 1 in every operand: Pad, Expand or Resize may extend an axis of
        # 1.
        of_operands = [
            (axis, extent) for view, axes in operands for axis, extent in zip(axes, view.extents, strict=True)
        ]
        longest = list(extents)
        for axis, extent in of_operands:
            if longest[axis] == 1:
                longest[axis] = extent
        self.extents = extents = tuple(longest)
        # For each operand, the position of each axis of the space among its own; unit axes have none.
        self._operands = [
            (view, axes, {axis: i for i, axis in enumerate(axes) if view.extents[i] != 1}) for view, axes in operands
        ]
        # An axis whose extent differs between operands cannot have the same tiles in all of them.
        uneven = {axis for axis, own in of_operands if own not in (1, extents[axis]) or extents[axis] is None}
        each = list(enumerate(traits))
        self._tileable = frozenset(a for a, own in each if own.tileable) - uneven
        self._multiples = {a: own.tile_multiple for a, own in each if own.tile_multiple}
        self._permutable = frozenset(a for a, own in each if own.permutable_within) - uneven - self._tileable
        self._padded = frozenset(a for a, own in each if own.zero_preserving) - uneven
        # A `relayout` operator supports any tiles of its named axes that a backend requires, except for axes of extent
        # 1 in its result.
        different = {axis for axis, own in of_operands if own != extents[axis]}
        self._named = frozenset(range(len(extents)) if is_named else ()) - uneven - different
        self._companions = {a: own.companion for a, own in each if own.companion is not None}
        self._insertion_rule = insertion_rule
        self.grouped = cache(self._grouped)
        self.formats, self.extend = cache(self._formats), cache(self._extend)
        self.merged_order, self.guided_order = cache(self._merged_order), cache(self._guided_order)
        wide = {axis for axis, extent in enumerate(self.extents) if extent != 1}
        has = [wide & set(positions) for _, _, positions in self._operands]
        # Where no operand has all the axes, an order of the space is merged from those of several operands.
        is_partial = len(operands) > 1 and wide not in has
        self.partners = [
            [n for n in range(len(has)) if is_partial and n != index and has[n] - known]
            for index, known in enumerate(has)
        ]
        self._lacking = [wide - known for known in has]
        # The axes of which each operand has one tile of several: those along which it is one of parts that are alike.
        sizes = {axis: {own for a, own in of_operands if a == axis} for axis in self._multiples}
        alike = {axis for axis, own in sizes.items() if own == {self._multiples[axis], extents[axis]} and len(own) > 1}
        self._one_tile = [
            {axis for axis, place in positions.items() if axis in alike and view.extents[place] != extents[axis]}
            for view, _, positions in self._operands
        ]
        # For each operand that lacks axes, or tiles of one, those that have all.
        lacks = [bool(axes or tiles) for axes, tiles in zip(self._lacking, self._one_tile, strict=True)]
        self.guides = [[n for n, each in enumerate(lacks) if not each] if own else [] for own in lacks]
        # The memory in the source of each operand that lacks no axis, or only companions of its own.
        full = [n for n, own in enumerate(has) if all(self._companions.get(axis) in own for axis in wide - own)]
        self._memories = dict.fromkeys(map(self._memory_in_source, full))

    def nearest_whole(self, index: int, format_: MemoryFormat) -> tuple[MemoryFormat, ...]:
        """The orders of whole axes nearest to a tiled format of operand `index`: with each axis at the position of its
        first tile, and at that of its last."""
        order = self._in_space(index, format_)
        return self.whole_orders(order) if order is not None else ()

    def whole_orders(self, order: Sequence[Atom]) -> tuple[MemoryFormat, ...]:
        """The orders of whole axes nearest to a tiled order, in the same way; none for an order of whole axes."""
        if all(atom.is_whole for atom in order):
            return ()
        firsts = list(dict.fromkeys(atom.axis for atom in order))
        lasts = list(dict.fromkeys(atom.axis for atom in reversed(order)))[::-1]
        found = [self._completed([Atom(axis) for axis in axes]) for axes in (firsts, lasts)]
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def packs(self, dims: Dims) -> bool:
        """Whether a `relayout` operator supports these tiles of the named axes where a backend requires them."""
        return all(atom.is_whole or atom.axis in self._named for group in dims for atom in group)

    def _grouped(self, order: MemoryFormat) -> Dims | None:
        """The order as dimensions of the node: one for each factor of a tileable axis, one for an axis whose factors
        are only permuted. None where the node does not support such factors."""
        if all(atom.is_whole for atom in order):
            return one_each(order)
        positions: dict[int, list[int]] = {}
        for index, atom in enumerate(order):
            if not atom.is_whole and not self._takes(atom):
                return None
            positions.setdefault(atom.axis, []).append(index)
        # One dimension for an axis whose factors are only permuted; each factor of the others is a dimension.
        joined = {a for a, own in positions.items() if a in self._permutable and own[-1] - own[0] == len(own) - 1}
        groups: list[MemoryFormat] = []
        for index, atom in enumerate(order):
            axis = atom.axis
            if axis in joined and index > positions[axis][0]:
                groups[-1] = (*groups[-1], atom)
                continue
            alone = axis in joined or len(positions[axis]) == 1
            takes_tiles = axis in self._tileable or axis in self._named or self._divides_multiple(atom)
            if not alone and not takes_tiles:
                return None
            groups.append((atom,))
        tiled = {axis for axis in self._multiples if axis not in joined}
        return tuple(groups) if self._are_tiled_alike(order, tiled) else None

    def _are_tiled_alike(self, order: MemoryFormat, tiled: set[int]) -> bool:
        """Whether each of these axes has the same tiles as its companion, if that is tiled too."""
        for axis, partner in self._companions.items():
            if axis in tiled and partner in tiled:
                tiles = [[atom[1:] for atom in order if atom.axis == a] for a in (axis, partner)]
                if all(tiles) and len(tiles[0]) > 1 and tiles[0] != tiles[1]:
                    return False
        return True

    def _divides_multiple(self, atom: Atom) -> bool:
        multiple = self._multiples.get(atom.axis)
        return multiple is not None and multiple % atom.inner == 0 and (not atom.outer or multiple % atom.outer == 0)

    def _takes(self, atom: Atom) -> bool:
        if atom.axis in self._named:
            return True
        extent = self.extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent and atom.axis not in self._padded:
            return False
        return atom.axis in self._tileable or atom.axis in self._permutable or self._divides_multiple(atom)

    def _formats(self, order: MemoryFormat) -> tuple[MemoryFormat, ...] | None:
        """The format of each operand's tensor when the space is in `order`; None where the factors do not nest."""
        found: list[MemoryFormat] = []
        for view, _, positions in self._operands:
            own = [Atom(positions[axis], inner, outer) for axis, inner, outer in order if axis in positions]
            format_ = view.to_base(tuple(own))
            if format_ is None:
                return None
            found.append(format_)
        return tuple(found)

    def common_order(self, index: int, format_: MemoryFormat, other: int) -> MemoryFormat | None:
        """The order in operand `index`, with this format, of the axes that operand `other` has too."""
        order = self._in_space(index, format_)
        if order is None:
            return None
        positions = self._operands[other][2]
        return normal_form(tuple([atom for atom in order if atom.axis in positions]), self.extents)

    def is_guide(self, index: int, format_: MemoryFormat, other: int) -> bool:
        """Whether this format of operand `index` tiles an axis that operand `other` lacks, or has parts of which that
        one is one innermost."""
        if self._operands[index][0].is_plain and is_whole(format_):
            return False
        order, lacking = self._in_space(index, format_) or [], self._lacking[other]
        is_interleaved = bool(order) and order[-1].axis not in lacking and self._lacks(other, order[-1])
        return is_interleaved or any(atom.axis in lacking and not atom.is_whole for atom in order)

    def _lacks(self, index: int, atom: Atom) -> bool:
        """Whether operand `index` lacks this atom of the space: its axis, or all tiles of that but one."""
        is_beyond = atom.axis in self._one_tile[index] and atom.inner >= self._multiples[atom.axis]
        return is_beyond or atom.axis in self._lacking[index]

    def _guided_order(self, index: int, format_: MemoryFormat, other: int, guide: MemoryFormat) -> MemoryFormat | None:
        """The order in which operand `index` has its format, and each tile that it lacks follows the same atom as in
        the other operand's format. None where the tiles of the two do not nest, or one of them is padded."""
        order, leading = self._in_space(index, format_), self._in_space(other, guide)
        if order is None or leading is None:
            return None
        ends = {axis: self._multiples[axis] for axis in self._one_tile[index]}
        order = [Atom(axis, inner, outer or ends.get(axis, 0)) for axis, inner, outer in order]
        if not cuts_nest(tuple(order), tuple(leading)):
            return None
        order, leading = _split_alike(order, leading), _split_alike(leading, order)
        if {*order} != {atom for atom in leading if not self._lacks(index, atom)}:
            return None
        after = -1
        for atom in leading:
            if self._lacks(index, atom):
                order.insert(after + 1, atom)
                after += 1
            else:
                after = order.index(atom)
        return self._completed(list(normal_form(tuple(order), self.extents)))

    def _merged_order(
        self, index: int, format_: MemoryFormat, other: int, other_format: MemoryFormat
    ) -> MemoryFormat | None:
        """The order of the space in which both operands have these formats, whose common axes are ordered alike."""
        order, further = self._in_space(index, format_), self._in_space(other, other_format)
        if order is None or further is None:
            return None
        known = {atom.axis for atom in order}
        common = {atom.axis for atom in further} & known
        if [a for a in order if a.axis in common] != [a for a in further if a.axis in common]:
            # Only in one of the two may another axis stand between the tiles of a common one.
            if not cuts_nest(tuple(order), tuple(further)):
                return None
            order, further = _split_alike(order, further), _split_alike(further, order)
            if [a for a in order if a.axis in common] != [a for a in further if a.axis in common]:
                return None
        least = 0
        for number, atom in enumerate(further):
            if atom.axis in common:
                least = order.index(atom) + 1
                continue
            following = next((a for a in further[number:] if a.axis in common), None)
            most = order.index(following) if following is not None else len(order)
            least = min(max(self._insertion_position(order, atom.axis), least), most)
            order.insert(least, atom)
            least += 1
        return self._completed(order)

    def _extend(self, index: int, format_: MemoryFormat) -> tuple[MemoryFormat, ...]:
        """Orders of the space in which operand `index` has `format_`: missing axes follow their source neighbours."""
        order = self._in_space(index, format_)
        if order is None:
            return ()
        found = [self._completed(list(order))]
        if self._insertion_rule is None and self._lacking[index]:
            missing = set(range(len(self.extents))) - {atom.axis for atom in order}
            if not self._companions:
                # The innermost axes may also stay innermost, away from their neighbours.
                innermost = list(takewhile(missing.__contains__, reversed(range(len(self.extents)))))
                found.append(self._completed([*order, *map(Atom, reversed(innermost))]))
            found += [self._led(order, memory) for memory in self._memories]
        if self._companions and self._multiples:
            found.append(self._completed(list(order), tile_by_tile=True))
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def _led(self, order: Sequence[Atom], memory: MemoryFormat) -> MemoryFormat | None:
        """The order in which each axis that it lacks precedes the same atom as in the memory of another operand. It
        then lies together with the axes that this operand merges with it. None where the tiles of the two do not nest,
        or one of them is padded."""
        if not cuts_nest(tuple(order), memory):
            return None
        found, leading = _split_alike(order, memory), _split_alike(memory, order)
        present = {atom.axis for atom in order}
        if {*found} != {atom for atom in leading if atom.axis in present}:
            return None
        place = len(found)
        for atom in reversed(leading):
            if atom.axis in present:
                place = found.index(atom)
            else:
                found.insert(place, atom)
        return self._completed(list(normal_form(tuple(found), self.extents)))

    def _memory_in_source(self, index: int) -> MemoryFormat:
        """The order of the space's axes in the operand's tensor in the source."""
        extents = self._operands[index][0].base_extents
        return tuple(self._in_space(index, normal_form(source_order(len(extents)), extents)) or ())

    def _in_space(self, index: int, format_: MemoryFormat) -> list[Atom] | None:
        """The operand's atoms as atoms of the space's axes."""
        view, axes, _ = self._operands[index]
        own = view.from_base(format_)
        return [Atom(axes[a.axis], a.inner, a.outer) for a in own] if own is not None else None

    def _completed(self, order: list[Atom], *, tile_by_tile: bool = False) -> MemoryFormat | None:
        """The order with its missing axes inserted; None where the node does not support its factors. `tile_by_tile`:
        the companion of an axis with permuted factors gets the same tiles, though it could stay whole."""
        if self.grouped(tuple(order)) is None:
            return None
        present = {a.axis for a in order}
        for axis in range(len(self.extents)):
            if axis in present or self.extents[axis] == 1:
                continue
            present.add(axis)
            partner = self._companions.get(axis)
            tiles = [p for p, atom in enumerate(order) if atom.axis == partner and not atom.is_whole]
            is_one_dimension = tiles == list(range(min(tiles, default=0), max(tiles, default=0) + 1))
            is_permuted = partner in self._permutable and is_one_dimension
            if partner is not None and len(tiles) > 1 and (tile_by_tile or not is_permuted):
                for position in reversed(tiles):
                    tile = Atom(axis, order[position].inner, order[position].outer)
                    order.insert(position + (axis > partner), tile)
                continue
            order.insert(self._insertion_position(order, axis), Atom(axis))
        return normal_form(tuple(order), self.extents)

    def _insertion_position(self, order: Sequence[Atom], axis: int) -> int:
        """The position of a further axis: by the operator's insertion rule; else next to its companion, the lower
        number first; else after its neighbour in the source."""
        present = tuple([a.axis for a in order])
        wanted = self._insertion_rule(present, axis) if self._insertion_rule is not None else None
        if wanted is not None:
            return wanted
        companion = self._companions.get(axis)
        companions = [p for p, atom in enumerate(order) if atom.axis == companion]
        if companion is not None and companions:
            return companions[-1] + 1 if axis > companion else companions[0]
        return place_after_neighbour(present, axis)


def indexing_maps(rule: Free, operands: tuple[tuple[Operand, Axes], ...]) -> IndexingMaps:
    """The maps between a space of `rule` and its operands. They depend on the arguments of `_maps` alone, so that equal
    spaces share them and their cached results, those of other graphs too."""
    spaces = tuple([(operand.view, axes) for operand, axes in operands])
    return _maps(rule.extents, rule.traits, bool(rule.axis_names), rule.insertion_rule, spaces)


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


def _split_alike(order: Sequence[Atom], guide: Sequence[Atom]) -> list[Atom]:
    """The order with its atoms split at the boundaries of the guide's atoms; these splits nest."""
    found: list[Atom] = []
    for axis, inner, outer in order:
        ends = {end for atom in guide if atom.axis == axis for end in (atom.inner, atom.outer)}
        bounds = [inner, *sorted(end for end in ends if inner < end and (not outer or end < outer)), outer]
        found += [Atom(axis, low, high) for low, high in reversed(list(pairwise(bounds)))]
    return found


_maps = lru_cache(maxsize=1024)(IndexingMaps)
