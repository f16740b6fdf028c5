"""The cost problem of a graph, with the graph's node or tensor for each choice and item."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from relayout.candidates.alternatives import Alternative
from relayout.candidates.requirements import Requirements
from relayout.formulate.conversion_costs import ConversionCosts
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.objective import Scale
from relayout.formulate.transfers import State
from relayout.solve.problem import Problem


class Formulation(Struct, frozen=True):
    """A problem with its provenance.

    Choice c of the problem is `requirements.choices[c]`; the choices of transfers between devices follow. Item i is the
    tensor of `def_use[provenance[i]]`, or couples the choices of one node if that index is None. The problem's
    costs are packed by `scale`.
    """

    problem: Problem
    requirements: Requirements
    scale: Scale
    costs: ConversionCosts
    def_use: tuple[DefUse, ...]
    provenance: tuple[int | None, ...]

    def source_assignment(self) -> tuple[int, ...] | None:
        """The alternatives that leave every node unchanged; None if some node has no such alternative."""
        every = self.requirements.choices
        unchanged = [[i for i, a in enumerate(choice.alternatives) if a.is_source] for choice in every]
        for choices in self.requirements.coupled().values():
            # All choices of a node have one implementation.
            ways = [{every[c].alternatives[i].implementation_index: i for i in unchanged[c]} for c in choices]
            common = set(ways[0]).intersection(*ways[1:])
            for c, own in zip(choices, ways, strict=True):
                unchanged[c] = [own[min(common)]] if common else []
        return tuple([known[0] for known in unchanged]) if all(unchanged) else None

    def with_direct_copies(self) -> Formulation:
        """The same, with every copy made from the format produced."""
        return replace(self, problem=self.problem.with_direct_copies())

    def with_transfers(self, assignment: Sequence[int]) -> tuple[int, ...] | None:
        """An assignment of the requirements' choices, extended by the cheapest transfers; None if infeasible."""
        picked = list(assignment)
        for def_use in self.def_use:
            if def_use.transfers is not None:
                chosen = def_use.transfers.chosen(*self.states(def_use, assignment))
                if chosen is None:
                    return None
                picked += chosen
        return tuple(picked)

    def states(self, def_use: DefUse, assignment: Sequence[int]) -> tuple[State, dict[str, frozenset[int]]]:
        """The state in which the tensor is produced, and the formats that each device's consumers read."""
        number, producer = def_use.number, self.chosen(def_use.producer, assignment)
        wanted: dict[str, set[int]] = {}
        for use in def_use.consumers:
            consumer = self.chosen(use, assignment)
            for device in consumer.devices:
                wanted.setdefault(device, set()).add(number[consumer.formats[use.port]])
        produced = State(producer.devices, number[producer.formats[def_use.producer.port]], producer.is_elided)
        return produced, {device: frozenset(formats) for device, formats in wanted.items()}

    def chosen(self, use: TensorUse, assignment: Sequence[int]) -> Alternative:
        """The alternative of the choice that has this use."""
        return self.requirements.choices[use.choice].alternatives[assignment[use.choice]]
