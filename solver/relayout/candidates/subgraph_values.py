"""Values that cross into or out of the graphs inside a node, and their requirements."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.backend.interface import Implementation
from relayout.candidates.alternatives import NodePorts
from relayout.candidates.backend_requirements import Requirement
from relayout.layout.layout import Layout
from relayout.ops import RegionEdge

__all__ = ["crossing_requirements", "has_no_rewrite"]

_ANY = Layout.any(0)


def has_no_rewrite(stated: Sequence[Implementation]) -> bool:
    """Whether a node may have several choices, coupled by its implementation: each region edge has one then. If the
    backend rewrites the node, all its values are as in the source."""
    return all(each.rewrite is None for each in stated)


def crossing_requirements(
    choice: NodePorts, region_edge: RegionEdge, stated: Sequence[Implementation]
) -> tuple[Requirement, ...]:
    """The backend's requirements of the node's own operands among the ports of a region edge, by implementation."""
    found = []
    for implementation_index, each in enumerate(stated):
        reads = tuple([each.inputs[s.index] if s.graph is None else _ANY for s in region_edge.reads])
        gives = tuple([each.results[s.index] if s.graph is None else _ANY for s in region_edge.gives])
        # The implementation's cost is charged for the node.
        own = Implementation(reads, gives, device=each.device)
        found.append(Requirement(own, choice, implementation_index))
    return tuple(found)
