"""Checks of shapes that onnx's inference does not make (measured with onnx 1.23).

Each operator has one function, which returns the expectation and the finding if they differ. Unknown extents are
not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx_ir as ir

from relayout.errors import InputError

FIRST_RESIZE_OF_SIZES = 11
"""The first opset in which a Resize has a region, and scales or sizes."""

Shape = list[int | None]
Fault = tuple[str, str] | None


def check_shapes(graphs: Iterable[ir.Graph]) -> None:
    """Raise InputError for the first node whose operands do not fit it."""
    for graph in graphs:
        # Networks repeat their nodes: those that share the shapes and attributes are checked once.
        checked: set[tuple[object, ...]] = set()
        for node in graph:
            operator = node.op_type
            if operator not in _CHECKS or node.domain != "":
                continue
            values = [*node.inputs, node.outputs[0]] if node.outputs else []
            shared = [id(each) for each in node.attributes.data.values()]
            key = operator, *shared, *[id(value.shape) if value is not None else 0 for value in values]
            if key in checked:
                continue
            checked.add(key)
            shapes = [_shape(value) for value in node.inputs]
            is_known = bool(shapes) and (shapes[0] is not None or operator == "Transpose")
            fault = _CHECKS[operator](node, shapes) if is_known else None
            if fault is not None:
                raise InputError(
                    "shapes contradict each other",
                    where=f"graph '{graph.name}', node '{node.name}' ({node.op_type}) of '{node.outputs[0].name}'",
                    expected=fault[0],
                    found=fault[1],
                )


def _transpose(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    """A perm is that of axes also where no shape is known, or that of the result alone."""
    perm, result = node.attributes.get_ints("perm"), _shape(node.outputs[0])
    if perm is None:
        return None
    for shape in (shapes[0], result, perm):
        if shape is not None and sorted(perm) != list(range(len(shape))):
            return f"a permutation of {len(shape)} axes", f"perm {list(perm)}"
    return None


def _convolution(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    x, weight, group = shapes[0] or [], shapes[1], node.attributes.get_int("group", 1)
    if weight is None:
        return None
    if len(weight) != len(x):
        return f"a kernel of {len(x)} dimensions", f"{len(weight)}"
    channels, of_kernel = x[1], weight[0 if node.op_type == "ConvTranspose" else 1]
    if group < 1 or (node.op_type == "ConvTranspose" and channels is not None and channels % group):
        return "channels in equal groups", f"{channels} channels in {group} groups"
    wanted = of_kernel if of_kernel is None or node.op_type == "ConvTranspose" else of_kernel * group
    if channels is None or wanted is None or channels == wanted:
        return None
    return f"{wanted} input channels, as the kernel has", f"{channels}"


def _reshape(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    before, after = shapes[0] or [], _shape(node.outputs[0])
    if after is None:
        return None
    one, other = (None if None in shape else math.prod(e for e in shape if e is not None) for shape in (before, after))
    if one is None or other is None or one == other:
        return None
    return f"as many elements as {before} has", f"{after}"


def _blocks(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    x, block = shapes[0] or [], node.attributes.get_int("blocksize", 1)
    divided = [(x[1:2], block * block)] if node.op_type == "DepthToSpace" else [(x[2:4], block)]
    for extents, divisor in divided:
        if block < 1 or any(extent is not None and extent % divisor for extent in extents):
            return f"extents that {divisor} divides", f"{x}"
    return None


def _from_axis(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    rank, axis = len(shapes[0] or []), node.attributes.get_int("axis", -1)
    return None if -rank <= axis < max(rank, 1) else (f"an axis of {rank} dimensions", f"axis {axis}")


def _slice(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    bounds = [shape for shape in shapes[1:] if shape is not None]
    counts = {shape[0] for shape in bounds if len(shape) == 1} - {None}
    if all(len(shape) == 1 for shape in bounds) and len(counts) < 2:
        return None
    return "starts, ends, axes and steps in vectors of one length", f"shapes {', '.join(map(str, bounds))}"


def _resize(node: ir.Node, shapes: list[Shape | None]) -> Fault:
    """onnx looks for scales and sizes from opset 19 on."""
    opset = node.graph.opset_imports.get("", 0) if node.graph is not None else 0
    given = [n for n in (2, 3) if n < len(shapes) and node.inputs[n] is not None and 0 not in (shapes[n] or ())]
    if opset < FIRST_RESIZE_OF_SIZES or given:
        return None
    return "scales as input 2, or sizes as input 3", "neither"


_CHECKS: dict[str, Callable[[ir.Node, list[Shape | None]], Fault]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "DepthToSpace": _blocks,
    "Flatten": _reshape,
    "LayerNormalization": _from_axis,
    "Reshape": _reshape,
    "Resize": _resize,
    "SimplifiedLayerNormalization": _from_axis,
    "Slice": _slice,
    "SpaceToDepth": _blocks,
    "Transpose": _transpose,
}


def _shape(value: ir.Value | None) -> Shape | None:
    if value is None or value.shape is None:
        return None
    return [extent if isinstance(extent, int) else None for extent in value.shape.dims]
