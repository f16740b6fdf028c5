"""The insertion graph of each conversion: the one where it runs least often."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.formulate.def_use import TensorUse
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.ops import graphs_of

__all__ = ["insertion_graphs"]


def insertion_graphs(plan: Plan, main: ir.Graph) -> dict[PlannedConversion, ir.Graph]:
    """The graph of a model for each conversion that is not in the main graph.

    It is the producer's graph, so that a Loop does not convert in each iteration. A branch of an If with all consumers
    is preferred.
    """
    region_ops = {inner: node for node in plan.tensors.region_edges for inner in graphs_of(node)}
    if not region_ops:
        return {}

    def graph_of(use: TensorUse) -> ir.Graph:
        planned = plan.nodes[use.choice]
        if planned.node is None:
            return main
        graph = planned.region_port(planned.ports[use.port]).graph or planned.node.graph
        assert graph is not None
        return graph

    def outwards(graph: ir.Graph, end: ir.Graph) -> Iterator[ir.Graph]:
        """This graph and those around it, up to `end` exclusively."""
        while graph is not end:
            yield graph
            outer = region_ops[graph].graph
            assert outer is not None  # only the model's own graph is in no region
            graph = outer

    def site_of(conversion: PlannedConversion) -> ir.Graph:
        producer = graph_of(conversion.producer)
        paths = [list(outwards(graph_of(use), producer)) for use in conversion.serves]
        site = producer
        for graphs in zip(*(reversed(path) for path in paths), strict=False):
            if any(graph is not graphs[0] for graph in graphs) or region_ops[graphs[0]].op_type != "If":
                break
            site = graphs[0]
        return site

    sites = ((each, site_of(each)) for each in plan.conversions)
    return {each: site for each, site in sites if site is not main}
