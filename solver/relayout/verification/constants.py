"""Constants: values that are computed before the model runs. No backend has requirements for them, and they name no
axes."""

from __future__ import annotations

from collections.abc import Set
from itertools import chain

import onnx_ir as ir

from relayout.model.constants import known_result
from relayout.verification.subgraph_values import Nesting, nesting_of

__all__ = ["computed_ahead", "constants_of", "stored"]

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""The operators that draw random numbers. Without a seed their results differ in each run, whatever their inputs."""


def constants_of(graph: ir.Graph) -> set[ir.Value]:
    """The values, in the graph and those inside it, that are stored or computed ahead."""
    nesting = nesting_of(graph)
    return stored(graph, nesting).union(*(node.outputs for node in computed_ahead(graph, nesting)))


def stored(graph: ir.Graph, nesting: Nesting) -> set[ir.Value]:
    """The initializers of the graph and those inside it that no caller may replace."""
    graphs = [graph, *chain.from_iterable(nesting.values())]
    return set().union(*(set(each.initializers.values()).difference(each.inputs) for each in graphs))


def computed_ahead(graph: ir.Graph, nesting: Nesting, outer: Set[ir.Value] = frozenset()) -> set[ir.Node]:
    """The standard operators, in the graph and its subgraphs, that read only constants or known shapes.

    `outer` has the constants of the enclosing graphs.

    An initializer that is a graph input as well is a default, which a caller may replace: no constant. Nor is a result
    of a node with graphs inside.
    """
    constants = {*outer, *graph.initializers.values()}.difference(graph.inputs)
    found: set[ir.Node] = set()
    for node in graph:
        inner = nesting.get(node, ())
        for each in inner:
            found |= computed_ahead(each, nesting, constants)
        if not inner and _is_ahead(node, constants):
            found.add(node)
            constants.update(node.outputs)
    return found


def _is_ahead(node: ir.Node, constants: Set[ir.Value]) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type in RANDOM:
        return False
    return known_result(node) is not None or all(value is None or value in constants for value in node.inputs)
