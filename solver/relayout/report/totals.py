"""The totals of a graph, counted in the graph itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import onnx_ir as ir

from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.model.constants import constant_values
from relayout.model.tensor_sizes import elements_of, price_dims, tensor_bytes
from relayout.ops import all_nodes
from relayout.report.schema import Totals

__all__ = ["data_transposes", "is_transpose", "totals"]


def totals(
    model: ir.Model, dims: Mapping[str, int], conversion_operators: Set[tuple[str, str]] = frozenset()
) -> Totals:
    """Count the nodes, and the conversions by kind with the bytes that they read and write.

    Subgraphs are included. Constants and values computed from constants only are not counted, because they do not run.
    The body of a `relayout::` function defines an operator and is not counted; any other local function counts once per
    call. A transpose that moves only dims of extent 1 does not change memory: it counts as a transpose of 0 bytes.
    `dims` gives sizes to symbolic dims (see `model.tensor_sizes`); `conversion_operators` are those of
    `Backend.conversion_operators`.
    """
    flat = _inlined(model)
    elements, constants = price_dims(flat, dims), constant_values(flat.graph)
    nodes = 0
    moved: dict[str, list[int]] = {kind: [] for kind in ("transpose", "constant", "reorder", "pad")}
    for node in all_nodes(flat.graph):
        nodes += node.op_type != "Constant"
        if is_transpose(node):
            kind = "constant" if node.inputs[0] in constants else "transpose"
            moved[kind].append(2 * _moved_bytes(node, elements))
        elif (node.domain, node.op_type) in conversion_operators:
            moved["reorder"].append(_ends(node, elements))
        elif CONVERSION_KEY in node.metadata_props and node.inputs[0] not in constants:
            moved["pad"].append(_ends(node, elements))
    return Totals(
        nodes=nodes,
        transposes=len(moved["transpose"]),
        bytes=sum(moved["transpose"]),
        reorders=len(moved["reorder"]),
        reorder_bytes=sum(moved["reorder"]),
        pads=len(moved["pad"]),
        pad_bytes=sum(moved["pad"]),
        transposes_in_file=sum(map(is_transpose, model.graph.all_nodes())) + _transposes_in(model, model.functions),
        transposes_of_constants=len(moved["constant"]),
        transposes_in_functions=_transposes_in(flat, flat.functions),
        transposes_of_units=moved["transpose"].count(0),
    )


def data_transposes(model: ir.Model) -> list[ir.Node]:
    """Return the Transpose nodes of the graph and its subgraphs that run on data, in the graph's order."""
    constants = constant_values(model.graph)
    return [node for node in all_nodes(model.graph) if is_transpose(node) and node.inputs[0] not in constants]


def is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None


def _transposes_in(model: ir.Model, functions: Iterable[ir.OperatorIdentifier]) -> int:
    return sum(is_transpose(node) for key in functions for node in model.functions[key].all_nodes())


def _ends(node: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    """The bytes of the node's first operand and of its first result."""
    ends = [value for value in (node.inputs[0], node.outputs[0]) if value is not None]
    return sum(tensor_bytes(elements_of(value, elements), value.dtype) for value in ends)


def _moved_bytes(transpose: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    source, result = transpose.inputs[0], transpose.outputs[0]
    # Either side may have no shape; both have the same number of elements.
    value = source if source is not None and source.shape is not None else result
    moved = tensor_bytes(elements_of(value, elements), value.dtype)
    if value.shape is None:
        return moved
    rank = len(value.shape)
    perm = transpose.attributes["perm"].as_ints() if "perm" in transpose.attributes else range(rank)[::-1]
    if sorted(perm) != list(range(rank)):
        return moved
    extents = value.shape if value is result else [value.shape[axis] for axis in perm]
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
