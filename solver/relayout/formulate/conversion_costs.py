"""The cost model: what a conversion of a tensor costs, and a transfer between two devices, in bytes.

A conversion reads the tensor in one format and writes it in another, padding included. If it takes several nodes (tiles
that do not nest, zeros to fill), its cost is the sum of their traffic. A backend may state other costs for transposes,
each as it is written, and for conversions by operators of its own. If there are several devices, each has its own
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, permutations
from typing import NamedTuple

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import conversion_cost_of, conversion_of, transfer_cost_of
from relayout.backend.interface import Backend, element_size
from relayout.candidates.backend_conversions import (
    ConversionEnd,
    ConversionQuery,
    Transposition,
    conversion_end,
    native_conversion,
    transposition,
)
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.formulate.spellings import Spellings, stated_spellings
from relayout.formulate.transposes import CutFormat, Steps, Transposes, cheapest_steps
from relayout.layout.conversion import flat, moved_groups, moves, one_each, tiling_of
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import (
    Extent,
    MemoryFormat,
    atom_extent,
    boxes_of,
    is_whole,
    normal_form,
    source_order,
)
from relayout.model.operator_schema import takes_type
from relayout.model.tensor_sizes import assumed_extents, padded_elements, tensor_bytes


class ConversionCost(Struct, frozen=True):
    """The cost of a conversion, the bytes that it reads and writes, the bytes of `padding` among them that no Transpose
    moves, and its passes over the tensor. `native`: it is a native operator of the backend, which was asked about these
    two formats, spelled in full."""

    cost: int
    bytes: int
    padding: int
    passes: int
    native: tuple[MemoryFormat, MemoryFormat] | None = None

    @property
    def by_backend(self) -> bool:
        """Whether it is a native operator of the backend."""
        return self.native is not None

    def count(self, unit: str) -> int:
        """Its share of the number of conversions. A pad alone is one only where these are the `unit` of the cost: where
        bytes are, one that is in the model already and one that is added count alike."""
        return self.passes if unit == "transposes" or self.bytes > self.padding or not self.padding else 0


_NOTHING = ConversionCost(0, 0, 0, 0)

_Row = tuple[ConversionCost | None, ...]


class CostTable(Struct, frozen=True, eq=False, dict=True):
    """The costs of conversions between formats of tensors of one size: `rows[source][target]`, None: impossible."""

    rows: tuple[_Row, ...]

    @cached_property
    def distinct(self) -> tuple[ConversionCost, ...]:
        """The conversions that are possible, each object once: most entries share one with others."""
        return tuple({id(each): each for each in chain.from_iterable(self.rows) if each is not None}.values())

    @cached_property
    def is_direct(self) -> bool:
        """Whether each format costs the same from every other, so that a copy of a copy saves nothing."""
        columns = [
            {each if each is None else (each.cost, each.passes) for f, each in enumerate(column) if f != g}
            for g, column in enumerate(zip(*self.rows, strict=True))
        ]
        return all(len(costs) <= 1 for costs in columns)

    @cached_property
    def charges(self) -> frozenset[int]:
        return frozenset(each.cost for each in self.distinct)

    @cached_property
    def most_passes(self) -> int:
        return max(each.passes for each in self.distinct)


class _Size(NamedTuple):
    """The properties of a tensor that costs depend on. If a backend states its own costs, `layout` names the axes, and
    `sizes` are the extents with a size assumed for each that is not known. `rank` is that of the base value, some of
    whose axes may be several in the tensor. `spellings` are the further spellings of its formats, for a backend with
    native conversions."""

    elements: int
    dtype: ir.DataType | None
    rank: int
    extents: tuple[Extent, ...]
    layout: Layout | None
    sizes: tuple[Extent, ...]
    spellings: Spellings = ()


class _Spelling(Struct, frozen=True, eq=False):
    """A tensor in one format: what all conversions from it or to it have in common.

    `asked` is the format as the backend is asked about it by names, and `assumed` with a size for each extent that is
    not known; None where it cannot be asked so.
    """

    format: MemoryFormat
    bytes: int
    asked: ConversionEnd | None
    assumed: ConversionEnd | None


class _End(Struct, frozen=True, eq=False):
    """A format that conversions lead from or to, in its own spelling, and in all: its own first. `has_names`: a backend
    with prices of its own can be asked about it by names."""

    own: _Spelling
    spellings: tuple[_Spelling, ...]
    cut: CutFormat | None
    has_names: bool


class ConversionCosts:
    """The costs of one graph's conversions and transfers, computed once per size of tensor.

    `elements` counts the elements of a shape, with a size assumed for each symbolic dim.
    """

    def __init__(
        self, requirements: Requirements, backend: Backend, elements: Callable[[ir.Shape | None], int]
    ) -> None:
        self._names = requirements.names
        self._operands = requirements.tensors.operands
        self._backend = backend
        self._elements = elements
        self._opset = requirements.tensors.opsets.get("", 1)
        self._at = {device: backend.at(device) for device in backend.devices() or ("",)}
        self._own = {device for device, each in self._at.items() if _prices_itself(each)}
        converts = any(type(each).conversion is not Backend.conversion for each in self._at.values())
        self._spellings = stated_spellings(requirements) if converts else {}
        self._sizes: dict[Tensor, _Size] = {}
        self._distinct_sizes: dict[_Size, _Size] = {}
        # A table of n formats has n squared conversions, which have n ends and few different Transposes. An end that is
        # the same object is found without a look into its format.
        self._spelled: dict[_Size, dict[MemoryFormat, _Spelling]] = {}
        self._ends: dict[_Size, dict[MemoryFormat, _End]] = {}
        self._turns: dict[tuple[str, int, Transposition], int | None] = {}
        self._transposes: dict[_Size, Transposes] = {}
        self._steps: dict[tuple[str, int, int, Transposition, tuple[bool, ...]], Steps] = {}
        self._between: dict[tuple[_Size, str, tuple[MemoryFormat, ...]], tuple[MemoryFormat, ...]] = {}
        # By cost, bytes and passes: most conversions have equal ones.
        self._simple: dict[tuple[int, int, int], ConversionCost] = {}
        self._tables: dict[object, CostTable] = {}
        # By size and device: tables of one size have most of their formats in common. Where no backend states costs of
        # its own, conversions between two tilings cost the same in any order of the axes.
        self._pairs: dict[object, dict[tuple[object, object], ConversionCost | None]] = {}

    @property
    def have_padding(self) -> bool:
        """Whether some conversion fills up or cuts off."""
        return any(each.padding for table in self._tables.values() for each in table.distinct)

    def of(self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat, device: str) -> ConversionCost | None:
        """The cost of one conversion between two different formats at a device; None: impossible."""
        return self._conversion(tensor, device, self._end(tensor, source), self._end(tensor, target))

    def between(self, tensor: Tensor, device: str, formats: tuple[MemoryFormat, ...]) -> tuple[MemoryFormat, ...]:
        """Further formats, between the steps of conversions, where the device's backend states what a Transpose costs,
        by the numbers of the axes, and several that do the same cost less."""
        key = self._size_of(tensor), device, formats
        known = self._between.get(key)
        if known is None:
            found: dict[MemoryFormat, None] = {}
            if device in self._own:
                rows = self.table(tensor, device, formats).rows
                for (f, source), (g, target) in permutations(enumerate(formats), 2):
                    cost, further = self._in_steps(tensor, device, source, target)
                    ways = ((rows[f][each], rows[each][g]) for each in range(len(formats)))
                    if further and all(a is None or b is None or a.cost + b.cost > cost for a, b in ways):
                        found.update(dict.fromkeys(further))
            known = self._between[key] = tuple(found)
        return known

    def _in_steps(
        self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat
    ) -> tuple[int, list[MemoryFormat]]:
        """The cost of a conversion in steps, and the formats between; none where its cost is not stated, or is less."""
        ends, operand = (self._end(tensor, source), self._end(tensor, target)), self._operands[tensor.base]
        cuts = [end.cut for end in ends]
        if cuts[0] is None or cuts[1] is None or operand is None:
            return 0, []
        turns = self._transposes[self._size_of(tensor)].between(cuts[0], cuts[1])
        element, traffic = element_size(operand.value), sum(end.own.bytes for end in ends)
        if len(turns) != 1 or len(turns[0].perm) > MAX_RANK:
            return 0, []
        if self._cost_of_turn(device, element, turns[0], tensor) is None:
            return 0, []

        def price(step: Transposition) -> int:
            stated = self._cost_of_turn(device, element, step, tensor)
            return traffic if stated is None else stated

        groups, _ = moved_groups(one_each(source), one_each(target), tensor.extents)
        if len(groups) != len(turns[0].perm):
            return 0, []
        known = tuple([all(isinstance(atom_extent(a, tensor.extents), int) for a in group) for group in groups])
        key = device, element, traffic, turns[0], known
        if key not in self._steps:
            self._steps[key] = cheapest_steps(turns[0], known, price)
        cost, orders = self._steps[key]
        return cost, [normal_form(flat([groups[each] for each in order]), tensor.extents) for order in orders]

    def bytes_of(self, tensor: Tensor, format_: MemoryFormat) -> int:
        """The size of the tensor in this format."""
        return self._spelling(tensor, format_).bytes

    def table(self, tensor: Tensor, device: str, formats: tuple[MemoryFormat, ...]) -> CostTable:
        """The costs of all conversions between these formats at a device."""
        key = self._size_of(tensor), device, formats
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = CostTable(tuple(self._rows(tensor, device, formats)))
        return known

    def _rows(self, tensor: Tensor, device: str, formats: Sequence[MemoryFormat]) -> Iterator[_Row]:
        pairs = self._pairs.setdefault((self._size_of(tensor), device), {})
        ends = [self._end(tensor, each) for each in formats]
        tilings = [None if device in self._own else tiling_of(each, tensor.extents) for each in formats]
        alike: Sequence[object] = ends if None in tilings else tilings
        # Alike formats have rows of equal costs, but for the zeros.
        known: dict[object, _Row] = {}
        for place, (f, source) in enumerate(zip(ends, alike, strict=True)):
            row = known.get(source)
            if row is None:
                for g, target in zip(ends, alike, strict=True):
                    if f is not g and (source, target) not in pairs:
                        pairs[source, target] = self._conversion(tensor, device, f, g)
                row = known[source] = tuple([pairs.get((source, target), _NOTHING) for target in alike])
            yield (*row[:place], _NOTHING, *row[place + 1 :])

    def _conversion(self, tensor: Tensor, device: str, source: _End, target: _End) -> ConversionCost | None:
        """The cheapest way to convert. A backend's native operator stands in for ONNX's where the backend is asked
        about the formats as they are; of others it is taken where it costs less. The first of equal ones is taken."""
        if device not in self._own:
            return self._by_onnx(tensor, device, source.own, target.own)
        simple = self._by_transposes(tensor, device, source, target)
        if simple is not None:
            return simple
        plain, *spelled = [self._native(tensor, device, f, g) for f in source.spellings for g in target.spellings]
        plain = plain or self._by_onnx(tensor, device, source.own, target.own)
        return min(filter(None, (plain, *spelled)), key=lambda each: each.cost, default=None) if spelled else plain

    def _by_transposes(self, tensor: Tensor, device: str, source: _End, target: _End) -> ConversionCost | None:
        """The cost of a conversion by Transposes alone, without names; None where it is not one, or may not be."""
        if source.cut is None or target.cut is None or (source.has_names and target.has_names):
            return None
        turns = self._transposes[self._size_of(tensor)].between(source.cut, target.cut)
        if not turns or not takes_type("Transpose", self._opset, tensor.base.dtype):
            return None
        ends, operand = source.own.bytes + target.own.bytes, self._operands[tensor.base]
        cost = 0
        for turn in turns:
            stated = None
            if len(turn.perm) <= MAX_RANK and operand is not None:
                stated = self._cost_of_turn(device, element_size(operand.value), turn, tensor)
            cost += ends if stated is None else stated
        passes = len(turns)
        return self._simple.setdefault((cost, ends, passes), ConversionCost(cost, passes * ends, 0, passes))

    def _native(self, tensor: Tensor, device: str, source: _Spelling, target: _Spelling) -> ConversionCost | None:
        """The cost of the backend's native operator between two formats in these spellings; None where it has none."""
        if native_conversion(self._at[device], _query(source.asked, target.asked)) is None:
            return None
        ends, stated = source.bytes + target.bytes, self._stated(device, tensor, source, target)
        return ConversionCost(ends if stated is None else stated, ends, 0, 1, (source.format, target.format))

    def _by_onnx(self, tensor: Tensor, device: str, source: _Spelling, target: _Spelling) -> ConversionCost | None:
        """The cost of a conversion by ONNX's operators; None where they cannot write it."""
        # float8 and smaller types came after Transpose.
        if not takes_type("Transpose", self._opset, tensor.base.dtype):
            return None
        if not _can_be_written(tensor, source.format, target.format):
            return None
        ends = source.bytes + target.bytes
        each = [
            (kind, self._spelling(tensor, before), self._spelling(tensor, after))
            for kind, before, after in moves(source.format, target.format, tensor.extents)
        ]
        sizes = [ends] if len(each) == 1 else [before.bytes + after.bytes for _, before, after in each]
        transposed = [size for (kind, _, _), size in zip(each, sizes, strict=True) if kind == "transpose"]
        traffic = max(ends, sum(sizes))
        padding, cost = traffic - sum(transposed), traffic
        if device in self._own:
            by_number = len(transposed) > 1
            turns = [self._stated(device, tensor, f, g, by_number) for kind, f, g in each if kind == "transpose"]
            priced = zip(turns, transposed, strict=True)
            cost = padding + sum(size if own is None else own for own, size in priced)
        return ConversionCost(cost, traffic, padding, max(1, len(transposed)))

    def transfer(self, tensor: Tensor, format_: MemoryFormat, source: str, target: str) -> int:
        """The cost of copying the tensor in this format from one device to another."""
        return transfer_cost_of(self._backend, self.bytes_of(tensor, format_), source, target)

    def _size_of(self, tensor: Tensor) -> _Size:
        size = self._sizes.get(tensor)
        if size is None:
            base = self._operands[tensor.base]
            rank = len(base.view.axes) if base is not None else 0
            # The factors of an axis may have names where the axis has none.
            shape = tensor.base.shape if rank == len(tensor.extents) else ir.Shape(tensor.extents)
            count, layout, sizes = self._elements(shape), None, tensor.extents
            if self._own and base is not None:
                layout = self._names.layout(base, source_order(rank))
                if not all(isinstance(extent, int) for extent in sizes):
                    sizes = assumed_extents(shape, self._elements)
            spellings = self._spellings.get(tensor, ())
            size = _Size(count, tensor.base.dtype, rank, tensor.extents, layout, sizes, spellings)
            size = self._sizes[tensor] = self._distinct_sizes.setdefault(size, size)
            if self._own and size not in self._transposes:
                self._transposes[size] = Transposes(size.extents, size.sizes)
        return size

    def _end(self, tensor: Tensor, format_: MemoryFormat) -> _End:
        size = self._size_of(tensor)
        found = self._ends.setdefault(size, {})
        if format_ not in found:
            every = [format_, *dict(size.spellings).get(format_, ())]
            spellings = tuple([self._spelling(tensor, each) for each in every])
            cut = self._transposes[size].cut(format_) if self._own else None
            has_names = any(each.asked or each.assumed for each in spellings)
            found[format_] = _End(spellings[0], spellings, cut, has_names)
        return found[format_]

    def _spelling(self, tensor: Tensor, format_: MemoryFormat) -> _Spelling:
        found = self._spelled.setdefault(self._size_of(tensor), {})
        known = found.get(format_)
        if known is None:
            elements = padded_elements(self._size_of(tensor).elements, format_, tensor.extents)
            nbytes = tensor_bytes(elements, tensor.base.dtype)
            asked, assumed = (self._asked(tensor, format_, assumed) if self._own else None for assumed in (False, True))
            known = found[format_] = _Spelling(format_, nbytes, asked, assumed)
        return known

    def _asked(self, tensor: Tensor, format_: MemoryFormat, assumed: bool) -> ConversionEnd | None:
        """The format as the backend is asked about it by names. `assumed`: with a size for each unknown extent."""
        size, operand = self._size_of(tensor), self._operands[tensor.base]
        sizes = size.sizes if size.rank == len(size.sizes) else assumed_extents(tensor.base.shape, self._elements)
        end = conversion_end(self._names, operand, format_, sizes if assumed else None)
        return None if end is None or end.layout.is_any else end

    def _stated(
        self, device: str, tensor: Tensor, source: _Spelling, target: _Spelling, by_number: bool = False
    ) -> int | None:
        """The backend's stated cost of one transpose, or of a conversion by its own operator. It is asked by the names
        of the axes and then by their numbers: a model whose axes have lost their names costs the same. A format may
        have too many dimensions for a layout, and its Transpose may not. `by_number`: it is one of several Transposes,
        between which no layout has names. None: the cost is the traffic."""
        query = None if by_number else _query(source.assumed, target.assumed)
        if query is not None:
            backend = self._at[device]
            own = conversion_of(backend, *query, tensor.base.name)
            if own is not None and own.cost is not None:
                return own.cost
            named = conversion_cost_of(backend, *query, tensor.base.name)
            if named is not None or own is not None:
                return named
        operand = self._operands[tensor.base]
        if operand is None:
            return None
        turn = transposition(tensor.extents, self._size_of(tensor).sizes, source.format, target.format)
        return None if turn is None else self._cost_of_turn(device, element_size(operand.value), turn, tensor)

    def _cost_of_turn(self, device: str, element: int, turn: Transposition, tensor: Tensor) -> int | None:
        """The backend's stated cost of a Transpose by the numbers of its axes."""
        key = device, element, turn
        if key not in self._turns:
            self._turns[key] = conversion_cost_of(self._at[device], *turn.query(element), tensor.base.name)
        return self._turns[key]


def _query(source: ConversionEnd | None, target: ConversionEnd | None) -> ConversionQuery | None:
    """The query for the backend; None where one end cannot be asked about by names."""
    return None if source is None or target is None else ConversionQuery(*source, target.layout)


def _prices_itself(backend: Backend) -> bool:
    kind = type(backend)
    return kind.conversion_cost is not Backend.conversion_cost or kind.conversion is not Backend.conversion


def _can_be_written(tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> bool:
    """Whether ONNX's operators can write the conversion: a Reshape must be able to split each tiled axis.

    Extents that have names can be read at run time, unless one is 0, and Reshape can infer one other per format. The
    padding of an axis of unknown extent cannot be known.
    """
    if boxes_of(source) or boxes_of(target):
        return False  # only the backend understands a black box
    if all(isinstance(extent, int) and extent for extent in tensor.extents):
        return True
    if is_whole(source) and is_whole(target):
        return True
    if 0 in tensor.extents:
        return False
    if all(isinstance(tensor.extents[a.axis], int) for a in (*source, *target) if not a.is_whole):
        return True
    if any({a.axis for a in o} - {a.axis for a in o if not a.outer} for o in (source, target)):
        return False
    unknown = [[a for a in o if not isinstance(atom_extent(a, tensor.extents), int)] for o in (source, target)]
    return all(len(each) <= 1 or all(isinstance(tensor.extents[a.axis], str) for a in each) for each in unknown)
