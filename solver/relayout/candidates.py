"""Which memory formats are worth considering: those that somebody asks for, carried along the free operators.

Each free node has a space of axes; an order of the space gives each of its operands a format, and an operand's format
gives the orders of the space that extend it. Formats and orders are spread both ways to a fixpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import Any, Generic, TypeVar

from relayout.memory_format import Atom, Extent, Order, normal_form, source_order
from relayout.rules import Axes, Free
from relayout.views import Operand, Tensor

__all__ = ["Space", "Spaces", "placements"]

FORMATS_PER_TENSOR = 24
"""A tensor of rank 4 has no more orders; beyond this the search goes on without the rarer ones, and says so."""

Answer = TypeVar("Answer")


class Space(Generic[Answer]):
    """One free node's axes, the operands on them (constants excepted), and the orders under consideration.

    `accepts` says how the node runs in an order, None where it does not; `orders` keeps what it said, and the format
    that the order gives each operand.
    """

    __slots__ = ("_places", "accepts", "extents", "operands", "orders", "rule")

    def __init__(
        self, rule: Free, operands: tuple[tuple[Operand, Axes], ...], accepts: Callable[[Order], Answer | None]
    ) -> None:
        self.rule = rule
        self.operands = operands
        # An axis has no place only if it has extent 1 in every operand (Pad, Expand or Resize may make 1 into more).
        extents = list(rule.extents)
        for operand, axes in operands:
            for place, axis in enumerate(axes):
                own = operand.view.extents[place]
                if extents[axis] == 1 and own != 1:
                    extents[axis] = own
        self.extents: tuple[Extent, ...] = tuple(extents)
        self.accepts = accepts
        self.orders: dict[Order, tuple[Answer, tuple[Order, ...]]] = {}
        # For each operand, where each axis of the space stands among its own; unit axes have no place.
        self._places = [
            {axis: place for place, axis in enumerate(axes) if operand.view.extents[place] != 1}
            for operand, axes in operands
        ]

    def formats(self, order: Order) -> tuple[Order, ...] | None:
        """The format of each operand's tensor when the space is in `order`; None where the factors do not nest."""
        found: list[Order] = []
        for (operand, _), places in zip(self.operands, self._places, strict=True):
            own = [Atom(places[axis], inner, outer) for axis, inner, outer in order if axis in places]
            format_ = operand.view.to_root(tuple(own))
            if format_ is None:
                return None
            found.append(format_)
        return tuple(found)

    def extend(self, operand: Operand, axes: Axes, format_: Order) -> Order | None:
        """An order of the space in which this operand has `format_`: missing axes follow their source neighbours."""
        own = operand.view.from_root(format_)
        if own is None or (not self.rule.splits and not all(a.is_whole for a in own)):
            return None
        order = [Atom(axes[a.axis], a.inner, a.outer) for a in own]
        present = {a.axis for a in order}
        for axis in range(len(self.extents)):
            if axis in present or self.extents[axis] == 1:
                continue
            before = [place for place, atom in enumerate(order) if atom.axis < axis]
            nearest = max(before, key=lambda place: (order[place].axis, place)) + 1 if before else 0
            order.insert(nearest, Atom(axis))
            present.add(axis)
        return normal_form(tuple(order), self.extents)


class Spaces:
    """All spaces, and every tensor's formats under consideration, in the order in which they were found."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.formats: dict[Tensor, dict[Order, None]] = {t: {} for t in tensors if not t.constant}
        self.capped: set[Tensor] = set()
        self._spaces: dict[Tensor, list[tuple[Space[Any], Operand, Axes]]] = {}
        self._queue: deque[tuple[Tensor, Order]] = deque()
        for tensor in self.formats:
            self.add_format(tensor, normal_form(source_order(len(tensor.extents)), tensor.extents))

    def add_space(self, space: Space[Any]) -> None:
        """Enter a space before `spread`; the order of the source is its first candidate."""
        for operand, axes in space.operands:
            self._spaces.setdefault(operand.tensor, []).append((space, operand, axes))
        self.add_order(space, normal_form(source_order(len(space.extents)), space.extents))

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
        formats = space.formats(order) if answer is not None else None
        if answer is None or formats is None:
            return
        if all(self.add_format(operand.tensor, f) for (operand, _), f in zip(space.operands, formats, strict=True)):
            space.orders[order] = (answer, formats)

    def spread(self) -> None:
        """Carry every format through every space that touches it until nothing new appears."""
        while self._queue:
            tensor, format_ = self._queue.popleft()
            for space, operand, axes in self._spaces.get(tensor, ()):
                order = space.extend(operand, axes, format_)
                if order is not None:
                    self.add_order(space, order)


def placements(order: Order, rank: int) -> Iterator[Axes]:
    """Full orders of `rank` axes that have the whole axes of `order` in their sequence, likeliest first.

    The others are unit axes: they go anywhere. First each after its neighbour in the source, then everywhere, up to a
    thousand ways.
    """
    if not all(a.is_whole for a in order):
        return
    placed = [a.axis for a in order]
    missing = [axis for axis in range(rank) if axis not in placed]
    natural = list(placed)
    for axis in missing:
        before = [place for place, other in enumerate(natural) if other < axis]
        natural.insert(max(before, key=lambda place: natural[place]) + 1 if before else 0, axis)
    yield tuple(natural)
    # Unit axes leading, then trailing: where broadcasting and matrices want them.
    yield (*missing, *placed)
    yield (*placed, *missing)
    for count, slots in enumerate(_interleavings(tuple(placed), tuple(missing))):
        if count == 1000:
            return
        yield slots


def _interleavings(first: Axes, rest: Axes) -> Iterator[Axes]:
    for order in permutations(rest):
        yield from _merge(first, order)


def _merge(a: Axes, b: Axes) -> Iterator[Axes]:
    if not a or not b:
        yield a + b
        return
    for tail in _merge(a[1:], b):
        yield (a[0], *tail)
    for tail in _merge(a, b[1:]):
        yield (b[0], *tail)


