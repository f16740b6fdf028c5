"""How the axes that a free node works on lie in its operands: its orders as formats of their tensors, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, cuts_nest, one_each
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form
from relayout.ops import Axes, Free

__all__ = ["IndexingMaps", "IndexingMapsCache"]


class IndexingMaps:
    """How the axes of a space lie in its operands. Nodes of one kind and shape share it, so each step is taken once."""

    __slots__ = (
        "_companions",
        "_extended",
        "_formats",
        "_insertion_rule",
        "_lacking",
        "_merged",
        "_multiples",
        "_named",
        "_operands",
        "_padded",
        "_permutable",
        "_tileable",
        "extents",
        "is_partial",
    )

    def __init__(self, rule: Free, operands: tuple[tuple[Operand, Axes], ...]) -> None:
        # An axis has no place only if it has extent 1 in every operand (Pad, Expand or Resize may make 1 into more).
        extents = list(rule.extents)
        for operand, axes in operands:
            for place, axis in enumerate(axes):
                own = operand.view.extents[place]
                if extents[axis] == 1 and own != 1:
                    extents[axis] = own
        self.extents: tuple[Extent, ...] = tuple(extents)
        # For each operand, where each axis of the space stands among its own; unit axes have no place.
        self._operands = [
            (operand.view, axes, {axis: i for i, axis in enumerate(axes) if operand.view.extents[i] != 1})
            for operand, axes in operands
        ]
        # An axis that has other extents in some operand cannot be cut alike in all of them.
        uneven = {
            axis
            for operand, axes in operands
            for place, axis in enumerate(axes)
            if operand.view.extents[place] not in (1, extents[axis]) or extents[axis] is None
        }
        traits = list(enumerate(rule.traits))
        self._tileable = frozenset(a for a, own in traits if own.tileable) - uneven
        self._multiples = {a: own.tile_multiple for a, own in traits if own.tile_multiple}
        self._permutable = frozenset(a for a, own in traits if own.permutable_within) - uneven - self._tileable
        self._padded = frozenset(a for a, own in traits if own.zero_preserving) - uneven
        # Written as a function of ours, an operator with named axes takes them in whatever pieces a backend asks for,
        # but those that are of extent 1 in its result: these have no pieces there.
        different = {
            axis
            for operand, axes in operands
            for place, axis in enumerate(axes)
            if operand.view.extents[place] != extents[axis]
        }
        self._named = frozenset(range(len(extents)) if rule.letters else ()) - uneven - different
        self._companions = {a: own.companion for a, own in traits if own.companion is not None}
        self._insertion_rule = rule.insertion_rule
        self._formats: dict[MemoryFormat, tuple[MemoryFormat, ...] | None] = {}
        self._extended: dict[tuple[int, MemoryFormat], tuple[MemoryFormat, ...]] = {}
        self._merged: dict[tuple[int, MemoryFormat, int, MemoryFormat], tuple[MemoryFormat, ...]] = {}
        # Where no operand has all the axes, an order of the space is made of what several of them have.
        wide = {axis for axis, extent in enumerate(self.extents) if extent != 1}
        self.is_partial = len(operands) > 1 and not any(wide <= set(places) for _, _, places in self._operands)
        self._lacking = [frozenset(wide - set(places)) for _, _, places in self._operands]

    def formats(self, order: MemoryFormat) -> tuple[MemoryFormat, ...] | None:
        """The format of each operand's tensor when the space is in `order`; None where the factors do not nest."""
        if order not in self._formats:
            self._formats[order] = self._all_formats(order)
        return self._formats[order]

    def extend(self, place: int, format_: MemoryFormat) -> tuple[MemoryFormat, ...]:
        """Orders of the space in which operand `place` has `format_`: missing axes follow their source neighbours."""
        key = (place, format_)
        if key not in self._extended:
            self._extended[key] = self._extension(place, format_)
        return self._extended[key]

    def nearest_whole(self, place: int, format_: MemoryFormat) -> tuple[MemoryFormat, ...]:
        """Orders of whole axes near a format of operand `place` in which they are in pieces: each axis where the first
        of its pieces stands, and each where the last does."""
        order = self._placed(place, format_)
        if order is None or all(atom.is_whole for atom in order):
            return ()
        firsts = list(dict.fromkeys(atom.axis for atom in order))
        lasts = list(dict.fromkeys(atom.axis for atom in reversed(order)))[::-1]
        found = [self._completed([Atom(axis) for axis in axes]) for axes in (firsts, lasts)]
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def grouped(self, order: MemoryFormat) -> Dims | None:
        """The order as dimensions of the node: a factor each where factors may stand apart, one for an axis whose
        factors only change places; None where the node does not take such factors."""
        if all(atom.is_whole for atom in order):
            return one_each(order)
        places: dict[int, list[int]] = {}
        for place, atom in enumerate(order):
            if not atom.is_whole and not self._takes(atom):
                return None
            places.setdefault(atom.axis, []).append(place)
        # One dimension for those whose factors only change places; all factors of the others stand apart.
        joined = {a for a, own in places.items() if a in self._permutable and own[-1] - own[0] == len(own) - 1}
        groups: list[MemoryFormat] = []
        for place, atom in enumerate(order):
            axis = atom.axis
            if axis in joined and place > places[axis][0]:
                groups[-1] = (*groups[-1], atom)
                continue
            alone = axis in joined or len(places[axis]) == 1
            if not alone and axis not in self._tileable and axis not in self._named and not self._in_steps(atom):
                return None
            groups.append((atom,))
        loose = {axis for axis in self._multiples if axis not in joined}
        return tuple(groups) if self._are_cut_alike(order, loose) else None

    def _are_cut_alike(self, order: MemoryFormat, loose: set[int]) -> bool:
        """Whether each of these axes and the one beside it, if that is one of them, are in the same pieces."""
        for axis, partner in self._companions.items():
            if axis in loose and partner in loose:
                pieces = [[atom[1:] for atom in order if atom.axis == a] for a in (axis, partner)]
                if all(pieces) and len(pieces[0]) > 1 and pieces[0] != pieces[1]:
                    return False
        return True

    def _in_steps(self, atom: Atom) -> bool:
        step = self._multiples.get(atom.axis)
        return step is not None and step % atom.inner == 0 and (not atom.outer or step % atom.outer == 0)

    def _takes(self, atom: Atom) -> bool:
        if atom.axis in self._named:
            return True
        extent = self.extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent and atom.axis not in self._padded:
            return False
        return atom.axis in self._tileable or atom.axis in self._permutable or self._in_steps(atom)

    def _all_formats(self, order: MemoryFormat) -> tuple[MemoryFormat, ...] | None:
        found: list[MemoryFormat] = []
        for view, _, places in self._operands:
            own = [Atom(places[axis], inner, outer) for axis, inner, outer in order if axis in places]
            format_ = view.to_base(tuple(own))
            if format_ is None:
                return None
            found.append(format_)
        return tuple(found)

    def lacks_any(self, place: int, other: int) -> bool:
        """Whether one of two operands has axes that the other lacks."""
        return self._lacking[place] != self._lacking[other]

    def reached(
        self, place: int, format_: MemoryFormat, other: int, other_format: MemoryFormat
    ) -> tuple[MemoryFormat, ...]:
        """Orders of the space that two operands lead to by these formats: that in which both have them, and those in
        which one has its own and what it lacks lies as in the other's, piece by piece."""
        key = (place, format_, other, other_format)
        if key not in self._merged:
            found = [
                self._union(place, format_, other, other_format) if self.is_partial else None,
                self._following(place, format_, other, other_format),
                self._following(other, other_format, place, format_),
            ]
            self._merged[key] = tuple(dict.fromkeys(order for order in found if order is not None))
        return self._merged[key]

    def _following(
        self, place: int, format_: MemoryFormat, other: int, other_format: MemoryFormat
    ) -> MemoryFormat | None:
        """The order in which operand `place` has its format, and each piece of the axes that it lacks follows what it
        follows in the other's; None where these are in one piece, so that they go by their neighbours in the source, or
        where the two cut an axis into pieces that do not nest."""
        lacking = self._lacking[place] - self._lacking[other]
        if not lacking or all(atom.is_whole for atom in other_format):
            return None
        order, guide = self._placed(place, format_), self._placed(other, other_format)
        if order is None or guide is None or all(a.is_whole for a in guide if a.axis in lacking):
            return None
        if not cuts_nest(tuple(order), tuple(guide)):
            return None
        order, guide = _cut_alike(order, guide), _cut_alike(guide, order)
        after = -1
        for atom in guide:
            if atom.axis in lacking:
                order.insert(after + 1, atom)
                after += 1
            elif atom in order:
                after = order.index(atom)
            else:
                return None
        return self._completed(list(normal_form(tuple(order), self.extents)))

    def _union(self, place: int, format_: MemoryFormat, other: int, other_format: MemoryFormat) -> MemoryFormat | None:
        order, further = self._placed(place, format_), self._placed(other, other_format)
        if order is None or further is None:
            return None
        known = {atom.axis for atom in order}
        common = {atom.axis for atom in further} & known
        if [a for a in order if a.axis in common] != [a for a in further if a.axis in common]:
            return None
        least = 0
        for number, atom in enumerate(further):
            if atom.axis in common:
                least = order.index(atom) + 1
                continue
            following = next((a for a in further[number:] if a.axis in common), None)
            most = order.index(following) if following is not None else len(order)
            least = min(max(self._place_for(order, atom.axis), least), most)
            order.insert(least, atom)
            least += 1
        return self._completed(order)

    def _extension(self, place: int, format_: MemoryFormat) -> tuple[MemoryFormat, ...]:
        order = self._placed(place, format_)
        if order is None:
            return ()
        found = [self._completed(list(order))]
        if self._companions and self._multiples:
            found.append(self._completed(order, piece_by_piece=True))
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def _placed(self, place: int, format_: MemoryFormat) -> list[Atom] | None:
        """The operand's atoms in the space's axes."""
        view, axes, _ = self._operands[place]
        own = view.from_base(format_)
        return [Atom(axes[a.axis], a.inner, a.outer) for a in own] if own is not None else None

    def _completed(self, order: list[Atom], *, piece_by_piece: bool = False) -> MemoryFormat | None:
        """The order with the axes that it lacks; None where the node does not take its factors. `piece_by_piece`: what
        stands beside an axis whose pieces have changed places does as they did, though it might stay whole."""
        if self.grouped(tuple(order)) is None:
            return None
        present = {a.axis for a in order}
        for axis in range(len(self.extents)):
            if axis in present or self.extents[axis] == 1:
                continue
            present.add(axis)
            partner = self._companions.get(axis)
            cut = [p for p, atom in enumerate(order) if atom.axis == partner and not atom.is_whole]
            is_one_dimension = cut == list(range(min(cut, default=0), max(cut, default=0) + 1))
            is_permuted = partner in self._permutable and is_one_dimension
            if partner is not None and len(cut) > 1 and (piece_by_piece or not is_permuted):
                for position in reversed(cut):
                    order.insert(position + 1, Atom(axis, order[position].inner, order[position].outer))
                continue
            order.insert(self._place_for(order, axis), Atom(axis))
        return normal_form(tuple(order), self.extents)

    def _place_for(self, order: Sequence[Atom], axis: int) -> int:
        """Where a further axis goes: where the operator wants it, else after its neighbour in the source."""
        present = tuple([a.axis for a in order])
        asked = self._insertion_rule(present, axis) if self._insertion_rule is not None else None
        if asked is not None:
            return asked
        before = [p for p, atom in enumerate(order) if atom.axis == self._companions.get(axis)] or [
            p for p, atom in enumerate(order) if atom.axis < axis
        ]
        return max(before, key=lambda position: (order[position].axis, position)) + 1 if before else 0


class IndexingMapsCache:
    """The indexing maps of every iteration space so far; equal spaces share them."""

    def __init__(self) -> None:
        self._found: dict[object, IndexingMaps] = {}

    def of(self, rule: Free, operands: tuple[tuple[Operand, Axes], ...]) -> IndexingMaps:
        """The maps between a space of `rule` and its operands."""
        views = tuple([(o.view.axes, o.view.extents, o.view.base_extents, axes) for o, axes in operands])
        key = (rule.extents, rule.traits, bool(rule.letters), rule.insertion_rule, views)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = IndexingMaps(rule, operands)
        return found


def _cut_alike(order: Sequence[Atom], guide: Sequence[Atom]) -> list[Atom]:
    """The order with its atoms cut where those of the guide begin and end; all these cuts nest."""
    found: list[Atom] = []
    for axis, inner, outer in order:
        ends = {end for atom in guide if atom.axis == axis for end in (atom.inner, atom.outer)}
        bounds = [inner, *sorted(end for end in ends if inner < end and (not outer or end < outer)), outer]
        found += [Atom(axis, low, high) for low, high in reversed(list(pairwise(bounds)))]
    return found
