"""What a graph spends on layouts, counted in the graph alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

import onnx_ir as ir

from relayout.model.constants import known_shape
from relayout.model.tensor_sizes import price_dims, tensor_bytes
from relayout.report.schema import Totals

__all__ = ["constant_values", "data_transposes", "totals"]

# Without inputs, or with constant ones only, these still give other data in each run.
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def totals(
    model: ir.Model, dims: Mapping[str, int], conversion_operators: Set[tuple[str, str]] = frozenset()
) -> Totals:
    """Count the nodes, the transposes that run on data, the bytes that they read and write, and the backend's reorders.

    Subgraphs count. Constants, and what is computed from constants only, do not run, so they do not count. A body of a
    `relayout::` function says what an operator means and does not count; any other local function counts as often as it
    is called. A transpose that moves only dims of extent 1 leaves memory as it is: it counts as a transpose, and its
    bytes do not. `dims` gives sizes to symbolic dims (see `tensor_sizes`), `conversion_operators` is from `Backend.conversion_operators`.
    """
    flat = _inlined(model)
    elements = price_dims(flat, dims)
    transposes = data_transposes(flat)
    moved = sum(_moved_bytes(node, elements) for node in transposes)
    nodes = sum(1 for node in flat.graph.all_nodes() if node.op_type != "Constant")
    reorders = sum(1 for node in flat.graph.all_nodes() if (node.domain, node.op_type) in conversion_operators)
    return Totals(nodes=nodes, transposes=len(transposes), bytes=2 * moved, reorders=reorders)


def data_transposes(model: ir.Model) -> list[ir.Node]:
    """Return the Transpose nodes of the graph and its subgraphs that run on data, in the graph's order."""
    constants = constant_values(model.graph)
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "Transpose"
        and node.domain in ("", "ai.onnx")
        and node.inputs[0] is not None
        and node.inputs[0] not in constants
    ]


def constant_values(graph: ir.Graph, outer: Set[ir.Value] = frozenset()) -> set[ir.Value]:
    """Return the values of `graph` and its subgraphs that are known before any input is: weights, known shapes, and
    what follows.

    `outer` holds the constants of the graphs around it. An initializer that is a graph input as well is a default,
    which a caller may replace: no constant.
    """
    constants = {*outer, *graph.initializers.values()}.difference(graph.inputs)
    for node in graph:
        for subgraph in _subgraphs(node):
            constants |= constant_values(subgraph, constants)
        if _gives_constants(node, constants):
            constants.update(node.outputs)
    return constants


def _gives_constants(node: ir.Node, constants: Set[ir.Value]) -> bool:
    if known_shape(node) is not None:
        return True
    if node.op_type in _RANDOM or any(value is not None and value not in constants for value in node.inputs):
        return False
    # What a branch or a loop's body reads from outside is an input as well; a body's own state makes it data.
    return all(not graph.inputs and all(value in constants for value in graph.outputs) for graph in _subgraphs(node))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _moved_bytes(transpose: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    source, result = transpose.inputs[0], transpose.outputs[0]
    # Either side may lack its shape; both hold the same elements.
    value = source if source is not None and source.shape is not None else result
    moved = tensor_bytes(elements(value.shape), value.dtype)
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
    """Return the model without local functions other than relayout's; the model itself where it has none."""
    if all(domain == "relayout" for domain, _, _ in model.functions):
        return model
    from onnx_ir.passes.common import InlinePass, ShapeInferencePass

    flat = model.clone()
    InlinePass(criteria=lambda function: function.domain != "relayout")(flat)
    ShapeInferencePass()(flat)
    return flat
