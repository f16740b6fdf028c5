"""Sizes of tensors in elements and bytes, symbolic dims estimated.

A dim that the caller gave a size has that size. Of the others, the first dim of a graph input (in the source's order)
is a batch and counts 1. A dim that a Reshape or the like introduces has the size that the operand leaves for it. Any
other counts 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.layout.metadata_keys import ORDER_KEY
from relayout.ops import all_nodes

__all__ = ["BATCH", "DYNAMIC", "elements_of", "padded_elements", "price_dims", "tensor_bytes"]

BATCH = 1
DYNAMIC = 64

_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def price_dims(model: ir.Model, dims: Mapping[str, int]) -> Callable[[ir.Shape | None], int]:
    """Return a function from a shape to its number of elements; `dims` has the sizes of symbols by name.

    A shape of unknown rank counts as one dynamic dim.
    """
    sizes: dict[str | None, int] = {}
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) > 0 and not isinstance(first := _first(value), int):
            sizes[first.value] = BATCH
    unnamed_batch = sizes.pop(None, DYNAMIC)
    sizes.update(dims)

    def extent(dim: int | ir.SymbolicDim, axis: int) -> int:
        if isinstance(dim, int):
            return dim
        if dim.value is None:
            return unnamed_batch if axis == 0 else DYNAMIC
        known = sizes.get(dim.value)
        return known if known is not None else _expression(dim, sizes)

    def elements(shape: ir.Shape | None) -> int:
        if shape is None:
            return DYNAMIC
        count = 1
        for axis, dim in enumerate(shape.dims):
            count *= extent(dim, axis)
        return count

    _size_reshaped(model, sizes, elements)
    return elements


def _size_reshaped(model: ir.Model, sizes: dict[str | None, int], elements: Callable[[ir.Shape | None], int]) -> None:
    """Add the sizes of symbols that a reshape introduces: its result has as many elements as its operand."""
    seen = {name for value in model.graph.inputs for name in _names(value.shape)} | sizes.keys()
    for node in all_nodes(model.graph):
        for value in node.outputs:
            names = _names(value.shape)
            if not names:
                continue
            new = [name for name in names if name not in seen]
            seen.update(new)
            source = node.inputs[0] if node.op_type in _RESHAPES and node.inputs else None
            if len(new) != 1 or source is None or source.shape is None or value.shape is None:
                continue
            (name,) = new
            read = elements_of(source, elements)
            rest = elements(
                ir.Shape([1 if not isinstance(dim, int) and dim.value == name else dim for dim in value.shape])
            )
            if name.isidentifier() and rest and read % rest == 0:
                sizes[name] = read // rest


def elements_of(value: ir.Value, elements: Callable[[ir.Shape | None], int]) -> int:
    """How many elements a value has. Where a dim has neither number nor name, and the value is reshaped from another,
    it has as many as that one."""
    while (node := value.producer()) is not None and node.op_type in _RESHAPES and node.inputs[0] is not None:
        if value.shape is not None and all(isinstance(dim, int) or dim.value is not None for dim in value.shape):
            break
        value = node.inputs[0]
    return elements(value.shape)


def _names(shape: ir.Shape | None) -> list[str]:
    if shape is None:
        return []
    return [dim.value for dim in shape.dims if not isinstance(dim, int) and dim.value is not None]


def _first(value: ir.Value) -> int | ir.SymbolicDim:
    """The input's first dim in the source's order: the annotation of a permuted input has its order."""
    shape = value.shape
    assert shape is not None
    order = value.metadata_props.get(ORDER_KEY, "").split(",")
    return shape[order.index("0")] if len(order) == len(shape) and "0" in order else shape[0]


def tensor_bytes(elements: int, dtype: ir.DataType | None) -> int:
    """Return the bytes of `elements` elements of `dtype`; an element of unknown type or of a string counts 4 bytes."""
    if dtype is None or dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 4 * elements
    return (elements * dtype.bitwidth + 7) // 8


def padded_elements(elements: int, format_: MemoryFormat, extents: Sequence[Extent]) -> int:
    """How many elements a tensor of `elements` has in a format that pads some of its axes with zeros.

    >>> from relayout.layout.memory_format import Atom
    >>> padded_elements(2 * 24, (Atom(0), Atom(1, 1, 32)), (2, 24))
    64
    """
    reached: dict[int, int] = {}
    for atom in format_:
        extent = extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent:
            reached[atom.axis] = max(atom.outer, reached.get(atom.axis, 0))
    for axis, reach in reached.items():
        extent = extents[axis]
        assert isinstance(extent, int)
        elements = elements // extent * reach if extent else 0
    return elements


def _expression(dim: ir.SymbolicDim, sizes: Mapping[str | None, int]) -> int:
    """Return the extent of a dim such as `2*height`, or the dynamic default where it is a mere name."""
    if dim.value is None or dim.value.isidentifier():
        return DYNAMIC
    try:
        names = dim.free_symbols()
        result = dim.evaluate({name: sizes.get(name, DYNAMIC) for name in names})
    except Exception:  # exporters write any text into dim_param, and parsers raise errors of several types
        return DYNAMIC
    return result if isinstance(result, int) and result >= 0 else DYNAMIC
