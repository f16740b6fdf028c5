"""Which memory formats are worth considering: those that somebody asks for, carried along the free operators.

Each free node has a space of axes; an order of the space gives each of its operands a format, and an operand's format
gives the orders of the space that extend it. Formats and orders are spread both ways to a fixpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any, Generic, TypeVar

from relayout.memory_format import Atom, Extent, Order, normal_form, order_of, source_order
from relayout.paths import Dims, one_each
from relayout.rules import Axes, Free
from relayout.views import Operand, Tensor

__all__ = ["Geometry", "Space", "Spaces", "placements"]

FORMATS_PER_TENSOR = 24
"""A tensor of rank 4 has no more orders; beyond this the search goes on without the rarer ones, and says so."""

Answer = TypeVar("Answer")


class Geometry:
    """How the axes of a space lie in its operands. Nodes of one kind and shape share it, so each step is taken once."""

    __slots__ = (
        "_apart",
        "_beside",
        "_extended",
        "_formats",
        "_insert",
        "_merged",
        "_mixed",
        "_named",
        "_operands",
        "_padded",
        "_steps",
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
        self._apart = frozenset(rule.splits) - uneven
        self._steps = rule.steps
        self._mixed = (frozenset(rule.mixes) | frozenset(rule.scrambles)) - uneven - self._apart
        self._padded = frozenset(rule.zeros) - uneven
        # Written as a function of ours, an operator with named axes takes them in whatever pieces a backend asks for.
        self._named = frozenset(range(len(extents)) if rule.letters else ()) - uneven
        self._beside = rule.beside
        self._insert = rule.insert
        self._formats: dict[Order, tuple[Order, ...] | None] = {}
        self._extended: dict[tuple[int, Order], Order | None] = {}
        self._merged: dict[tuple[int, Order, int, Order], Order | None] = {}
        # Where no operand has all the axes, an order of the space is made of what several of them have.
        wide = {axis for axis, extent in enumerate(self.extents) if extent != 1}
        self.is_partial = len(operands) > 1 and not any(wide <= set(places) for _, _, places in self._operands)

    def formats(self, order: Order) -> tuple[Order, ...] | None:
        """The format of each operand's tensor when the space is in `order`; None where the factors do not nest."""
        if order not in self._formats:
            self._formats[order] = self._all_formats(order)
        return self._formats[order]

    def extend(self, place: int, format_: Order) -> Order | None:
        """An order of the space in which operand `place` has `format_`: missing axes follow their source neighbours."""
        key = (place, format_)
        if key not in self._extended:
            self._extended[key] = self._extension(place, format_)
        return self._extended[key]

    def grouped(self, order: Order) -> Dims | None:
        """The order as dimensions of the node: a factor each where factors may stand apart, one for an axis whose
        factors only change places; None where the node does not take such factors."""
        groups: list[Order] = []
        placed: set[int] = set()
        for place, atom in enumerate(order):
            axis = atom.axis
            if not atom.is_whole and not self._takes(atom):
                return None
            follows = place > 0 and order[place - 1].axis == axis
            if axis in self._mixed and follows:
                groups[-1] = (*groups[-1], atom)
                continue
            if axis in placed and axis not in self._apart and axis not in self._named:
                before = [other for other in order[:place] if other.axis == axis]
                # What is left of the axis comes first, then its factors from the largest on.
                if not self._in_steps(atom) or not atom.outer or any(other.inner < atom.outer for other in before):
                    return None
            groups.append((atom,))
            placed.add(axis)
        if any(len(group) > 1 and sum(g[0].axis == group[0].axis for g in groups) > 1 for group in groups):
            return None
        return tuple(groups)

    def _in_steps(self, atom: Atom) -> bool:
        step = self._steps.get(atom.axis)
        return step is not None and step % atom.inner == 0 and (not atom.outer or step % atom.outer == 0)

    def _takes(self, atom: Atom) -> bool:
        if atom.axis in self._named:
            return True
        extent = self.extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent and atom.axis not in self._padded:
            return False
        return atom.axis in self._apart or atom.axis in self._mixed or self._in_steps(atom)

    def _all_formats(self, order: Order) -> tuple[Order, ...] | None:
        found: list[Order] = []
        for view, _, places in self._operands:
            own = [Atom(places[axis], inner, outer) for axis, inner, outer in order if axis in places]
            format_ = view.to_root(tuple(own))
            if format_ is None:
                return None
            found.append(format_)
        return tuple(found)

    def merge(self, place: int, format_: Order, other: int, other_format: Order) -> Order | None:
        """An order of the space in which both operands have these formats; None where there is none."""
        key = (place, format_, other, other_format)
        if key not in self._merged:
            self._merged[key] = self._union(place, format_, other, other_format)
        return self._merged[key]

    def _union(self, place: int, format_: Order, other: int, other_format: Order) -> Order | None:
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

    def _extension(self, place: int, format_: Order) -> Order | None:
        order = self._placed(place, format_)
        return self._completed(order) if order is not None else None

    def _placed(self, place: int, format_: Order) -> list[Atom] | None:
        """The operand's atoms in the space's axes."""
        view, axes, _ = self._operands[place]
        own = view.from_root(format_)
        return [Atom(axes[a.axis], a.inner, a.outer) for a in own] if own is not None else None

    def _completed(self, order: list[Atom]) -> Order | None:
        """The order with the axes that it lacks; None where the node does not take its factors."""
        if self.grouped(tuple(order)) is None:
            return None
        present = {a.axis for a in order}
        for axis in range(len(self.extents)):
            if axis in present or self.extents[axis] == 1:
                continue
            present.add(axis)
            partner = self._beside.get(axis)
            cut = [p for p, atom in enumerate(order) if atom.axis == partner and not atom.is_whole]
            if partner is not None and len(cut) > 1 and cut != list(range(cut[0], cut[0] + len(cut))):
                for position in reversed(cut):
                    order.insert(position + 1, Atom(axis, order[position].inner, order[position].outer))
                continue
            order.insert(self._place_for(order, axis), Atom(axis))
        return normal_form(tuple(order), self.extents)

    def _place_for(self, order: Sequence[Atom], axis: int) -> int:
        """Where a further axis goes: where the operator wants it, else after its neighbour in the source."""
        asked = self._insert(tuple([a.axis for a in order]), axis) if self._insert is not None else None
        if asked is not None:
            return asked
        before = [p for p, atom in enumerate(order) if atom.axis == self._beside.get(axis)] or [
            p for p, atom in enumerate(order) if atom.axis < axis
        ]
        return max(before, key=lambda position: (order[position].axis, position)) + 1 if before else 0


class Space(Generic[Answer]):
    """One free node's axes, the operands on them (constants excepted), and the orders under consideration.

    `accepts` says how the node runs in an order, None where it does not; `orders` keeps what it said, and the format
    that the order gives each operand.
    """

    __slots__ = ("accepts", "geometry", "operands", "orders")

    def __init__(
        self,
        geometry: Geometry,
        operands: tuple[tuple[Operand, Axes], ...],
        accepts: Callable[[Order], Answer | None],
    ) -> None:
        self.geometry = geometry
        self.operands = operands
        self.accepts = accepts
        self.orders: dict[Order, tuple[Answer, tuple[Order, ...]]] = {}


class Spaces:
    """All spaces, and every tensor's formats under consideration, in the order in which they were found."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.formats: dict[Tensor, dict[Order, None]] = {t: {} for t in tensors if not t.constant}
        self.capped: set[Tensor] = set()
        # For each tensor the spaces that it is in, with its place among their operands.
        self._spaces: dict[Tensor, list[tuple[Space[Any], int]]] = {}
        self._geometries: dict[object, Geometry] = {}
        self._listeners: dict[Tensor, list[Callable[[Order], None]]] = {}
        self._queue: deque[tuple[Tensor, Order]] = deque()
        for tensor in self.formats:
            self.add_format(tensor, normal_form(source_order(len(tensor.extents)), tensor.extents))

    def geometry(self, rule: Free, operands: tuple[tuple[Operand, Axes], ...]) -> Geometry:
        """The geometry of a space of `rule`, shared by all spaces of the same."""
        views = tuple([(o.view.axes, o.view.extents, o.view.root_extents, axes) for o, axes in operands])
        steps, beside = tuple(rule.steps.items()), tuple(rule.beside.items())
        cuts = (rule.splits, rule.mixes, rule.scrambles, steps, rule.zeros, bool(rule.letters))
        key = (rule.extents, *cuts, beside, rule.insert, views)
        found = self._geometries.get(key)
        if found is None:
            found = self._geometries[key] = Geometry(rule, operands)
        return found

    def add_space(self, space: Space[Any]) -> None:
        """Enter a space before `spread`; the order of the source is its first candidate."""
        for place, (operand, _) in enumerate(space.operands):
            self._spaces.setdefault(operand.tensor, []).append((space, place))
        extents = space.geometry.extents
        self.add_order(space, normal_form(source_order(len(extents)), extents))

    def listen(self, tensor: Tensor, hear: Callable[[Order], None]) -> None:
        """Call `hear` with every format of the tensor that comes under consideration, from `spread` on."""
        self._listeners.setdefault(tensor, []).append(hear)

    def add_format(self, tensor: Tensor, format_: Order) -> bool:
        """Consider this format of the tensor; False where the tensor has too many already."""
        known = self.formats[tensor]
        if format_ in known:
            return True
        if len(known) >= FORMATS_PER_TENSOR:
            self.capped.add(tensor)
            return False
        known[format_] = None
        self._queue.append((tensor, format_))
        return True

    def add_order(self, space: Space[Answer], order: Order) -> None:
        """Consider this order of the space, with the formats that it gives its operands."""
        if order in space.orders:
            return
        answer = space.accepts(order)
        formats = space.geometry.formats(order) if answer is not None else None
        if answer is None or formats is None:
            return
        if all(self.add_format(operand.tensor, f) for (operand, _), f in zip(space.operands, formats, strict=True)):
            space.orders[order] = (answer, formats)

    def spread(self) -> None:
        """Carry every format through every space that touches it until nothing new appears."""
        while self._queue:
            tensor, format_ = self._queue.popleft()
            for space, place in self._spaces.get(tensor, ()):
                for order in self._reached(space, place, format_):
                    self.add_order(space, order)
            for hear in self._listeners.get(tensor, ()):
                hear(format_)

    def _reached(self, space: Space[Any], place: int, format_: Order) -> Iterator[Order]:
        """The orders of the space in which its operand `place` has this format."""
        geometry = space.geometry
        alone = geometry.extend(place, format_)
        if alone is not None:
            yield alone
        if not geometry.is_partial:
            return
        for other, (operand, _) in enumerate(space.operands):
            for known in tuple(self.formats[operand.tensor]) if other != place else ():
                both = geometry.merge(place, format_, other, known)
                if both is not None:
                    yield both


def placements(dims: Dims, rank: int) -> Iterator[Dims]:
    """Full arrangements of `rank` axes that have `dims` in their sequence, likeliest first.

    The axes that are missing are unit axes: they go anywhere, each a dimension of its own. First each after its
    neighbour in the source, then everywhere, up to a thousand ways.
    """
    placed = {group[0].axis for group in dims}
    missing = [axis for axis in range(rank) if axis not in placed]
    if not missing:
        yield dims
        return
    natural = list(dims)
    for axis in missing:
        before = [place for place, group in enumerate(natural) if group[0].axis < axis]
        nearest = max(before, key=lambda place: (natural[place][0].axis, place)) + 1 if before else 0
        natural.insert(nearest, (Atom(axis),))
    yield tuple(natural)
    # Unit axes leading, then trailing: where broadcasting and matrices want them.
    units = one_each(order_of(tuple(missing)))
    yield (*units, *dims)
    yield (*dims, *units)
    for count, slots in enumerate(_interleavings(dims, units)):
        if count == 1000:
            return
        yield slots


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
