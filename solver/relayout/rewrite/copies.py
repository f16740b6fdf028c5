"""The values of the legal model by tensor, format and device, and the Reshapes between the shapes of one format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import onnx_ir as ir

from relayout.candidates.tensors import Operand, Tensor
from relayout.errors import InternalError
from relayout.formulate.plan import PlannedTransfer
from relayout.layout.conversion import Dims, dims_shape
from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.layout.terms import GENERATED
from relayout.model.emit import Emitter, Physical, same_but_leading_units

_Key = tuple[Tensor, MemoryFormat, str]


def stem_of(tensor: Tensor) -> str:
    """The prefix of the names of a tensor's copies."""
    return tensor.base.name or "value"


class Copies:
    """The values of the legal model by tensor, format and device; one format may have values of several shapes.

    Values are read and added at the current `device`. A transferred copy is there as the values that were added at the
    device that it comes from, without the Reshapes of that device's consumers.
    """

    def __init__(
        self, emitter: Emitter, operands: Iterable[Operand | None], transfers: Iterable[PlannedTransfer]
    ) -> None:
        self.device = ""
        self._emitter = emitter
        self._sources = {(each.tensor, each.format, each.target): each.source for each in transfers}
        # Shapes whose extents are all known, which values share.
        self._static: dict[int, ir.Shape] = {}
        self._symbols: dict[tuple[Tensor, MemoryFormat], str] = {}
        # Values of one shape share a view.
        symbols: dict[int, list[tuple[MemoryFormat, str]]] = {}
        for operand in operands:
            if operand is None:
                continue
            named = symbols.get(id(operand.view))
            if named is None:
                axes = zip(operand.view.axes, operand.view.extents, strict=True)
                named = symbols[id(operand.view)] = [
                    (group, extent) for group, extent in axes if isinstance(extent, str)
                ]
            for group, extent in named:
                self._symbols[operand.tensor, group] = extent
        self._known: dict[_Key, tuple[Physical, ...]] = {}
        self._added: dict[_Key, tuple[Physical, ...]] = {}
        self._unused: Iterator[str] | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context at whose end the values added in it are forgotten."""
        outer = self._known, self._added
        self._known, self._added = {**self._known}, {**self._added}
        yield
        self._known, self._added = outer

    def add(self, tensor: Tensor, format_: MemoryFormat, *physical: Physical, emitted: bool = False) -> None:
        """Register these values for the tensor in this format; the first is read where the shape does not matter.
        `emitted`: they are results of conversions, not values of the source."""
        key = tensor, format_, self.device
        self._known[key] = physical
        if self._sources:
            self._added[key] = physical
        for each in physical:
            self.name_dims(tensor, each, emitted=emitted)

    def has(self, tensor: Tensor, format_: MemoryFormat) -> bool:
        """Whether the tensor has this format at the current device."""
        return self._find(tensor, format_) is not None

    def first(self, tensor: Tensor, format_: MemoryFormat) -> Physical:
        return self._of(tensor, format_)[0]

    def read(self, tensor: Tensor, format_: MemoryFormat, dims: Dims, *, stem: str, most: int = 0) -> Physical:
        """The tensor in this format with these dimensions; a Reshape is emitted if no value has them yet. A value with
        additional leading unit dimensions, up to `most` dimensions, is accepted."""
        known = self._of(tensor, format_)
        for physical in known:
            if physical.shape is not None:
                continue
            if physical.dims == dims:
                return physical
            if len(dims) < len(physical.dims) <= most and same_but_leading_units(physical.dims, dims):
                return physical
        alike = _of_shape(known, dims_shape(dims, tensor.extents), tensor.extents)
        if alike is not None:
            return Physical(alike, dims)
        plain = next((physical for physical in known if physical.shape is None), known[0])
        physical = plain
        for physical in self._emitter.on_the_way(plain, dims, tensor.extents, f"{stem}_view"):
            self.name_dims(tensor, physical, emitted=True)
        self._known[tensor, format_, self.device] = (*known, physical)
        return physical

    def name_dims(self, tensor: Tensor, physical: Physical, *, emitted: bool) -> None:
        """Name the dims of unknown extent as a view of the tensor names them. Shape inference propagates the names.

        It generates names for the other dims of a conversion's result, which so get them here: those that a second run
        reads.
        """
        shape = physical.value.shape
        if shape is None or id(shape) in self._static:
            return
        if physical.shape is not None:
            self._emitter.know(physical.value)
            return
        if shape.is_static():
            self._static[id(shape)] = shape
            return
        dims: list[ir.SymbolicDim | str | int | None] = []
        for group, dim in zip(physical.dims, shape, strict=True):
            if isinstance(dim, int) or dim.value is not None:
                dims.append(dim)
                continue
            if emitted and (tensor, group) not in self._symbols:
                self._symbols[tensor, group] = self._unused_symbol()
            dims.append(self._symbols.get((tensor, group)))
        physical.value.shape = ir.Shape(dims)
        self._emitter.know(physical.value)

    def _unused_symbol(self) -> str:
        if self._unused is None:
            taken = " ".join(self._symbols.values())
            self._unused = (name for n in count() if (name := f"{GENERATED}{n}") not in taken)
        return next(self._unused)

    def read_as(
        self, tensor: Tensor, format_: MemoryFormat, dims: Dims, shape: Sequence[Extent], *, stem: str
    ) -> Physical:
        """The tensor in this format as a value of `shape`, which need not match its dimensions."""
        known = self._of(tensor, format_)
        for physical in known:
            if physical.shape == tuple(shape):
                return physical
        alike = _of_shape(known, shape, tensor.extents)
        if alike is not None:
            return Physical(alike, dims, tuple(shape))
        plain = self.read(tensor, format_, dims, stem=stem)
        physical = self._emitter.shaped(plain, tuple(shape), tensor.extents, f"{stem}_as")
        self._known[tensor, format_, self.device] = (*self._of(tensor, format_), physical)
        return physical

    def aliased_shape(self, tensor: Tensor, format_: MemoryFormat) -> tuple[Extent, ...] | None:
        """The shape of a value whose dimensions are not those of its format, if there is one."""
        return next((p.shape for p in self._find(tensor, format_) or () if p.shape is not None), None)

    def _find(self, tensor: Tensor, format_: MemoryFormat) -> tuple[Physical, ...] | None:
        key = tensor, format_, self.device
        known = self._known.get(key)
        if known is None and key in self._sources:
            sent = self._added.get((tensor, format_, self._sources[key]))
            if sent is not None:
                known = self._known[key] = sent
        return known

    def _of(self, tensor: Tensor, format_: MemoryFormat) -> tuple[Physical, ...]:
        known = self._find(tensor, format_)
        if known is None:
            raise InternalError(f"tensor '{tensor.base.name}' is read in a format that nothing produces")
        return known


def _of_shape(known: Sequence[Physical], shape: Sequence[Extent], extents: tuple[Extent, ...]) -> ir.Value | None:
    """The value of this shape among these aliases of one memory. All extents must be known; values of equal shape are
    then interchangeable, whatever their dimensions mean."""
    if None in shape:
        return None
    wanted = tuple(shape)
    for physical in known:
        own = physical.shape if physical.shape is not None else dims_shape(physical.dims, extents)
        if own == wanted:
            return physical.value
    return None
