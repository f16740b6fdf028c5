"""A problem without some of its requirements: what they ask is lifted, and the rest is solved again, exactly.

A lifted input of a node reads its tensor in whatever format that is given, and a lifted result is given in whatever
format is wanted of it, both at no cost. The node's other operands, and all other nodes, stand by what they require. So
a lifted node is one that any other implementation of it could at best be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from relayout.candidates.alternatives import Alternative, NodeAlternatives
from relayout.candidates.tensors import Tensor
from relayout.formulate.formulation import Formulation, TensorUse
from relayout.layout.memory_format import MemoryFormat, source_order
from relayout.solve.problem import Choice, Problem, Use, Value
from relayout.solve.solver import solve

__all__ = ["Lifting", "Spent", "spent"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What an assignment spends: the conversions that it makes, each a tensor and a format of it, their bytes, and what
    they, transfers and nodes are priced at. `proved`: it is the least."""

    made: frozenset[tuple[Tensor, str, MemoryFormat]]
    bytes: int
    cost: int
    proved: bool


class Lifting:
    """One formulation, from which requirements are lifted again and again.

    What asks for a tensor that may cross from one device to another is not lifted: where a node runs is no layout.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        values = {(v.name, v.producer.choice): n for n, v in enumerate(formulation.problem.values)}
        # Where a touch is: among the tensors, and among the values. A tensor with one format only is no value.
        self._index: dict[TensorUse, tuple[int, int]] = {}
        for index, def_use in enumerate(formulation.def_use):
            number = values.get((def_use.tensor.base.name or "", def_use.producer.choice))
            if number is not None and def_use.arrivals is None and len(def_use.formats) > 1:
                self._index.update(dict.fromkeys(def_use.uses, (index, number)))

    def value_of(self, use: TensorUse) -> Value | None:
        """The value that is touched here; None where it has one format only."""
        index = self._index.get(use)
        return None if index is None else self.formulation.problem.values[index[1]]

    def use_of(self, use: TensorUse) -> Use | None:
        """How it is touched here."""
        value = self.value_of(use)
        if value is None:
            return None
        def_use = self.formulation.def_use[self._index[use][0]]
        return value.producer if use == def_use.producer else value.consumers[def_use.readers.index(use)]

    def used_with(self, use: TensorUse) -> tuple[TensorUse, ...]:
        """All that give or read the tensor that is touched here, its giver first."""
        index = self._index.get(use)
        if index is None:
            return (use,)
        return self.formulation.def_use[index[0]].uses

    def spent_without(self, uses: Collection[TensorUse], time_limit: float | None = None) -> Spent | None:
        """The least that is spent where these requirements are lifted; None where no time was left to find out."""
        lifted = self._without(uses)
        solution = solve(lifted.problem, time_limit=time_limit)
        if solution.assignment is None:
            return None
        # The choices that were added stand last, behind those of the arrivals.
        nodes, arrivals = len(self.formulation.requirements.choices), len(self.formulation.problem.choices)
        assignment = (*solution.assignment[:nodes], *solution.assignment[arrivals:])
        return spent(lifted, assignment, proved=solution.status == "optimal")

    def _without(self, uses: Collection[TensorUse]) -> Formulation:
        formulation = self.formulation
        problem, requirements = formulation.problem, formulation.requirements
        choices, values, def_use = list(problem.choices), list(problem.values), list(formulation.def_use)
        nodes = list(requirements.choices)
        for use in uses:
            if use not in self._index:
                continue
            index, number = self._index[use]
            if use != def_use[index].producer:
                kept = [k for k, reader in enumerate(def_use[index].readers) if reader != use]
                def_use[index] = replace(def_use[index], readers=tuple(def_use[index].readers[k] for k in kept))
                values[number] = replace(values[number], consumers=tuple(values[number].consumers[k] for k in kept))
                continue
            # Instead of the node, one that can do anything gives the tensor.
            producer = self._anything(def_use[index].formats, use)
            choices.append(Choice(producer.label, (0,) * len(producer.alternatives)))
            free = Use(len(choices) - 1, tuple(range(len(producer.alternatives))))
            values[number] = replace(values[number], producer=free)
            nodes.append(producer)
            def_use[index] = replace(def_use[index], producer=TensorUse(len(nodes) - 1, 0))
        return replace(
            formulation,
            problem=Problem(tuple(choices), tuple(values)),
            requirements=replace(requirements, choices=tuple(nodes)),
            def_use=tuple(def_use),
        )

    def _anything(self, formats: Sequence[MemoryFormat], use: TensorUse) -> NodeAlternatives:
        """A giver of what is given here, in each of its formats."""
        producer = self.formulation.requirements.choices[use.choice]
        port, device = producer.ports[use.port], producer.alternatives[0].device
        form = source_order(len(port.operand.view.axes))
        alternatives = [Alternative((format_,), form, device=device) for format_ in formats]
        return NodeAlternatives(f"{producer.label}, lifted", None, (port,), alternatives=tuple(alternatives))


def spent(formulation: Formulation, assignment: Sequence[int], *, proved: bool) -> Spent:
    """What this assignment of the requirements' choices spends."""
    made = list(formulation.conversions(assignment))
    crossed = sum(transfer.cost for transfer in formulation.transfers(assignment))
    own = sum(
        choice.alternatives[picked].cost
        for choice, picked in zip(formulation.requirements.choices, assignment, strict=True)
    )
    return Spent(
        frozenset((each.tensor, each.device, each.target) for each in made),
        sum(each.bytes for each in made),
        sum(each.cost for each in made) + crossed + own,
        proved,
    )
