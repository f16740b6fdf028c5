"""Values that cross into or out of the graphs inside a node: their orders and requirements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayout.backend.interface import Implementation
from relayout.candidates.alternatives import FreeLowering, NodePorts
from relayout.candidates.backend_requirements import Requirement, RequirementChecker
from relayout.candidates.fixed_node import of_ports
from relayout.candidates.free_node import FreeNode, Pricing, operand_dims
from relayout.candidates.iteration_space import IndexingMaps, unit_axis_insertions
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import RegionEdge

__all__ = ["CrossingValue", "may_cross"]

_ANY = Layout.any(0)

Answer = tuple[Requirement, FreeLowering, int]


def may_cross(stated: Sequence[Implementation]) -> bool:
    """Whether each region edge has its own choice, coupled with the node's implementation. If the backend rewrites the
    node, all its values are as in the source."""
    return all(each.rewrite is None for each in stated)


class CrossingValue:
    """One region edge of a node, with the backend's requirements of the node's own operands among its ports."""

    def __init__(
        self,
        choice: NodePorts,
        region_edge: RegionEdge,
        stated: Sequence[Implementation],
        *,
        maps: IndexingMaps,
        checker: RequirementChecker,
        elements: Pricing,
    ) -> None:
        self._choice, self._rule, self._maps, self._checker = choice, region_edge.rule, maps, checker
        self._axes = of_ports(choice.ports, region_edge.rule.inputs, region_edge.rule.outputs)
        self._requirements: list[Requirement] = []
        for implementation_index, each in enumerate(stated):
            reads = tuple([each.inputs[s.index] if s.graph is None else _ANY for s in region_edge.reads])
            gives = tuple([each.results[s.index] if s.graph is None else _ANY for s in region_edge.gives])
            # The implementation's cost is charged for the node.
            self._requirements.append(
                Requirement(Implementation(reads, gives, device=each.device), choice.ports, implementation_index)
            )
        self._free = FreeNode(choice, region_edge.rule, (), maps=maps, checker=checker, elements=elements)

    def answers(self, order: MemoryFormat) -> tuple[Answer, ...] | None:
        """The lowerings in this order, one for each implementation that allows it; None if none does."""
        dims = self._maps.grouped(order)
        if dims is None:
            return None
        lowerings = [FreeLowering(place) for place in unit_axis_insertions(dims, len(self._rule.extents))]
        allowed = [lowering for lowering in lowerings if self._rule.allows(lowering.axes)]
        found = [(each, self._met(each, allowed)) for each in self._requirements]
        return tuple([(each, lowering, 0) for each, lowering in found if lowering is not None]) or None

    def required_orders(self) -> Iterator[MemoryFormat]:
        """The orders that the requirements name in full."""
        for requirement in self._requirements:
            yield from self._free.required_orders(requirement)

    def _met(self, requirement: Requirement, lowerings: Sequence[FreeLowering]) -> FreeLowering | None:
        axis_names = (None,) * len(self._choice.ports)
        for lowering in lowerings:
            port_dims = [operand_dims(axes, lowering.dims) for axes in self._axes]
            if requirement.is_empty or self._checker.is_met(self._choice, requirement, port_dims, axis_names):
                return lowering
        return None
