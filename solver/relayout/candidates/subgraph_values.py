"""What crosses the border of the graphs inside a node: in which orders it may lie, and what the backend asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayout.backend.interface import Implementation
from relayout.candidates.alternatives import FreeLowering, NodePorts
from relayout.candidates.backend_requirements import Contract, Wish
from relayout.candidates.fixed_node import of_ports
from relayout.candidates.free_node import FreeNode, Pricing, operand_dims
from relayout.candidates.iteration_space import IndexingMaps
from relayout.candidates.unit_axes import placements
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import RegionEdge

__all__ = ["CrossingValue", "may_cross"]

_ANY = Layout.any(0)

Way = tuple[Wish, FreeLowering, int]


def may_cross(stated: Sequence[Implementation]) -> bool:
    """Whether what crosses the border may be chosen for each value by itself, together with the way that the node runs.
    Not where the backend writes the node itself: then all of it is as in the source."""
    return all(each.rewrite is None for each in stated)


class CrossingValue:
    """One passage of a node, with what the backend asks of the node's own inputs and results among its ports."""

    def __init__(
        self,
        choice: NodePorts,
        region_edge: RegionEdge,
        stated: Sequence[Implementation],
        *,
        maps: IndexingMaps,
        contract: Contract,
        elements: Pricing,
    ) -> None:
        self._choice, self._rule, self._maps, self._contract = choice, region_edge.rule, maps, contract
        self._axes = of_ports(choice.ports, region_edge.rule.inputs, region_edge.rule.outputs)
        self._wishes: list[Wish] = []
        for way, each in enumerate(stated):
            reads = tuple([each.inputs[s.index] if s.graph is None else _ANY for s in region_edge.reads])
            gives = tuple([each.results[s.index] if s.graph is None else _ANY for s in region_edge.gives])
            # What the node costs is charged for the node.
            self._wishes.append(Wish(Implementation(reads, gives, device=each.device), choice.ports, way))
        self._asked = FreeNode(
            choice, region_edge.rule, (), maps=maps, contract=contract, elements=elements
        )

    def ways(self, order: MemoryFormat) -> tuple[Way, ...] | None:
        """How the value lies in this order, wherever the node may run then; None where it may not."""
        dims = self._maps.grouped(order)
        if dims is None:
            return None
        forms = [FreeLowering(place) for place in placements(dims, len(self._rule.extents))]
        allowed = [form for form in forms if self._rule.allows(form.axes)]
        found = [(wish, form, 0) for wish in self._wishes if (form := self._met(wish, allowed)) is not None]
        return tuple(found) or None

    def witnesses(self) -> Iterator[MemoryFormat]:
        """The orders that the backend names in full."""
        for wish in self._wishes:
            yield from self._asked.witnesses(wish)

    def _met(self, wish: Wish, forms: Sequence[FreeLowering]) -> FreeLowering | None:
        letters = (None,) * len(self._choice.ports)
        for form in forms:
            laid = [operand_dims(axes, form.dims) for axes in self._axes]
            if wish.is_empty or self._contract.is_met(self._choice, wish, laid, letters):
                return form
        return None
