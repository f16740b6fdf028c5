"""Which memory formats are worth considering: those that somebody asks for, carried along the free operators.

Each free node has a space of axes; an order of the space gives each of its operands a format, and an operand's format
gives the orders of the space that extend it. Formats and orders are spread both ways to a fixpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from relayout.candidates.iteration_space import Geometry
from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.memory_format import MemoryFormat, normal_form, source_order
from relayout.ops import Axes, Free

__all__ = ["FORMATS_PER_TENSOR", "Space", "Spaces"]

FORMATS_PER_TENSOR = 24
"""How many formats of a tensor `Spaces.spread` may fill up to: a tensor of rank 4 has no more orders."""

Answer = TypeVar("Answer")


class Space(Generic[Answer]):
    """One free node's axes, the operands on them (constants excepted), and the orders under consideration.

    `accepts` says how the node runs in an order, None where it does not; `orders` keeps what it said, and the format
    that the order gives each operand. `proposes` says which further orders are worth a thought beside one.
    """

    __slots__ = ("accepts", "geometry", "operands", "orders", "proposes")

    def __init__(
        self,
        geometry: Geometry,
        operands: tuple[tuple[Operand, Axes], ...],
        accepts: Callable[[MemoryFormat], Answer | None],
        proposes: Callable[[MemoryFormat], Iterable[MemoryFormat]] | None = None,
    ) -> None:
        self.geometry = geometry
        self.operands = operands
        self.accepts = accepts
        self.proposes = proposes
        self.orders: dict[MemoryFormat, tuple[Answer, tuple[MemoryFormat, ...]]] = {}


class Spaces:
    """All spaces, and every tensor's formats under consideration, in the order in which they were found.

    Formats that are asked for, by the source, a backend or a caller, are all considered. `spread` adds further ones up
    to `FORMATS_PER_TENSOR`; `capped` holds the tensors for which it left some out.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.formats: dict[Tensor, dict[MemoryFormat, None]] = {t: {} for t in tensors if not t.constant}
        self.capped: dict[Tensor, None] = {}
        # For each tensor the spaces that it is in, with its place among their operands.
        self._spaces: dict[Tensor, list[tuple[Space[Any], int]]] = {}
        self._geometries: dict[object, Geometry] = {}
        self._listeners: dict[Tensor, list[Callable[[MemoryFormat], None]]] = {}
        self._queue: deque[tuple[Tensor, MemoryFormat]] = deque()
        for tensor in self.formats:
            self.add_format(tensor, normal_form(source_order(len(tensor.extents)), tensor.extents))

    def geometry(self, rule: Free, operands: tuple[tuple[Operand, Axes], ...]) -> Geometry:
        """The geometry of a space of `rule`, shared by all spaces of the same."""
        views = tuple([(o.view.axes, o.view.extents, o.view.base_extents, axes) for o, axes in operands])
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

    def listen(self, tensor: Tensor, hear: Callable[[MemoryFormat], None]) -> None:
        """Call `hear` with every format of the tensor that comes under consideration, from `spread` on."""
        self._listeners.setdefault(tensor, []).append(hear)

    def add_format(self, tensor: Tensor, format_: MemoryFormat, *, is_asked: bool = True) -> bool:
        """Consider this format of the tensor; False where nobody asks for it and the tensor has too many already."""
        known = self.formats[tensor]
        if format_ in known:
            return True
        if not is_asked and len(known) >= FORMATS_PER_TENSOR:
            self.capped[tensor] = None
            return False
        known[format_] = None
        self._queue.append((tensor, format_))
        return True

    def add_order(self, space: Space[Answer], order: MemoryFormat, *, is_asked: bool = True) -> bool:
        """Consider this order of the space, with the formats that it gives its operands; whether it is considered."""
        if order in space.orders:
            return True
        answer = space.accepts(order)
        formats = space.geometry.formats(order) if answer is not None else None
        if answer is None or formats is None:
            return False
        # The first order of a space is never left out: the node would have no alternative.
        is_kept = is_asked or not space.orders
        given = zip(space.operands, formats, strict=True)
        if all(self.add_format(operand.tensor, f, is_asked=is_kept) for (operand, _), f in given):
            space.orders[order] = (answer, formats)
            for further in space.proposes(order) if space.proposes is not None else ():
                self.add_order(space, further, is_asked=False)
        return order in space.orders

    def spread(self) -> None:
        """Carry every format through every space that touches it until nothing new appears."""
        while self._queue:
            tensor, format_ = self._queue.popleft()
            for space, place in self._spaces.get(tensor, ()):
                reached = self._reached(space, place, format_)
                taken = [self.add_order(space, order, is_asked=False) for order in reached]
                if not any(taken):
                    # The node takes its axes whole: what comes next to this format is worth a conversion.
                    for order in space.geometry.gathered(place, format_):
                        self.add_order(space, order, is_asked=False)
            for hear in self._listeners.get(tensor, ()):
                hear(format_)

    def _reached(self, space: Space[Any], place: int, format_: MemoryFormat) -> Iterator[MemoryFormat]:
        """The orders of the space in which its operand `place` has this format."""
        geometry = space.geometry
        yield from geometry.extend(place, format_)
        for other, (operand, _) in enumerate(space.operands):
            if other == place or not (geometry.is_partial or geometry.lacks_any(place, other)):
                continue
            for known in tuple(self.formats[operand.tensor]):
                yield from geometry.reached(place, format_, other, known)
