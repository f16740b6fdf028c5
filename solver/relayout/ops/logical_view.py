"""The view of an operator of the domain `relayout` as ONNX's own (see `relayout.ops.logical_node`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.ops.operand_roles import LAYOUT_ATTRIBUTES, input_role, letters_of_role, own_layout, result_role


def logical_view(node: ir.Node) -> LogicalNode:
    """The logical node of an operator of the domain `relayout`. Raises InputError for an invalid layout attribute."""
    inputs = [_logical(node, value, input_role(node, n), is_result=False) for n, value in enumerate(node.inputs)]
    outputs = [_logical(node, value, result_role(node, n), is_result=True) for n, value in enumerate(node.outputs)]
    return LogicalNode(node, inputs, [value for value in outputs if value is not None])


class LogicalNode(ir.Node):
    """A view of `written`: it is in no graph's list of nodes, and its operands do not list it among their users.
    `hides_layouts`: its operands count as lying in ONNX's order."""

    def __init__(self, written: ir.Node, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> None:
        kept = [each for name, each in written.attributes.items() if name not in LAYOUT_ATTRIBUTES]
        super().__init__("", written.op_type, (), kept, num_outputs=0, name=written.name)
        self.written = written
        self.hides_layouts = False
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._metadata_props = written.metadata_props
        self._graph = written.graph


def _of_written(method: str) -> Callable[[_LogicalValue], Any]:
    return lambda value: getattr(value._written, method)()


class _LogicalValue(ir.Value):
    """A view of an operand in the order of axes that ONNX gives it. Its producer, users and place are the operand's."""

    def __init__(self, written: ir.Value, layout: Layout, letters: str) -> None:
        shape = _logical_shape(written, layout, letters)
        super().__init__(name=written.name, shape=shape, type=written.type, metadata_props=written.metadata_props)
        self._written = written
        constant = written.const_value
        if constant is not None and shape is not None:
            numbers = partial(_numbers, constant, layout, letters, shape)
            self._const_value = ir.LazyTensor(numbers, dtype=constant.dtype, shape=shape, name=written.name)

    producer = _of_written("producer")
    uses = _of_written("uses")
    consumers = _of_written("consumers")
    index = _of_written("index")
    is_graph_input = _of_written("is_graph_input")
    is_graph_output = _of_written("is_graph_output")
    is_initializer = _of_written("is_initializer")


def _logical(node: ir.Node, value: ir.Value | None, role: str, *, is_result: bool) -> ir.Value | None:
    letters = letters_of_role(node, role)
    if value is None or letters is None:
        return value
    layout = own_layout(node, role, len(letters), is_result=is_result)
    return value if layout.is_any or str(layout) == letters else _LogicalValue(value, layout, letters)


def _numbers(constant: ir.TensorProtocol, layout: Layout, letters: str, shape: ir.Shape) -> ir.Tensor[Any]:
    """A constant in ONNX's order: the tiles of each axis joined, without padding."""
    array = constant.numpy()
    dims = [_dims_of(layout, letter) for letter in letters]
    joined = array.transpose([i for own in dims for i in own])
    joined = joined.reshape([prod(array.shape[i] for i in own) for own in dims])
    return ir.Tensor(np.ascontiguousarray(joined[tuple(slice(extent) for extent in shape.numpy())]))


def _logical_shape(value: ir.Value, layout: Layout, letters: str) -> ir.Shape | None:
    """The shape in ONNX's order; None where the rank is unknown or the layout does not fit."""
    if value.shape is None or len(value.shape) != layout.rank:
        return None
    extents: list[int | ir.SymbolicDim] = []
    for letter in letters:
        dims = _dims_of(layout, letter)
        own = [value.shape[i] for i in dims]
        if not own:
            return None
        if len(own) == 1:
            extents.append(own[0])
            continue
        known = [extent for extent in own if isinstance(extent, int)]
        if len(known) < len(own):
            extents.append(ir.SymbolicDim(None))
            continue
        padding = layout.attribute(dims[0], "pad")
        zeros = int(padding) if padding is not None and padding.isdecimal() else 0
        extents.append(prod(known) - zeros)
    return ir.Shape(extents)


@lru_cache(maxsize=1024)
def _dims_of(layout: Layout, letter: str) -> tuple[int, ...]:
    """The dimensions of an axis, outermost first."""
    place = layout.names.find(letter)
    return () if place < 0 else (place, *[i for i in range(layout.rank) if layout.outer(i) == place])
