"""Constants: values that are computed before the model runs. No backend has requirements for them, and they name no
axes."""

from __future__ import annotations

from collections.abc import Set

import onnx_ir as ir

from relayout.model.constants import known_shape
from relayout.verification.subgraph_values import graphs_of

__all__ = ["computed_ahead"]

# They give other data in each run, whatever they read.
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def computed_ahead(graph: ir.Graph, outer: Set[ir.Value] = frozenset()) -> set[ir.Node]:
    """The standard operators, in the graph and those inside it, that compute from constants alone, or that read a known
    shape. `outer` holds the constants of the graphs around it.

    An initializer that is a graph input as well is a default, which a caller may replace: no constant. Nor is a result
    of a node with graphs inside.
    """
    constants = {*outer, *graph.initializers.values()}.difference(graph.inputs)
    found: set[ir.Node] = set()
    for node in graph:
        inner = list(graphs_of(node))
        for each in inner:
            found |= computed_ahead(each, constants)
        if not inner and _is_ahead(node, constants):
            found.add(node)
            constants.update(node.outputs)
    return found


def _is_ahead(node: ir.Node, constants: Set[ir.Value]) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
        return False
    return known_shape(node) is not None or all(value is None or value in constants for value in node.inputs)
