"""A problem without some of its requirements, solved again exactly.

A relaxed input of a node reads its tensor in any format that is produced, and a relaxed result is produced in any
format that is wanted, both at no cost. The node's other operands, and all other nodes, keep their requirements. So a
relaxed node bounds what any other implementation of it could save.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from relayout.candidates.alternatives import Alternative, BoundaryLowering, NodeAlternatives
from relayout.candidates.tensors import Tensor
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.formulation import Formulation
from relayout.formulate.plan import Plan, plan_of
from relayout.layout.memory_format import MemoryFormat, source_order
from relayout.solve.problem import Choice, Item, Problem, Use
from relayout.solve.solver import solve

__all__ = ["Relaxation", "Spent", "spent"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a plan spends: its conversions, each a tensor, a device and a format, their bytes, and the cost in the
    objective's unit. `proved`: no plan costs less."""

    conversions: frozenset[tuple[Tensor, str, MemoryFormat]]
    bytes: int
    cost: int
    proved: bool


class Relaxation:
    """One formulation whose requirements are relaxed again and again.

    The requirements on a tensor that several devices may use are kept: the device of a node is no layout.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        # For each use, the positions of its item and of its tensor. A tensor with a single format has no item.
        self._positions: dict[TensorUse, tuple[int, int]] = {}
        for item, origin in enumerate(formulation.provenance):
            if origin is not None and formulation.def_use[origin].transfers is None:
                self._positions.update(dict.fromkeys(formulation.def_use[origin].uses, (item, origin)))

    def item_of(self, use: TensorUse) -> Item | None:
        """The item of the tensor that is used here; None where it has a single format."""
        position = self._positions.get(use)
        return None if position is None else self.formulation.problem.items[position[0]]

    def formats_at(self, use: TensorUse) -> tuple[int, ...]:
        """The item's format here under each alternative."""
        item, origin = self._positions[use]
        own, def_use = self.formulation.problem.items[item], self.formulation.def_use[origin]
        return (own.producer, *own.consumers)[def_use.uses.index(use)].formats

    def uses_with(self, use: TensorUse) -> tuple[TensorUse, ...]:
        """All uses of the tensor that is used here, its producer first."""
        position = self._positions.get(use)
        return (use,) if position is None else self.formulation.def_use[position[1]].uses

    def spent_without(self, uses: Collection[TensorUse], time_limit: float | None = None) -> Spent | None:
        """The least that is spent without these requirements; None where the time limit left no solution."""
        relaxed = self._without(uses)
        solution = solve(relaxed.problem, time_limit=time_limit)
        if solution.assignment is None:
            return None
        # The added choices are last, behind those of transfers.
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
        alternatives = tuple([Alternative((format_,), lowering, device=device) for format_ in def_use.formats])
        return NodeAlternatives(f"{producer.label}, relaxed", None, (port,), alternatives=alternatives)


def spent(formulation: Formulation, plan: Plan, *, proved: bool) -> Spent:
    """What the plan spends."""
    conversions = frozenset((each.tensor, each.device, each.target) for each in plan.conversions)
    return Spent(conversions, plan.bytes, plan.cost(formulation.scale.objective), proved)
