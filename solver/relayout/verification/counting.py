"""The verifier's own count of a graph's transposes and bytes, which a report is compared with.

An extent that is not known before the run counts 64. It counts 1 where it is a batch, the first axis of a graph input.
One that a view op with a result of known extents allows one size only has that size.
Where a formula of such extents would be 0, they count the first of the usual sizes with which none is.
The first extent of a view op's result counts the remaining elements of the operand, one of a Slice, Pad or pool as much
as the operand's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import pairwise

import onnx_ir as ir

from relayout.layout.metadata_keys import CONVERSION_KEY, ORDER_KEY
from relayout.layout.terms import factors_of, term_of
from relayout.model.dims.formula import formula_names, formula_size
from relayout.report.schema import Totals
from relayout.verification.constants import constants_of
from relayout.verification.operator_facts import perm_of
from relayout.verification.subgraph_values import walk

_UNKNOWN = 64
_USUAL = (128, 224, 256, 384, 512, 1024, 2048, 4096)
_KEEP_ELEMENTS = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_KEEP_PLACES = ("AveragePool", "LpPool", "MaxPool", "Pad", "Slice")

Dim = int | ir.SymbolicDim
ExtentOf = Callable[[Dim], int]
"""The size of a dim."""


def count(model: ir.Model, dims: Mapping[str, int], conversion_operators: Set[tuple[str, str]] = frozenset()) -> Totals:
    """Count nodes, transposes of data, the bytes that these read and write, and the backend's own conversion operators.

    Local functions count once a call, but those of the domain `relayout`, which are one operator each.
    """
    whole = model
    if any(domain != "relayout" for domain, _, _ in model.functions):
        from onnx_ir.passes.common import InlinePass, ShapeInferencePass

        model = model.clone()
        InlinePass(criteria=lambda function: function.domain != "relayout")(model)
        ShapeInferencePass()(model)
    extent_of, constants = extent_counter(model, dims), constants_of(model.graph)
    nodes = list(walk(model.graph))
    transposes = [n for n in nodes if _is_transpose(n)]
    running = [2 * moved_bytes(n, extent_of) for n in transposes if n.inputs[0] not in constants]
    reorders = [_through(n, extent_of) for n in nodes if (n.domain, n.op_type) in conversion_operators]
    marked = [n for n in nodes if n.op_type in ("Pad", "Slice") and CONVERSION_KEY in n.metadata_props]
    pads = [_through(n, extent_of) for n in marked if n.inputs[0] not in constants]
    return Totals(
        nodes=sum(node.op_type != "Constant" for node in nodes),
        transposes=len(running),
        bytes=sum(running),
        reorders=len(reorders),
        reorder_bytes=sum(reorders),
        pads=len(pads),
        pad_bytes=sum(pads),
        transposes_in_file=_stored(whole.graph) + sum(_stored(each.graph) for each in whole.functions.values()),
        transposes_of_constants=len(transposes) - len(running),
        transposes_in_functions=sum(_stored(each.graph) for each in model.functions.values()),
        transposes_of_units=sum(not moved for moved in running),
    )


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and node.domain == "" and node.inputs[0] is not None


def _stored(graph: ir.Graph | ir.Function) -> int:
    return sum(_is_transpose(node) for node in graph.all_nodes())


def _through(node: ir.Node, extent_of: ExtentOf) -> int:
    """The bytes of the first operand and the first result."""
    return sum(bytes_of(value, extent_of) for value in (node.inputs[0], node.outputs[0]) if value is not None)


def bytes_of(value: ir.Value, extent_of: ExtentOf) -> int:
    """The bytes of a value; an element of unknown type, or a string, counts four."""
    elements = _UNKNOWN if value.shape is None else math.prod(map(extent_of, value.shape))
    is_sized = value.dtype is not None and value.dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
    return -(-elements * value.dtype.bitwidth // 8) if is_sized and value.dtype is not None else 4 * elements


def extent_counter(model: ir.Model, dims: Mapping[str, int], nodes: Iterable[ir.Node] | None = None) -> ExtentOf:
    """The sizes of the extents of a model; `dims` has sizes by name. `nodes` are its nodes, each before those inside
    it, where the caller has them."""
    first = [value.shape[_batch(value)] for value in model.graph.inputs if value.shape]
    batches = [dim.value for dim in first if not isinstance(dim, int) and dim.value is not None]
    nodes = list(model.graph.all_nodes() if nodes is None else nodes)
    sizes = dict.fromkeys(batches, 1) | determined_sizes(model.graph.inputs, nodes) | {**dims}
    sizes |= _raised(model.graph.inputs, nodes, sizes)
    formulas: dict[str, int] = {}

    def extent_of(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim.value is None:
            return _UNKNOWN
        if dim.value in sizes:
            return sizes[dim.value]
        if dim.value not in formulas:
            factor, names = term_of(dim.value)
            if names != (dim.value,):
                formulas[dim.value] = int(factor * math.prod(extent_of(ir.SymbolicDim(name)) for name in names))
            else:
                found = formula_size(dim.value, sizes, _UNKNOWN)
                formulas[dim.value] = found if found is not None and found >= 0 else _UNKNOWN
        return formulas[dim.value]

    met = {*sizes, *(name for value in model.graph.inputs for name in _names(value))}
    # Values share shapes, and a shape that was met has no new name.
    shapes: set[int] = set()
    for node in nodes:
        for value in node.outputs:
            shape = id(value.shape)
            if shape in shapes:
                continue
            shapes.add(shape)
            new = [name for name in _names(value) if name not in met]
            if not new:
                continue
            met.update(new)
            if node.op_type in _KEEP_PLACES:
                plain = {name for name in new if name.isidentifier()}
                sizes.update(_copied(node.inputs[0], value, plain, extent_of))
                formulas.clear()
                continue
            read = node.inputs[0] if node.inputs and node.op_type in _KEEP_ELEMENTS else None
            if read is None or read.shape is None or value.shape is None:
                continue
            # A formula of names that were met has their size.
            open_ = sorted(name for name in new if name.isidentifier())
            others = [dim for dim in value.shape if _name(dim) not in open_]
            if not open_ or len(others) + len(open_) != len(value.shape):
                continue
            whole = math.prod(map(extent_of, read.shape))
            rest = math.prod(map(extent_of, others))
            if rest and whole % rest == 0:
                sizes.update(zip(open_, factors_of(whole // rest, len(open_)), strict=True))
            formulas.clear()
    return extent_of


def determined_sizes(inputs: Iterable[ir.Value], nodes: Iterable[ir.Node]) -> dict[str, int]:
    """The extents of inputs that the elements of a view op's result leave one size."""
    names = {name for value in inputs for name in _names(value)}
    sizes: dict[str, set[int]] = {}
    for node in nodes:
        if not names or node.op_type not in _KEEP_ELEMENTS or not node.inputs or node.inputs[0] is None:
            continue
        before, after = node.inputs[0].shape, node.outputs[0].shape
        if before is None or after is None or not all(isinstance(dim, int) for dim in after):
            continue
        known = [dim for dim in before if isinstance(dim, int)]
        (name, *others) = [_name(dim) for dim in before if not isinstance(dim, int)] or [None]
        if name in names and name is not None and not others:
            whole, part = math.prod(dim for dim in after if isinstance(dim, int)), math.prod(known)
            if whole and part and not whole % part:
                sizes.setdefault(name, set()).add(whole // part)
    return {name: min(each) for name, each in sizes.items()}


def _raised(inputs: Iterable[ir.Value], nodes: Iterable[ir.Node], sizes: Mapping[str, int]) -> dict[str, int]:
    """The extents of inputs that count more than 64, for formulas that would be 0."""
    asked = {name for value in inputs for name in _names(value)} - sizes.keys()
    if not asked:
        return {}
    dims = {name for node in nodes for value in node.outputs for name in _names(value) if not name.isidentifier()}
    raised: dict[str, int] = {}
    for size in _USUAL:
        vanish = {name for name in dims if _vanishes(name, {**sizes, **dict.fromkeys(asked, _UNKNOWN), **raised})}
        if not vanish:
            return raised
        for name in vanish:
            raised |= dict.fromkeys((formula_names(name) or frozenset()) & asked, size)
    return {}


def _vanishes(formula: str, sizes: Mapping[str, int]) -> bool:
    """Whether a formula of these sizes alone is below 1."""
    size = formula_size(formula, sizes)
    return size is not None and size < 1


def _copied(read: ir.Value | None, made: ir.Value, new: set[str], extent_of: ExtentOf) -> dict[str, int]:
    """The new names of a result, with the extents of the operand in the same places."""
    if read is None or read.shape is None or made.shape is None or len(read.shape) != len(made.shape):
        return {}
    found = {}
    for before, after in zip(read.shape, made.shape, strict=True):
        name = _name(after)
        if name in new and name is not None:
            found[name] = extent_of(before)
    return found


def moved_bytes(transpose: ir.Node, extent_of: ExtentOf) -> int:
    """The bytes that a Transpose moves: none if it moves only axes of extent 1."""
    read, result = transpose.inputs[0], transpose.outputs[0]
    value = result if read is None or read.shape is None else read
    return bytes_of(value, extent_of) if moves_axes(transpose) else 0


def moves_axes(transpose: ir.Node) -> bool:
    """Whether a Transpose moves axes of another extent than 1."""
    read, result = transpose.inputs[0], transpose.outputs[0]
    value = result if read is None or read.shape is None else read
    if value.shape is None:
        return True
    rank = len(value.shape)
    perm = perm_of(transpose, rank)
    if sorted(perm) != list(range(rank)):
        return True
    long = [axis for n, axis in enumerate(perm) if value.shape[n if value is result else axis] != 1]
    return any(a > b for a, b in pairwise(long))


def _batch(value: ir.Value) -> int:
    """The index of the source's first axis, by the input's annotation."""
    order = value.metadata_props.get(ORDER_KEY, "").split(",")
    return order.index("0") if value.shape is not None and len(order) == len(value.shape) and "0" in order else 0


def _names(value: ir.Value) -> list[str]:
    shape = value.shape
    return [] if shape is None else [dim.value for dim in shape if not isinstance(dim, int) and dim.value is not None]


def _name(dim: Dim) -> str | None:
    return None if isinstance(dim, int) else dim.value
