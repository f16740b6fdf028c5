"""In which graph each conversion is made: where it runs least often."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.candidates.requirements import Requirements
from relayout.formulate.formulation import PlannedConversion, TensorUse
from relayout.ops import graphs_of

__all__ = ["Homes"]


class Homes:
    """The graph of a model for each conversion: that of the tensor, so that a Loop does not make it in each round, or a
    branch of an If where that branch alone wants it."""

    def __init__(self, requirements: Requirements, graph: ir.Graph) -> None:
        self._choices = requirements.choices
        self._main = graph
        self._holders = {inner: node for node in requirements.tensors.region_edges for inner in graphs_of(node)}

    def of(self, made: PlannedConversion) -> ir.Graph:
        if not self._holders:
            return self._main
        given = self._at(made.producer)
        ways = [list(self._up(self._at(use), given)) for use in made.serves]
        home = given
        for graphs in zip(*(reversed(way) for way in ways), strict=False):
            if any(graph is not graphs[0] for graph in graphs) or self._holders[graphs[0]].op_type != "If":
                break
            home = graphs[0]
        return home

    def _up(self, graph: ir.Graph, end: ir.Graph) -> Iterator[ir.Graph]:
        """From a graph outwards, up to one that is around it, without that."""
        while graph is not end:
            yield graph
            outer = self._holders[graph].graph
            assert outer is not None  # only the model's own graph is inside none
            graph = outer

    def _at(self, use: TensorUse) -> ir.Graph:
        choice = self._choices[use.choice]
        if choice.node is None:
            return self._main
        region_port = choice.region_port(choice.ports[use.port])
        graph = region_port.graph or choice.node.graph
        assert graph is not None
        return graph
