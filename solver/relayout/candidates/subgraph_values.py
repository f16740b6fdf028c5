"""Values that cross into or out of the graphs inside a node: their requirements and the answers to an order."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.backend.interface import Implementation
from relayout.candidates.alternatives import FreeLowering, NodePorts
from relayout.candidates.backend_requirements import Requirement, RequirementChecker
from relayout.candidates.fixed_node import of_ports
from relayout.candidates.free_node import Answer, operand_dims
from relayout.candidates.iteration_space import IndexingMaps, unit_axis_insertions
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import RegionEdge

__all__ = ["crossing_answers", "crossing_requirements", "may_cross"]

_ANY = Layout.any(0)


def may_cross(stated: Sequence[Implementation]) -> bool:
    """Whether each region edge has its own choice, coupled with the node's implementation. If the backend rewrites the
    node, all its values are as in the source."""
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
        found.append(Requirement(own, choice.ports, implementation_index))
    return tuple(found)


def crossing_answers(
    choice: NodePorts,
    region_edge: RegionEdge,
    requirements: Sequence[Requirement],
    order: MemoryFormat,
    *,
    maps: IndexingMaps,
    checker: RequirementChecker,
) -> tuple[Answer, ...] | None:
    """The lowerings in this order, one for each requirement that allows it; None if none does."""
    dims, rule = maps.grouped(order), region_edge.rule
    if dims is None:
        return None
    lowerings = [FreeLowering(place) for place in unit_axis_insertions(dims, len(rule.extents))]
    axes_of, axis_names = of_ports(choice.ports, rule.inputs, rule.outputs), (None,) * len(choice.ports)

    def is_met(requirement: Requirement, lowering: FreeLowering) -> bool:
        port_dims = [operand_dims(axes, lowering.dims) for axes in axes_of]
        return requirement.is_empty or checker.is_met(choice, requirement, port_dims, axis_names)

    allowed = [lowering for lowering in lowerings if rule.allows(lowering.axes)]
    found = [(each, next((own for own in allowed if is_met(each, own)), None)) for each in requirements]
    return tuple([(each, lowering, 0) for each, lowering in found if lowering is not None]) or None
