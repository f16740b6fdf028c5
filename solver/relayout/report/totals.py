"""The totals of a graph, counted in the graph itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set

import onnx_ir as ir

from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.model.constants import constant_values
from relayout.model.tensor_sizes import DimSizes, elements_of, tensor_bytes
from relayout.ops import all_nodes
from relayout.report.schema import Totals

_PADS = frozenset({"Pad", "Slice"})


def totals(
    model: ir.Model,
    dims: Mapping[str, int],
    conversion_operators: Set[tuple[str, str]] = frozenset(),
    elements: Callable[[ir.Shape | None], int] | None = None,
    nodes: Sequence[ir.Node] | None = None,
) -> Totals:
    """Count the nodes, and the conversions by kind with the bytes that they read and write.

    Subgraphs are included. Constants and values computed from constants only are not counted, because they do not run.
    The body of a `relayout::` function defines an operator and is not counted; any other local function counts once per
    call. A transpose that moves only dims of extent 1 does not change memory: it counts as a transpose of 0 bytes.
    `dims` gives sizes to symbolic dims (see `model.tensor_sizes`); `conversion_operators` are those of
    `Backend.conversion_operators`, `elements` the model's `DimSizes` and `nodes` its `all_nodes`, where they are known.
    """
    flat = _inlined(model)
    if nodes is None or flat is not model:
        nodes = [*all_nodes(flat.graph)]
    if elements is None or flat is not model:
        elements = DimSizes(flat, dims)
    operators = 0
    transposes, reorders, pads = [], [], []
    for node in nodes:
        operator = node.op_type
        operators += operator != "Constant"
        if operator == "Transpose" and is_transpose(node):
            transposes.append(node)
        elif conversion_operators and (node.domain, operator) in conversion_operators:
            reorders.append(_ends(node, elements))
        elif operator in _PADS and CONVERSION_KEY in node.metadata_props:
            pads.append(node)
    constants: Container[ir.Value | None] = constant_values(flat.graph) if transposes or pads else ()
    moved = [2 * moved_bytes(node, elements) for node in transposes if node.inputs[0] not in constants]
    padded = [_ends(node, elements) for node in pads if node.inputs[0] not in constants]
    in_functions = _transposes_in(flat, flat.functions)
    return Totals(
        nodes=operators,
        transposes=len(moved),
        bytes=sum(moved),
        reorders=len(reorders),
        reorder_bytes=sum(reorders),
        pads=len(padded),
        pad_bytes=sum(padded),
        transposes_in_file=len(transposes) + in_functions if flat is model else _stored(model),
        transposes_of_constants=len(transposes) - len(moved),
        transposes_in_functions=in_functions,
        transposes_of_units=moved.count(0),
    )


def is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and node.domain == "" and node.inputs[0] is not None


def _stored(model: ir.Model) -> int:
    return sum(map(is_transpose, model.graph.all_nodes())) + _transposes_in(model, model.functions)


def _transposes_in(model: ir.Model, functions: Iterable[ir.OperatorIdentifier]) -> int:
    return sum(is_transpose(node) for key in functions for node in model.functions[key].all_nodes())


def _ends(node: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    """The bytes of the node's first operand and of its first result."""
    ends = [value for value in (node.inputs[0], node.outputs[0]) if value is not None]
    return sum(tensor_bytes(elements_of(value, elements), value.dtype) for value in ends)


def moved_bytes(transpose: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    """The bytes of the tensor that a Transpose moves, once; 0 where only dims of extent 1 change their places."""
    source, result = transpose.inputs[0], transpose.outputs[0]
    # Either side may have no shape; both have the same number of elements.
    value = source if source is not None and source.shape is not None else result
    moved, shape = tensor_bytes(elements_of(value, elements), value.dtype), value.shape
    if shape is None:
        return moved
    dims, given = shape.dims, transpose.attributes.get("perm")
    perm = given.as_ints() if given is not None else range(len(dims))[::-1]
    if sorted(perm) != list(range(len(dims))):
        return moved
    extents = dims if value is result else [dims[axis] for axis in perm]
    moving = [axis for axis, extent in zip(perm, extents, strict=True) if extent != 1]
    return 0 if moving == sorted(moving) else moved


def _inlined(model: ir.Model) -> ir.Model:
    """Return the model with all local functions inlined except relayout's; the model itself if it has none."""
    if all(domain == "relayout" for domain, _, _ in model.functions):
        return model
    from onnx_ir.passes.common import InlinePass, ShapeInferencePass

    flat = model.clone()
    InlinePass(criteria=lambda function: function.domain != "relayout")(flat)
    ShapeInferencePass()(flat)
    return flat
