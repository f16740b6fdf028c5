"""A problem without some of its requirements, solved again exactly.

A relaxed input of a node reads its tensor in any produced format, and a relaxed result is produced in any format that
its consumers read, both at no cost. The node's other operands and all other nodes keep their requirements. So the
saving of a relaxed node is an upper bound for any other implementation of it.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from relayout.candidates.alternatives import Alternative, BoundaryLowering, NodeAlternatives
from relayout.candidates.tensors import Tensor
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.formulation import Formulation
from relayout.formulate.plan import Plan, plan_of
from relayout.layout.memory_format import MemoryFormat, source_order
from relayout.solve.problem import Choice, Item, Problem, Use
from relayout.solve.solver import solve


class Spent(Struct, frozen=True):
    """The conversions of a plan as (tensor, device, format), their bytes, and the cost. `proved`: it is optimal."""

    conversions: frozenset[tuple[Tensor, str, MemoryFormat]]
    bytes: int
    cost: int
    proved: bool


class Relaxation:
    """One formulation, solved repeatedly with different requirements relaxed.

    Requirements on a tensor that several devices may use are never relaxed, because a device is not a layout.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        # For each use, the indices of its item and of its tensor. A tensor with a single format has no item.
        self._positions: dict[TensorUse, tuple[int, int]] = {}
        for item, origin in enumerate(formulation.provenance):
            if origin is not None and formulation.def_use[origin].transfers is None:
                self._positions.update(dict.fromkeys(formulation.def_use[origin].uses, (item, origin)))

    def item_of(self, use: TensorUse) -> Item | None:
        """The item of the tensor of this use; None if it has a single format."""
        position = self._positions.get(use)
        return None if position is None else self.formulation.problem.items[position[0]]

    def formats_at(self, use: TensorUse) -> tuple[int, ...]:
        """The item's format at this use under each alternative."""
        item, origin = self._positions[use]
        own, def_use = self.formulation.problem.items[item], self.formulation.def_use[origin]
        return own.uses[def_use.uses.index(use)].formats

    def uses_with(self, use: TensorUse) -> tuple[TensorUse, ...]:
        """All uses of the tensor of this use, its producer first."""
        position = self._positions.get(use)
        return (use,) if position is None else self.formulation.def_use[position[1]].uses

    def spent_without(self, uses: Collection[TensorUse], time_limit: float | None = None) -> Spent | None:
        """The optimum without these requirements; None if no solution was found within the time limit."""
        relaxed = self._without(uses)
        solution = solve(relaxed.problem, time_limit=time_limit)
        if solution.assignment is None:
            return None
        # The added choices come last, after those of transfers.
        nodes, original = len(self.formulation.requirements.choices), len(self.formulation.problem.choices)
        assignment = (*solution.assignment[:nodes], *solution.assignment[original:])
        return spent(relaxed, plan_of(relaxed, assignment), proved=solution.status == "optimal")

    def _without(self, uses: Collection[TensorUse]) -> Formulation:
        formulation = self.formulation
        problem, requirements = formulation.problem, formulation.requirements
        choices, items, def_use = list(problem.choices), list(problem.items), list(formulation.def_use)
        nodes = list(requirements.choices)
        for use in uses:
            if use not in self._positions:
                continue
            number, origin = self._positions[use]
            item, chain = items[number], def_use[origin]
            if use != chain.producer:
                kept = [k for k, consumer in enumerate(chain.consumers) if consumer != use]
                def_use[origin] = replace(chain, consumers=tuple(chain.consumers[k] for k in kept))
                items[number] = replace(item, consumers=tuple(item.consumers[k] for k in kept))
                continue
            producer = self._unconstrained_producer(chain)
            choices.append(Choice(producer.label, (0,) * len(chain.formats)))
            items[number] = replace(item, producer=Use(len(choices) - 1, tuple(range(len(chain.formats)))))
            nodes.append(producer)
            def_use[origin] = replace(chain, producer=TensorUse(len(nodes) - 1, 0))
        return replace(
            formulation,
            problem=Problem(tuple(choices), tuple(items)),
            requirements=replace(requirements, choices=tuple(nodes)),
            def_use=tuple(def_use),
        )

    def _unconstrained_producer(self, def_use: DefUse) -> NodeAlternatives:
        """A producer of the tensor in each of its formats."""
        producer = self.formulation.requirements.choices[def_use.producer.choice]
        port, device = producer.ports[def_use.producer.port], producer.alternatives[0].device
        lowering = BoundaryLowering(source_order(len(port.operand.view.axes)))
        alternatives = tuple([Alternative((format_,), lowering, ("",), device=device) for format_ in def_use.formats])
        return NodeAlternatives(f"{producer.label}, relaxed", None, (port,), alternatives=alternatives)


def spent(formulation: Formulation, plan: Plan, *, proved: bool) -> Spent:
    """The conversions, bytes and cost of the plan."""
    conversions = frozenset((each.tensor, each.device, each.target) for each in plan.conversions)
    return Spent(conversions, plan.bytes, plan.cost(formulation.scale.objective), proved)
