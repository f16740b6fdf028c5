"""Propagation of memory formats: required formats pass through layout-agnostic operators until a fixpoint.

Each free node has an iteration space. An order of the space gives each operand a format, and an operand's format gives
the orders of the space that extend it. Formats and orders are propagated both ways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from relayout.candidates.axis_shuffle import AxisShuffle, ShuffledAlternative
from relayout.candidates.iteration_space import IndexingMaps
from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.memory_format import MemoryFormat, normal_form, source_order
from relayout.ops import Axes

FORMATS_PER_TENSOR = 512
"""Propagation adds formats to a tensor up to this number, above the 120 orders of a tensor of rank 5, and the
several hundred formats that windows and masks of tokens give."""
FURTHER_FACTORS = 2
"""Propagation adds formats of up to so many factors more than the longest that the source, a backend or a caller
requires. Each level of a network of windows splits rows and columns once more. Formats of the tiles of several levels
come in thousands and fill the lists of tensors before the useful ones are found. For 12 networks with windows one
further factor has the optimum of any number of them; SwinV2 is cheaper with two, and SwinV2-B with four."""
FEW_FORMATS = 4000
FEW_PER_TENSOR = 20
"""Where propagation finds no more formats in all, or of a tensor on average, the number of further factors is
doubled."""
MANY_PER_TENSOR = 60
"""Where propagation finds more formats of a tensor on average, it starts again with fewer factors, because the search
would find no proof. Networks with windows have up to 50. Their legal models require formats of many factors, and would
have hundreds. Formats without tiles are never left out for their number of factors."""
FORMS_PER_NODE = 256
"""The number of shuffled alternatives that are considered per node."""

Answer = TypeVar("Answer")


class IterationSpace(Struct, Generic[Answer], frozen=True, eq=False):
    """The axes that one free node iterates over, with its operands on them, constants excepted.

    `accepts` gives the answers for an order, None if it is unsupported. `suggests` gives further orders to consider,
    `cheaper` an order that costs less with the conversions to it and back, None if there is none.
    """

    maps: IndexingMaps
    operands: tuple[tuple[Operand, Axes], ...]
    accepts: Callable[[MemoryFormat], Answer | None]
    suggests: Callable[[MemoryFormat], Iterable[MemoryFormat]] | None = None
    cheaper: Callable[[MemoryFormat], MemoryFormat | None] | None = None

    def source_order(self) -> MemoryFormat:
        return normal_form(source_order(len(self.maps.extents)), self.maps.extents)


class FormatSeed(NamedTuple):
    """A format of a tensor, to be considered."""

    tensor: Tensor
    format: MemoryFormat


class OrderSeed(NamedTuple):
    """An order of an iteration space, to be considered. A fallback counts only if the space has no order yet."""

    space: IterationSpace[Any]
    order: MemoryFormat
    is_fallback: bool = False


Seed = FormatSeed | OrderSeed
Orders = Mapping[MemoryFormat, tuple[Any, tuple[MemoryFormat, ...]]]


class Candidates(Struct, frozen=True, eq=False):
    """The fixpoint: every tensor's formats and every space's orders, in the order in which they were found.

    Each order comes with its space's answer and the format of each operand. `shuffled` has the alternatives of each
    axis shuffle. Formats that the source, a backend or a caller requires are all considered; for the tensors in
    `capped` some propagated formats were dropped.
    """

    formats: Mapping[Tensor, Mapping[MemoryFormat, None]]
    orders: Mapping[IterationSpace[Any], Orders]
    shuffled: Mapping[AxisShuffle, Sequence[ShuffledAlternative]]
    capped: Sequence[Tensor]


def propagate(
    tensors: Iterable[Tensor],
    spaces: Iterable[IterationSpace[Any]],
    shuffles: Iterable[AxisShuffle],
    seeds: Iterable[Seed],
    coupled: Callable[[Mapping[Tensor, Mapping[MemoryFormat, None]]], Iterable[FormatSeed]] | None = None,
) -> Candidates:
    """Propagate the seeds through every space until nothing new appears. `coupled` adds formats at a fixpoint.

    Where there are many formats, the orders that cost more than others with conversions around are left out.
    """
    tensors, spaces, shuffles, seeds = tuple(tensors), tuple(spaces), tuple(shuffles), tuple(seeds)
    further, complete = FURTHER_FACTORS, None
    keeps_dear = any(space.cheaper is not None for space in spaces)
    while True:
        run = _Propagation(tensors, spaces, shuffles, keeps_dear=keeps_dear)
        run.start(seeds, further)
        run.to_fixpoint()
        while coupled is not None and not run.is_too_large and run.add_new(coupled(run.formats)):
            run.to_fixpoint()
        if keeps_dear and (run.is_too_large or run.capped):
            further, complete, keeps_dear = FURTHER_FACTORS, None, False
        elif not run.is_too_large:
            complete = run
            few = max(FEW_FORMATS, FEW_PER_TENSOR * len(run.formats))
            if further < FURTHER_FACTORS or not run.has_left_out or run.found > few:
                break
            further *= 2
        elif complete is not None:
            break
        else:
            further -= 2
    shuffled = {space: tuple(found) for space, found in complete.shuffled.items()}
    return Candidates(complete.formats, complete.orders, shuffled, tuple(complete.capped))


class _Propagation:
    """The worklist, and what was found so far."""

    def __init__(
        self,
        tensors: Iterable[Tensor],
        spaces: Iterable[IterationSpace[Any]],
        shuffles: Iterable[AxisShuffle],
        *,
        keeps_dear: bool,
    ) -> None:
        self.formats: dict[Tensor, dict[MemoryFormat, None]] = {t: {} for t in tensors if not t.constant}
        self.orders: dict[IterationSpace[Any], dict[MemoryFormat, tuple[Any, tuple[MemoryFormat, ...]]]] = {}
        self.shuffled: dict[AxisShuffle, list[ShuffledAlternative]] = {}
        self.capped: dict[Tensor, None] = {}
        self.has_left_out = False
        self.found = 0
        self._keeps_dear = keeps_dear
        self._many = max(FEW_FORMATS, (FEW_PER_TENSOR if keeps_dear else MANY_PER_TENSOR) * len(self.formats))
        # For each tensor the spaces and shuffles that have it as an operand, with its index there.
        self._spaces: dict[Tensor, list[tuple[IterationSpace[Any], int]]] = {}
        self._shuffles: dict[Tensor, list[tuple[AxisShuffle, int]]] = {}
        # For two operands of a space: the first one's formats so far, by their order of the axes that both have.
        self._common: dict[tuple[IterationSpace[Any], int, int], dict[MemoryFormat | None, list[MemoryFormat]]] = {}
        # For two operands of a space: the first one's format that guides the formats of the second.
        self._guides: dict[tuple[IterationSpace[Any], int, int], MemoryFormat] = {}
        self._queue: deque[tuple[Tensor, MemoryFormat]] = deque()
        self._most_factors = inf
        for space in spaces:
            self.orders[space] = {}
            for index, (operand, _) in enumerate(space.operands):
                self._spaces.setdefault(operand.tensor, []).append((space, index))
        for shuffle in shuffles:
            self.shuffled[shuffle] = []
            for index, port in enumerate(shuffle.node.ports):
                self._shuffles.setdefault(port.operand.tensor, []).append((shuffle, index))
        for tensor in self.formats:
            self.add_format(tensor, normal_form(source_order(len(tensor.extents)), tensor.extents))

    @property
    def is_too_large(self) -> bool:
        """Whether there are more formats than a search can take, and fewer factors would leave some out."""
        return self.found > self._many and self._most_factors > 0

    def add_format(self, tensor: Tensor, format_: MemoryFormat, *, is_required: bool = True) -> bool:
        """Consider this format of the tensor. False if it is not required, and has too many factors or the tensor too
        many formats."""
        known = self.formats[tensor]
        if format_ in known:
            return True
        if not is_required and len(format_) > max(self._most_factors, len(tensor.extents)):
            self.has_left_out = True
            return False
        if not is_required and len(known) >= FORMATS_PER_TENSOR:
            self.capped[tensor] = None
            return False
        known[format_] = None
        self.found += 1
        self._queue.append((tensor, format_))
        return True

    def start(self, seeds: Iterable[Seed], further: int) -> None:
        """Consider the seeds, and limit the factors of the formats that propagation adds by those of theirs."""
        for seed in seeds:
            if isinstance(seed, FormatSeed):
                self.add_format(*seed)
            elif not (seed.is_fallback and self.orders[seed.space]):
                self.add_order(seed.space, seed.order)
        longest = max((len(each) for formats in self.formats.values() for each in formats), default=0)
        self._most_factors = longest + further

    def add_new(self, seeds: Iterable[FormatSeed]) -> bool:
        """Consider all these formats. Returns whether one of them is new."""
        fresh = [seed for seed in seeds if seed.format not in self.formats[seed.tensor]]
        return any([self.add_format(*seed, is_required=False) for seed in fresh])  # noqa: C419  # all are added

    def add_order(self, space: IterationSpace[Any], order: MemoryFormat, *, is_required: bool = True) -> bool:
        """Consider this order of the space, with its operands' formats. Returns whether the node runs in it."""
        orders = self.orders[space]
        if order in orders:
            return True
        answer = space.accepts(order)
        if not self._keeps_dear and not is_required and space.cheaper is not None:
            other = space.cheaper(order)
            if other is not None:
                self.add_order(space, other, is_required=False)
                return False
        formats = space.maps.formats(order) if answer is not None else None
        if formats is None:
            return False
        # The first order of a space is always kept: without it the node would have no alternative.
        is_kept = is_required or not orders
        given = zip(space.operands, formats, strict=True)
        if all(self.add_format(operand.tensor, f, is_required=is_kept) for (operand, _), f in given):
            orders[order] = (answer, formats)
            for further in space.suggests(order) if space.suggests is not None else ():
                self.add_order(space, further, is_required=False)
        return order in orders

    def to_fixpoint(self) -> None:
        """Propagate every format through every space that has the tensor until nothing new appears, or too many."""
        while self._queue and not self.is_too_large:
            tensor, format_ = self._queue.popleft()
            for space, index in self._spaces.get(tensor, ()):
                is_accepted = False
                for order in self._reached(space, index, format_):
                    is_accepted |= self.add_order(space, order, is_required=False)
                if not is_accepted:
                    # The node supports whole axes only: consider the orders nearest to this format.
                    for order in space.maps.nearest_whole(index, format_):
                        self.add_order(space, order, is_required=False)
            for shuffle, index in self._shuffles.get(tensor, ()):
                self._add_shuffled(shuffle, index, format_)

    def _add_shuffled(self, shuffle: AxisShuffle, index: int, format_: MemoryFormat) -> None:
        """Consider the shuffled alternatives of the node in which port `index` has the factors of this format."""
        found = self.shuffled[shuffle]
        for lowering in tuple(shuffle.follow(index, format_, found)):
            tensors = [port.operand.tensor for port in shuffle.node.ports]
            if len(shuffle.base) + len(found) >= FORMS_PER_NODE:
                self.capped.update(dict.fromkeys(tensors))
                return
            found.append(lowering)
            for tensor, each in zip(tensors, lowering.formats, strict=True):
                self.add_format(tensor, each, is_required=False)

    def _reached(self, space: IterationSpace[Any], index: int, format_: MemoryFormat) -> Iterator[MemoryFormat]:
        """The orders of the space in which its operand `index` has this format, or guides another operand's."""
        maps = space.maps
        yield from maps.extend(index, format_)
        for other in maps.partners[index]:
            # Two operands that order their common axes alike can both keep their formats.
            common = maps.common_order(index, format_, other)
            self._common.setdefault((space, index, other), {}).setdefault(common, []).append(format_)
            for each in self._common.get((space, other, index), {}).get(common, ()):
                if common is not None and (merged := maps.merged_order(index, format_, other, each)) is not None:
                    yield merged
        # The first tiled format of an operand guides all formats of another that lacks the tiled axes, or tiles.
        known = self._guides
        pairs = [(index, format_, n, known[space, n, index]) for n in maps.guides[index] if (space, n, index) in known]
        for other, guides in enumerate(maps.guides):
            if index in guides and (space, index, other) not in known and maps.is_guide(index, format_, other):
                known[space, index, other] = format_
                pairs += [(other, f, index, format_) for f in self.formats[space.operands[other][0].tensor]]
        yield from [order for pair in pairs if (order := maps.guided_order(*pair)) is not None]
