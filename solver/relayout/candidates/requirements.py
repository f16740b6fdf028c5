"""Model x backend -> the implementations of every node, as memory formats of the tensors that it touches.

Candidates are the witness of every requirement, the boundary and the source order, carried through the free rules in
both directions to a fixpoint (capped per tensor; the cap is reported). Nothing here knows costs of conversions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.axis_names import Names
from relayout.candidates.backend_requirements import Contract
from relayout.candidates.boundary import Boundary, set_boundary
from relayout.candidates.free_node import Pricing
from relayout.candidates.nodes import NodeChoices
from relayout.candidates.propagation import FORMATS_PER_TENSOR, Spaces
from relayout.candidates.tensors import Tensors, collect_tensors
from relayout.candidates.view_materialization import StandingApartError
from relayout.ops import Relabel, graphs_of

__all__ = ["Requirements", "collect_requirements"]


@dataclass(slots=True)
class Requirements:
    """Every choice of a graph and of those inside it, with what is needed to read them."""

    tensors: Tensors
    names: Names
    choices: list[NodeAlternatives]
    warnings: list[str]
    boundary: Boundary

    def region_ops(self) -> dict[ir.Node, list[int]]:
        """The nodes with graphs inside them, with their choices: their own, and those of what crosses the borders."""
        found: dict[ir.Node, list[int]] = {}
        for c, choice in enumerate(self.choices):
            if choice.node is not None and choice.node in self.tensors.region_edges:
                found.setdefault(choice.node, []).append(c)
        return found


def collect_requirements(
    graph: ir.Graph,
    backend: Backend,
    tensors: Tensors,
    *,
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    elements: Pricing | None = None,
) -> Requirements:
    """Every node's alternatives under `backend`, with the graph's inputs and outputs pinned, set, or freed ("any").

    `elements` prices what an alternative moves beyond the operator itself; without it unknown extents count as 1.

    Raises InfeasibleError where a requirement has no alternative at all, UsageError for a boundary layout that does not
    fit, BackendError for nonsense from the backend. A view that only stands in the way of a layout is none: `tensors`
    are collected anew then.
    """
    try:
        return _collect(graph, backend, tensors, input_layouts or {}, output_layouts or {}, elements or _known_elements)
    except StandingApartError as error:
        fewer_views = collect_tensors(graph, tensors.opsets, tensors.materialized | error.values)
    return collect_requirements(
        graph, backend, fewer_views, input_layouts=input_layouts, output_layouts=output_layouts, elements=elements
    )


def _collect(
    graph: ir.Graph,
    backend: Backend,
    tensors: Tensors,
    input_layouts: Mapping[str, str],
    output_layouts: Mapping[str, str],
    elements: Pricing,
) -> Requirements:
    names = Names(tensors)
    spaces = Spaces(tensors.tensors)
    boundary = set_boundary(graph, tensors, names, input_layouts, output_layouts)
    boundary.seed(spaces)
    nodes = NodeChoices(Contract(backend, names), names, tensors, spaces, elements)
    _enter(graph, nodes, tensors)
    if nodes.in_the_way:
        raise StandingApartError(frozenset(nodes.in_the_way))
    boundary.spread(spaces)
    nodes.list_free(boundary.inputs)
    boundary.free(spaces, names)
    choices = [*boundary.inputs, *nodes.choices, *boundary.outputs]
    warnings = []
    if spaces.capped:
        warnings.append(
            f"{len(spaces.capped)} tensors have more than {FORMATS_PER_TENSOR} formats in reach; "
            "the optimum is over the first of them"
        )
    return Requirements(tensors, names, choices, warnings, boundary)


def _enter(graph: ir.Graph, nodes: NodeChoices, tensors: Tensors) -> None:
    """Every node that has a choice, in the order of the graph; what is inside a node between what goes in and what
    comes out."""
    for node in graph:
        if node in tensors.constant_nodes or node in tensors.dead or isinstance(tensors.rules.get(node), Relabel):
            continue
        nodes.enter(node)
        if node in tensors.region_edges:
            for inner in graphs_of(node):
                _enter(inner, nodes, tensors)
            nodes.leave(node)


def _known_elements(shape: ir.Shape) -> int:
    return prod(extent for extent in shape if isinstance(extent, int))
