"""The elements of a model's values as those of the original's, behind all views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from relayout.layout.relaid_constant import Step, noted_transform, transform_of
from relayout.model.dims.forced_dims import sizes_of_all_runs
from relayout.model.dims.formula import formula_names, formula_size
from relayout.ops.node_reader import constant_tensor
from relayout.verification.constant_data import array_of, data_of
from relayout.verification.counterparts import COPY, VIEWS, Counterparts, counterpart, source_name
from relayout.verification.memory_format import MemoryFormat, memory_format_of, whole
from relayout.verification.numeric.tolerance import difference
from relayout.verification.operator_facts import perm_of
from relayout.verification.order.digits import (
    Array,
    Digit,
    Digits,
    composed,
    elements_at,
    extent_of,
    grouped,
    normal,
    row_major,
)
from relayout.verification.relaid_data import bits_of

# Sizes for open dims: no two alike, with many divisors, for formulas divide them.
_PRIMES = tuple(n for n in range(7, 360) if all(n % divisor for divisor in range(2, min(n, 20))))
_DIVISORS = 240
_FIRST_OWN = 1009

# Operators whose results are floats, and jump.
_STEPPED = frozenset({"Ceil", "Floor", "Mod", "Round", "Sign"})

# The parts of an image, its axes cut into blocks, in the order that they have in the result.
_BLOCKS = {
    "DepthToSpace": {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)},
    "SpaceToDepth": {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)},
}

# Integers of these types may be a shape.
_OF_SHAPES = (ir.DataType.INT32, ir.DataType.INT64)

# Constants of more elements are not computed.
_MOST_COMPUTED = 1 << 24


class Elements(NamedTuple):
    """The elements of a value: for each of its dimensions the digits in the value of the original at the root."""

    root: ir.Value
    dims: tuple[Digits, ...]


class Operand(NamedTuple):
    """An operand of a node and that of its counterpart: the elements of both at one root, or, of constants, each at a
    root of its own, whose data is beside them, and `is_rounded` where both models compute it."""

    place: int
    read: tuple[Digits, ...]
    wanted: tuple[Digits, ...]
    data: tuple[Array, Array] | None = None
    is_rounded: bool = False

    def has_extents(self, found: Sequence[Digits], expected: Sequence[Digits]) -> bool:
        """Whether these dimensions have the same extents, or the operand as a whole has others."""
        sizes = [prod(map(extent_of, dims)) for dims in (self.read, self.wanted)]
        return [*map(extent_of, found)] == [*map(extent_of, expected)] or sizes[0] != sizes[1]

    def has(self, found: Sequence[Digits], expected: Sequence[Digits]) -> bool:
        """Whether the dimensions that are `found` in the operand have the elements of those that are `expected`, or
        other extents: an extent that is open in one of the models may be known in the other."""
        if [*map(extent_of, found)] != [*map(extent_of, expected)]:
            return True
        if self.data is None:
            return tuple(found) == tuple(expected)
        # The bits of a complex number are two integers, not an element each.
        are_numbers = self.is_rounded or self.data[0].dtype.kind == "c"
        arrays = self.data if are_numbers else map(bits_of, self.data)
        mine, theirs = (elements_at(data, dims) for data, dims in zip(arrays, (found, expected), strict=True))
        if self.is_rounded:
            return are_close(mine, theirs)
        return bool(np.array_equal(mine, theirs))


class ReadElements:
    """The elements that two models read and make, as far as they are known."""

    def __init__(self, pairs: Counterparts, opaque: Set[ir.Value]) -> None:
        self.pairs = pairs
        source = pairs.original.model
        sizes = _sizes(source.graph.inputs) | sizes_of_all_runs(source)
        self.theirs = OriginalElements(sizes, opaque)
        self.mine = ModelElements(sizes, opaque, self.theirs, pairs)
        self._constants = OriginalElements(sizes, opaque)
        self._arrays: dict[ir.Value, Array | None] = {}

    def operands(self, node: ir.Node, other: ir.Node) -> Iterator[Operand]:
        """The operands of which both are known."""
        for n, (value, source) in enumerate(zip(node.inputs, other.inputs, strict=False)):
            wanted = self.theirs[source] if source is not None else None
            if value is None or wanted is None:
                continue
            read = self.mine[value]
            placed = Operand(n, read.dims, wanted.dims) if read is not None and read.root is wanted.root else None
            if value in self.pairs.constants:
                read = self._constants[value]
                if all(each is not None and _is_filled(each.root) for each in (read, wanted)):
                    continue  # all elements are the same
                data = [self._data(each.root, each.dims) for each in (read, wanted) if each is not None]
                if read is not None and data[0] is not None and data[1] is not None and data[0].dtype == data[1].dtype:
                    is_rounded = all(constant_tensor(each.root) is None for each in (read, wanted))
                    constant = Operand(n, read.dims, wanted.dims, (data[0], data[1]), is_rounded)
                    if placed is not None and is_rounded and _are_decided(data[0], data[1], read.root):
                        constant = placed  # the views alone tell the order
                    yield constant
                if any(each is not None for each in data):
                    continue
            if placed is not None:
                yield placed

    def are_unknown(self, node: ir.Node, other: ir.Node) -> bool:
        """Whether the node reads data, or gives a result, whose elements are not known though the original's are."""
        read = zip(node.inputs, other.inputs, strict=False)
        for value, source in (*read, *zip(node.outputs, other.outputs, strict=False)):
            if value is None or source is None or value in self.pairs.constants or value.dtype in _OF_SHAPES:
                continue
            wanted = self.theirs[source]
            found = self.mine[value] if wanted is not None else None
            has_order = wanted is not None and max(map(extent_of, wanted.dims), default=1) > 1
            if has_order and (found is None or wanted is None or found.root is not wanted.root):
                return True
        return False

    def _data(self, root: ir.Value, dims: Iterable[Digits]) -> Array | None:
        """The data of a constant that no view makes; None where it is not known, or too much to compute."""
        size = prod(map(extent_of, dims))
        if root not in self._arrays:
            is_cheap = root in self.pairs.constants and (root.producer() is None or size <= _MOST_COMPUTED)
            data = data_of(root) if is_cheap else None
            self._arrays[root] = None if data is None else array_of(data)
        array = self._arrays[root]
        return array if array is not None and array.size == size else None

    def result(self, node: ir.Node, other: ir.Node) -> tuple[tuple[Digits, ...], tuple[int, ...]] | None:
        """The elements of a node's first result in that of its counterpart, whose shape is beside it."""
        found, shape = self.mine[node.outputs[0]], self.theirs.shape(other.outputs[0])
        return (found.dims, shape) if found and shape is not None and found.root is other.outputs[0] else None


class OriginalElements(dict[ir.Value, Elements | None]):
    """The elements of the original's values: those of a view in the value that it views. Those of `opaque` values are
    not known: their memory is in another order than their shape."""

    def __init__(self, sizes: Mapping[str, int], opaque: Set[ir.Value]) -> None:
        self._sizes, self._opaque = sizes, opaque
        self._own_sizes: dict[object, int] = {}

    def __missing__(self, value: ir.Value) -> Elements | None:
        path = []
        while value not in self and (source := _viewed(value)) is not None:
            path.append(value)
            value = source
        found = self[value] if value in self else self.setdefault(value, self.at_root(value))
        for each in reversed(path):
            found = self[each] = (found and self._view(each, found)) or self.at_root(each)
        return found

    def at_root(self, value: ir.Value) -> Elements | None:
        """The elements of a value that no view makes, or a view that cannot be followed."""
        shape = self.shape(value)
        return None if shape is None else Elements(value, tuple([normal([each]) for each in row_major(shape)]))

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The shape at the sizes; None where it, or the order of elements in it, is not known."""
        extents = self._extents(value)
        if extents is None:
            return None
        return tuple([self._own_size(value, axis) if each is None else each for axis, each in enumerate(extents)])

    def _extents(self, value: ir.Value) -> list[int | None] | None:
        """The extents at the sizes, None for one that they do not tell."""
        if value.shape is None or value in self._opaque:
            return None
        extents = [
            each if isinstance(each, int) else formula_size(str(each), self._sizes) if each.value else None
            for each in value.shape
        ]
        # An empty value has no elements to compare.
        return None if any(each is not None and each <= 0 for each in extents) else extents

    def _own_size(self, value: ir.Value, axis: int) -> int:
        """A size of its own for an extent that nothing tells, the same for all that have its name."""
        extent = value.shape[axis] if value.shape is not None else None
        name = str(extent) if isinstance(extent, ir.SymbolicDim) and extent.value else None
        key = name if name is not None else (value, axis)
        return self._own_sizes.setdefault(key, _DIVISORS * (_FIRST_OWN + 2 * len(self._own_sizes)))

    def _view(self, value: ir.Value, found: Elements) -> Elements | None:
        node, extents = value.producer(), self._extents(value)
        if node is None or extents is None:
            return None
        if node.op_type == "Transpose":
            perm = perm_of(node, len(extents))
            if sorted(perm) != [*range(len(found.dims))]:
                return None
            return found._replace(dims=tuple([found.dims[axis] for axis in perm]))
        if node.op_type in _BLOCKS:
            dims = _of_blocks(node, found.dims)
            return None if dims is None else found._replace(dims=dims)
        digits = [*chain.from_iterable(found.dims)]
        if extents.count(None) == 1:
            rest = prod(digit.extent for digit in digits) // prod(filter(None, extents))
            extents[extents.index(None)] = rest
        if None in extents or 0 in extents:
            return None
        dims = grouped(digits, [*filter(None, extents)])
        return None if dims is None else found._replace(dims=dims)


class ModelElements(OriginalElements):
    """The elements of the model's values in those of the original: those before a view lie as is stated."""

    def __init__(
        self, sizes: Mapping[str, int], opaque: Set[ir.Value], theirs: OriginalElements, pairs: Counterparts
    ) -> None:
        super().__init__(sizes, opaque)
        self.theirs, self._pairs = theirs, pairs
        self.outputs = frozenset(pairs.model.model.graph.outputs)
        """The values whose order a caller expects; a branch may have its output in any."""

    def at_root(self, value: ir.Value) -> Elements | None:
        found, extents = self.stated(value), self._extents(value)
        if found is None or extents is None or len(extents) != len(found.dims):
            return None
        known = zip(extents, found.dims, strict=True)
        return found if all(extent in (None, extent_of(dim)) for extent, dim in known) else None

    def mixed(self, value: ir.Value) -> Elements | None:
        """The elements before a view of known extents that cuts through an index, so that its result has them in no
        order of axes; None for any other value."""
        source, extents = _viewed(value), self._extents(value)
        found = self[source] if source is not None else None
        if found is None or extents is None or not (value.shape and value.shape.is_static()):
            return None
        is_same = prod(filter(None, extents)) == prod(map(extent_of, found.dims))
        return found if is_same and self._view(value, found) is None else None

    def stated(self, value: ir.Value) -> Elements | None:
        """The elements of a value by its annotation, which its shape may not fit; None where they are not known."""
        graph = self._pairs.graphs.get(value.graph) if value.graph is not None else None
        scope = self._pairs.scopes[graph] if graph is not None else {}
        source = counterpart(value, scope)
        is_copy = source is None
        source = source or scope.get(COPY.sub("", source_name(value)))
        elements = self.theirs[source] if source is not None else None
        if source is None or elements is None:
            return None
        shape = tuple(map(extent_of, elements.dims))
        format_ = memory_format_of(value)
        if format_ is None and value in self._pairs.constants:
            # A constant notes steps, and one that is computed in another order, under a name of its own, notes nothing.
            steps = None if is_copy and value.const_value is None else _steps(value, source)
            dims = None if steps is None else _after(steps, elements.dims)
            return None if dims is None else elements._replace(dims=dims)
        if format_ is None and is_copy:
            return None  # a copy in another order, which nothing states
        format_ = _counted_in(source, format_ or whole(range(len(shape))))
        dims = None if format_ is None else _in_format(format_, shape)
        found = None if dims is None else composed(dims, elements.dims)
        return None if found is None else Elements(elements.root, found)


def _steps(value: ir.Value, source: ir.Value) -> Sequence[Step] | None:
    """The steps from one constant to another; None where they are not known."""
    steps, earlier = (noted_transform(each) or transform_of(each.const_value) for each in (value, source))
    return steps[len(earlier) :] if steps[: len(earlier)] == earlier else None


def _after(steps: Iterable[Step], dims: tuple[Digits, ...]) -> tuple[Digits, ...] | None:
    """The digits of a constant after steps; None where they fill up or crop."""
    for step in steps:
        if step["op"] == "transpose" and sorted(step["perm"]) == [*range(len(dims))]:
            dims = tuple([dims[axis] for axis in step["perm"]])
        elif step["op"] == "reshape" and (pieces := grouped([*chain.from_iterable(dims)], step["shape"])) is not None:
            dims = pieces
        else:
            return None
    return dims


def are_close(found: Array, expected: Array) -> bool:
    """Whether arrays have the same numbers, but for the rounding of operators that sum in another order."""
    return difference("", [[expected]], [[found]], quantized=False).passed


def _are_decided(found: Array, expected: Array, value: ir.Value) -> bool:
    """Whether a rounding may have decided a comparison in the computation of `value`, `found`: the numbers are others
    than those `expected`, in whatever order, and an operator on the way has steps."""
    return not are_close(np.sort(found, None), np.sort(expected, None)) and any(map(_has_steps, _producers(value)))


def _producers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that compute a value, each once."""
    seen, pending = set[ir.Node](), [value]
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [each for each in node.inputs if each is not None]
            yield node


def _has_steps(node: ir.Node) -> bool:
    kinds = [each.dtype for each in (node.inputs[0] if node.inputs else None, node.outputs[0]) if each is not None]
    is_float = [kind is None or kind.is_floating_point() for kind in kinds]
    return node.op_type in _STEPPED or is_float == [True, False]


def is_view(node: ir.Node) -> bool:
    """Whether the result has the elements of the first operand, in another order or shape."""
    return (node.op_type in VIEWS or node.op_type in _BLOCKS) and node.domain == ""


def _of_blocks(node: ir.Node, dims: Sequence[Digits]) -> tuple[Digits, ...] | None:
    """The digits of an image behind a SpaceToDepth or DepthToSpace; None where the blocks do not divide it."""
    size, mode = node.attributes.get_int("blocksize", 0), node.attributes.get_string("mode", "DCR")
    perm = _BLOCKS[node.op_type].get(str(mode))
    if not size or perm is None or len(dims) != 4:
        return None
    batch, channels, rows, columns = map(extent_of, dims)
    if node.op_type == "SpaceToDepth":
        shape, counts = (batch, channels, rows // size, size, columns // size, size), (1, 3, 1, 1)
    else:
        parts = (size, size, channels // size**2) if mode == "DCR" else (channels // size**2, size, size)
        shape, counts = (batch, *parts, rows, columns), (1, 1, 2, 2)
    pieces = grouped([*chain.from_iterable(dims)], shape)
    moved = iter([pieces[place] for place in perm] if pieces is not None else ())
    return pieces and tuple([normal(chain.from_iterable(islice(moved, count))) for count in counts])


def _is_filled(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "ConstantOfShape" and node.domain == ""


def _viewed(value: ir.Value) -> ir.Value | None:
    """The value of which this one has the elements, where a view makes it."""
    node = value.producer()
    return node.inputs[0] if node is not None and is_view(node) and node.inputs else None


def _sizes(values: Iterable[ir.Value]) -> dict[str, int]:
    dims = [dim.value for value in values for dim in value.shape or () if not isinstance(dim, int) and dim.value]
    names = {name for dim in dims for name in formula_names(dim) or ()}
    return {name: _DIVISORS * prime for name, prime in zip(sorted(names), _PRIMES, strict=False)}


def _in_format(format_: MemoryFormat, shape: Sequence[int]) -> tuple[Digits, ...] | None:
    """The digits of a value in this format, in its source of this shape; None with padding."""
    if format_.fault(shape) is not None or any(format_.reach(axis, n) != n for axis, n in enumerate(shape)):
        return None
    steps = row_major(shape)
    return tuple(
        [
            tuple(
                [
                    Digit((atom.outer or shape[atom.axis]) // atom.inner, steps[atom.axis].stride * atom.inner)
                    for atom in group
                    if shape[atom.axis] != 1
                ]
            )
            for group in format_.dims
        ]
    )


def _counted_in(source: ir.Value, format_: MemoryFormat) -> MemoryFormat | None:
    """The annotated format with its axes counted as they lie in the original's value. If the original is itself a legal
    model, annotations are relative to that one's source. None where the order of the value's axes is not known."""
    earlier = memory_format_of(source)
    if earlier is None:
        return format_
    places = {axis: place for place, axis in enumerate(earlier.permutation or ())}
    if not {atom.axis for group in format_.dims for atom in group} <= places.keys():
        return None
    dims = [tuple([atom._replace(axis=places[atom.axis]) for atom in group]) for group in format_.dims]
    return MemoryFormat(tuple(dims))
