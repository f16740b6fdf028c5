"""Constants: values that are computed before the model runs. No backend has requirements for them, and they name no
axes."""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import chain

import onnx_ir as ir

from relayout.model.constants import known_result
from relayout.verification.subgraph_values import Nesting, nesting_of, walk

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""The operators that draw random numbers. Without a seed their results differ in each run, whatever their inputs."""


def constants_of(graph: ir.Graph) -> set[ir.Value]:
    """The values, in the graph and those inside it, that are stored or computed ahead."""
    nesting = nesting_of(graph)
    known = stored(graph, nesting)
    return known.union(*(node.outputs for node in computed_ahead(walk(graph, nesting), nesting, known)))


def stored(graph: ir.Graph, nesting: Nesting) -> set[ir.Value]:
    """The initializers of the graph and those inside it that no caller may replace."""
    graphs = [graph, *chain.from_iterable(nesting.values())]
    return set().union(*(set(each.initializers.values()).difference(each.inputs) for each in graphs))


def computed_ahead(nodes: Iterable[ir.Node], nesting: Nesting, known: Set[ir.Value]) -> list[ir.Node]:
    """The standard operators, of these nodes in the order of `walk`, that read only constants or known shapes.

    `known` are the stored constants. An initializer that is a graph input as well is a default, which a caller may
    replace: no constant. Nor is a result of a node with graphs inside.
    """
    constants = set(known)
    found: list[ir.Node] = []
    for node in nodes:
        if node.domain != "" or node in nesting or node.op_type in RANDOM:
            continue
        for value in node.inputs:
            if value is not None and value not in constants:
                is_ahead = known_result(node) is not None
                break
        else:
            is_ahead = True
        if is_ahead:
            found.append(node)
            constants.update(node.outputs)
    return found
