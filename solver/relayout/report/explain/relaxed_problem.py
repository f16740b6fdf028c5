"""A problem without some of its requirements: what they ask is lifted, and the rest is solved again, exactly.

A lifted input of a node reads its tensor in whatever format that is given, and a lifted result is given in whatever
format is wanted of it, both at no cost. The node's other operands, and all other nodes, stand by what they require. So
a lifted node is one that any other implementation of it could at best be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from relayout.candidates.alternatives import Alternative, NodeChoice
from relayout.candidates.tensors import Tensor
from relayout.formulate.formulation import Formulation, Touch
from relayout.layout.memory_format import Order, source_order
from relayout.solve.problem import Choice, Problem, Use, Value
from relayout.solve.solver import solve

__all__ = ["Lifting", "Spent", "spent"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What an assignment spends: the conversions that it makes, each a tensor and a format of it, their bytes, and what
    they, transfers and nodes are priced at. `proved`: it is the least."""

    made: frozenset[tuple[Tensor, str, Order]]
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
        self._device: dict[Touch, tuple[int, int]] = {}
        for device, held in enumerate(formulation.held):
            number = values.get((held.tensor.root.name or "", held.producer.choice))
            if number is not None and held.arrivals is None and len(held.formats) > 1:
                self._device.update(dict.fromkeys(held.touches, (device, number)))

    def value_of(self, touch: Touch) -> Value | None:
        """The value that is touched here; None where it has one format only."""
        device = self._device.get(touch)
        return None if device is None else self.formulation.problem.values[device[1]]

    def use_of(self, touch: Touch) -> Use | None:
        """How it is touched here."""
        value = self.value_of(touch)
        if value is None:
            return None
        held = self.formulation.held[self._device[touch][0]]
        return value.producer if touch == held.producer else value.consumers[held.readers.index(touch)]

    def touched_with(self, touch: Touch) -> tuple[Touch, ...]:
        """All that give or read the tensor that is touched here, its giver first."""
        device = self._device.get(touch)
        if device is None:
            return (touch,)
        return self.formulation.held[device[0]].touches

    def spent_without(self, touches: Collection[Touch], time_limit: float | None = None) -> Spent | None:
        """The least that is spent where these requirements are lifted; None where no time was left to find out."""
        lifted = self._without(touches)
        solution = solve(lifted.problem, time_limit=time_limit)
        if solution.assignment is None:
            return None
        # The choices that were added stand last, behind those of the arrivals.
        nodes, arrivals = len(self.formulation.requirements.choices), len(self.formulation.problem.choices)
        assignment = (*solution.assignment[:nodes], *solution.assignment[arrivals:])
        return spent(lifted, assignment, proved=solution.status == "optimal")

    def _without(self, touches: Collection[Touch]) -> Formulation:
        formulation = self.formulation
        problem, requirements = formulation.problem, formulation.requirements
        choices, values, held = list(problem.choices), list(problem.values), list(formulation.held)
        nodes = list(requirements.choices)
        for touch in touches:
            if touch not in self._device:
                continue
            device, number = self._device[touch]
            if touch != held[device].producer:
                kept = [k for k, reader in enumerate(held[device].readers) if reader != touch]
                held[device] = replace(held[device], readers=tuple(held[device].readers[k] for k in kept))
                values[number] = replace(values[number], consumers=tuple(values[number].consumers[k] for k in kept))
                continue
            # Instead of the node, one that can do anything gives the tensor.
            giver = self._anything(held[device].formats, touch)
            choices.append(Choice(giver.label, (0,) * len(giver.alternatives)))
            use = Use(len(choices) - 1, tuple(range(len(giver.alternatives))))
            values[number] = replace(values[number], producer=use)
            nodes.append(giver)
            held[device] = replace(held[device], producer=Touch(len(nodes) - 1, 0))
        return replace(
            formulation,
            problem=Problem(tuple(choices), tuple(values)),
            requirements=replace(requirements, choices=nodes),
            held=tuple(held),
        )

    def _anything(self, formats: Sequence[Order], touch: Touch) -> NodeChoice:
        """A giver of what is given here, in each of its formats."""
        giver = self.formulation.requirements.choices[touch.choice]
        port, device = giver.ports[touch.port], giver.alternatives[0].device
        form = source_order(len(port.operand.view.axes))
        alternatives = [Alternative((format_,), form, device=device) for format_ in formats]
        return NodeChoice(f"{giver.label}, lifted", None, (port,), alternatives)


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
