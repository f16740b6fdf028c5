"""The cost model: what a conversion of a tensor costs, and a transfer between two devices, in bytes.

A conversion reads the tensor in one format and writes it in another, padding included. If it takes several nodes (tiles
that do not nest, zeros to fill), its cost is the sum of their traffic. A backend may state other costs for transposes,
each as it is written, and for conversions by operators of its own. If there are several devices, each has its own
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain, product
from typing import NamedTuple

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import conversion_cost_of, conversion_of, transfer_cost_of
from relayout.backend.interface import Backend, element_size
from relayout.candidates.backend_conversions import (
    ConversionQuery,
    conversion_query,
    native_conversion,
    transpose_query,
)
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.layout.conversion import moves
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, MemoryFormat, atom_extent, boxes_of, source_order
from relayout.model.tensor_sizes import padded_elements, tensor_bytes

__all__ = ["ConversionCost", "ConversionCosts", "CostTable"]


class ConversionCost(Struct, frozen=True):
    """The cost of a conversion, the bytes that it reads and writes, the bytes of `padding` among them that no Transpose
    moves, and its passes over the tensor. `by_backend`: it is a native operator of the backend."""

    cost: int
    bytes: int
    padding: int
    passes: int
    by_backend: bool = False

    def count(self, unit: str) -> int:
        """Its share of the number of conversions. A pad alone is one only where these are the `unit` of the cost: where
        bytes are, one that is in the model already and one that is added count alike."""
        return self.passes if unit == "transposes" or self.bytes > self.padding or not self.padding else 0


_NOTHING = ConversionCost(0, 0, 0, 0)


class CostTable(Struct, frozen=True, eq=False, dict=True):
    """The costs of conversions between formats of tensors of one size: `rows[source][target]`, None: impossible."""

    rows: tuple[tuple[ConversionCost | None, ...], ...]

    @property
    def each(self) -> Iterator[ConversionCost]:
        """The conversions that are possible."""
        return (each for each in chain.from_iterable(self.rows) if each is not None)

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
        return frozenset(each.cost for each in self.each)

    @cached_property
    def most_passes(self) -> int:
        return max(each.passes for each in self.each)


class _Size(NamedTuple):
    """The properties of a tensor that costs depend on. If a backend states its own costs, `layout` names the axes, and
    `sizes` are the extents with a size assumed for each that is not known."""

    elements: int
    dtype: ir.DataType | None
    extents: tuple[Extent, ...]
    layout: Layout | None
    sizes: tuple[Extent, ...]


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
        self._at = {device: backend.at(device) for device in backend.devices() or ("",)}
        self._own = {device for device, each in self._at.items() if _prices_itself(each)}
        self._sizes: dict[Tensor, _Size] = {}
        self._distinct_sizes: dict[_Size, _Size] = {}
        self._bytes: dict[tuple[_Size, MemoryFormat], int] = {}
        self._tables: dict[object, CostTable] = {}
        # By size and device: tables of one size have most of their formats in common.
        self._pairs: dict[object, dict[tuple[MemoryFormat, MemoryFormat], ConversionCost | None]] = {}

    @property
    def have_padding(self) -> bool:
        """Whether some conversion fills up or cuts off."""
        return any(each.padding for table in self._tables.values() for each in table.each)

    def of(self, tensor: Tensor, target: MemoryFormat, device: str, source: MemoryFormat) -> ConversionCost | None:
        """The cost of one conversion at a device; None: impossible."""
        return self.table(tensor, device, (source, target)).rows[0][1]

    def bytes_of(self, tensor: Tensor, format_: MemoryFormat) -> int:
        """The size of the tensor in this format."""
        key = self._size_of(tensor), format_
        known = self._bytes.get(key)
        if known is None:
            elements = padded_elements(key[0].elements, format_, tensor.extents)
            known = self._bytes[key] = tensor_bytes(elements, tensor.base.dtype)
        return known

    def table(self, tensor: Tensor, device: str, formats: tuple[MemoryFormat, ...]) -> CostTable:
        """The costs of all conversions between these formats at a device."""
        key = self._size_of(tensor), device, formats
        known = self._tables.get(key)
        if known is None:
            pairs = self._pairs.setdefault(key[:2], {})
            for f, g in product(formats, formats):
                if (f, g) not in pairs:
                    pairs[f, g] = self._conversion(tensor, device, f, g)
            known = self._tables[key] = CostTable(tuple(tuple([pairs[f, g] for g in formats]) for f in formats))
        return known

    def _conversion(
        self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat
    ) -> ConversionCost | None:
        if source == target:
            return _NOTHING
        backend, is_own = self._at[device], device in self._own
        if is_own and native_conversion(backend, self._query(tensor, source, target)) is not None:
            ends, stated = self._ends(tensor, source, target), self._stated(device, tensor, source, target)
            return ConversionCost(ends if stated is None else stated, ends, 0, 1, by_backend=True)
        if not _can_be_written(tensor, source, target):
            return None
        each = moves(source, target, tensor.extents)
        spent = [(kind, self._ends(tensor, before, after)) for kind, before, after in each]
        transposed = [size for kind, size in spent if kind == "transpose"]
        traffic = max(self._ends(tensor, source, target), sum(size for _, size in spent))
        padding, cost = traffic - sum(transposed), traffic
        if is_own:
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
            count, layout, sizes = self._elements(tensor.base.shape), None, tensor.extents
            base = self._operands[tensor.base]
            if self._own and base is not None:
                layout = self._names.layout(base, source_order(len(sizes)))
                if not all(isinstance(extent, int) for extent in sizes):
                    sizes = self._sizes_of(tensor.base.shape)
            size = _Size(count, tensor.base.dtype, tensor.extents, layout, sizes)
            size = self._sizes[tensor] = self._distinct_sizes.setdefault(size, size)
        return size

    def _sizes_of(self, shape: ir.Shape | None) -> tuple[int, ...]:
        """The extents of a shape, with a size assumed for each symbolic dim."""
        dims = shape.dims if shape is not None else ()
        return tuple([self._elements(ir.Shape([*[1] * axis, dim])) for axis, dim in enumerate(dims)])

    def _ends(self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> int:
        """The tensor read in one format and written in another."""
        return self.bytes_of(tensor, source) + self.bytes_of(tensor, target)

    def _query(
        self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat, sizes: tuple[Extent, ...] | None = None
    ) -> ConversionQuery | None:
        return conversion_query(self._names, self._operands[tensor.base], source, target, sizes)

    def _stated(
        self, device: str, tensor: Tensor, source: MemoryFormat, target: MemoryFormat, by_number: bool = False
    ) -> int | None:
        """The backend's stated cost of one transpose, or of a conversion by its own operator. It is asked by the names
        of the axes and then by their numbers: a model whose axes have lost their names costs the same. A format may
        have too many dimensions for a layout, and its Transpose may not. `by_number`: it is one of several Transposes,
        between which no layout has names. None: the cost is the traffic."""
        backend, sizes = self._at[device], self._size_of(tensor).sizes
        query = self._query(tensor, source, target, sizes)
        if query is not None and not query.is_nameless and not by_number:
            own = conversion_of(backend, *query, tensor.base.name)
            if own is not None and own.cost is not None:
                return own.cost
            named = conversion_cost_of(backend, *query, tensor.base.name)
            if named is not None or own is not None:
                return named
        operand = self._operands[tensor.base]
        if operand is None:
            return None
        numbered = transpose_query(element_size(operand.value), tensor.extents, sizes, source, target)
        return None if numbered is None else conversion_cost_of(backend, *numbered, tensor.base.name)


def _prices_itself(backend: Backend) -> bool:
    kind = type(backend)
    return kind.conversion_cost is not Backend.conversion_cost or kind.conversion is not Backend.conversion


def _can_be_written(tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> bool:
    """Whether ONNX's operators can write the conversion: a Reshape must be able to split each tiled axis.

    Tiled axes have known extents, and all other extents can be read from the tensor at run time, unless one is 0.
    Reshape can infer one unknown extent per format, but the padding of an axis of unknown extent cannot be known.
    """
    if boxes_of(source) or boxes_of(target):
        return False  # only the backend understands a black box
    tiles = [a for a in (*source, *target) if not a.is_whole]
    if not tiles:
        return True
    if 0 in tensor.extents:
        return False
    if all(isinstance(tensor.extents[a.axis], int) for a in tiles):
        return True
    if any({a.axis for a in o} - {a.axis for a in o if not a.outer} for o in (source, target)):
        return False
    return all(sum(not isinstance(atom_extent(a, tensor.extents), int) for a in o) <= 1 for o in (source, target))
