"""A problem with what its numbers mean: the way back from an assignment to formats, conversions and transfers.

A conversion is priced as a transpose of the whole tensor: its bytes read and written (see `relayout.prices`). Formats
with the same normal form are one format: there is nothing to convert. Where nodes run at several devices, a tensor that
more than one of them may touch has choices of its own: where it crosses, and in which format (see `relayout.arrivals`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relayout.candidates.alternatives import Alternative
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import InternalError
from relayout.formulate.conversion_costs import Prices
from relayout.formulate.def_use import Held, Touch
from relayout.formulate.objective import Scale
from relayout.formulate.transfers import Arrivals, State
from relayout.layout.memory_format import Order
from relayout.solve.problem import Problem

__all__ = ["Formulation", "Made", "PlannedTransfer", "Touch"]


@dataclass(frozen=True, slots=True)
class Made:
    """One conversion of a solution: `tensor` from the format that its producer gives, or in which it came to a device,
    to one that somebody wants there. `bytes` are read and written; `cost` is what it is priced at. It serves those who
    want it there, and those elsewhere for whom it crosses."""

    tensor: Tensor
    source: Order
    target: Order
    bytes: int
    producer: Touch
    wanted_by: tuple[Touch, ...]
    serves: tuple[Touch, ...]
    cost: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """One tensor that a solution brings from one device to another: its size in bytes, and what that is priced at."""

    tensor: Tensor
    format: Order
    source: str
    target: str
    bytes: int
    cost: int
    producer: Touch
    wanted_by: tuple[Touch, ...]


@dataclass(frozen=True, slots=True)
class Formulation:
    """A problem with what its numbers mean. Choice c is `requirements.choices[c]`; after those come the arrivals of
    tensors at devices, if there are several. Costs are in the scale's units.

    An assignment of the requirements' choices says it all: the cheapest arrivals follow from it.
    """

    problem: Problem
    requirements: Requirements
    scale: Scale
    prices: Prices
    held: tuple[Held, ...]

    def source_assignment(self) -> tuple[int, ...] | None:
        """The alternatives that leave every node as it is, or None where some node has none such."""
        every = self.requirements.choices
        natural = [[i for i, a in enumerate(choice.alternatives) if a.is_source] for choice in every]
        for choices in self.requirements.holders().values():
            # All of a node runs in one way.
            ways = [{every[c].alternatives[i].way: i for i in natural[c]} for c in choices]
            common = set(ways[0]).intersection(*ways[1:])
            for c, own in zip(choices, ways, strict=True):
                natural[c] = [own[min(common)]] if common else []
        return tuple([known[0] for known in natural]) if all(natural) else None

    def of_nodes(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The part of a problem's assignment that is about the requirements' choices; nodes that are left out are at no
        more devices than they are needed at."""
        picked = list(assignment[: len(self.requirements.choices)])
        # What is left out behind another is settled first.
        for held in reversed(self.held):
            alternatives, chosen = self.requirements.choices[held.producer.choice].alternatives, held.producer.choice
            own = alternatives[picked[chosen]]
            if held.arrivals is None or not own.beside:
                continue
            given, wanted = self._stand(held, picked)
            plan = held.arrivals.plan(given, wanted)
            needed = {device for device in own.devices if device in wanted} | {a.source for a in plan.values()}
            same = (i for i, a in enumerate(alternatives) if a.is_left_out and a.formats == own.formats)
            picked[chosen] = next((i for i in same if {*alternatives[i].devices} == needed), picked[chosen])
        return tuple(picked)

    def completed(self, assignment: Sequence[int]) -> tuple[int, ...] | None:
        """An assignment of the requirements' choices with the arrivals that follow; None where there are none."""
        picked = list(assignment)
        for held in self.held:
            if held.arrivals is not None:
                try:
                    picked += held.arrivals.completed(*self._stand(held, assignment))
                except ValueError:
                    return None
        return tuple(picked)

    def conversions(self, assignment: Sequence[int]) -> Iterator[Made]:
        """The conversions that this assignment needs, each once a device, by tensor."""
        for held in self.held:
            if held.arrivals is None:
                yield from self._made(held, assignment)
            else:
                yield from self._made_apart(held, held.arrivals, assignment)

    def transfers(self, assignment: Sequence[int]) -> Iterator[PlannedTransfer]:
        """What this assignment brings from one device to another, each tensor once a format, by tensor."""
        for held in self.held:
            if held.arrivals is None:
                continue
            for target, arrival in held.arrivals.plan(*self._stand(held, assignment)).items():
                for f in arrival.formats:
                    format_, source = held.formats[f], arrival.source
                    size = self.prices.bytes_of(held.tensor, format_)
                    cost = self.prices.transfer(held.tensor, format_, source, target)
                    takers = tuple(self._takers(held, assignment, target, format_))
                    yield PlannedTransfer(held.tensor, format_, source, target, size, cost, held.producer, takers)

    def _made(self, held: Held, assignment: Sequence[int]) -> Iterator[Made]:
        giver = self._alternative(held.producer, assignment)
        produced = giver.formats[held.producer.port]
        wanted: dict[Order, list[Touch]] = {}
        for reader in held.readers:
            wanted.setdefault(self._alternative(reader, assignment).formats[reader.port], []).append(reader)
        for target, readers in wanted.items():
            if target != produced:
                yield self._conversion(held, giver.device, produced, target, readers, readers)

    def _made_apart(self, held: Held, arrivals: Arrivals, assignment: Sequence[int]) -> Iterator[Made]:
        given, wanted = self._stand(held, assignment)
        plan = arrivals.plan(given, wanted)
        for at, f, g in arrivals.made(given, wanted, plan):
            source, target = held.formats[f], held.formats[g]
            readers = [
                touch
                for touch in self._readers(held, assignment, at)
                if self._alternative(touch, assignment).formats[touch.port] == target
            ]
            beyond = [
                touch
                for q, arrival in plan.items()
                if at == arrival.source and g in arrival.formats
                for touch in self._takers(held, assignment, q, target)
            ]
            yield self._conversion(held, at, source, target, readers or beyond, [*readers, *beyond])

    def _conversion(
        self, held: Held, device: str, source: Order, target: Order, readers: Sequence[Touch], served: Sequence[Touch]
    ) -> Made:
        moved = self.prices.traffic(held.tensor, device, source, target)
        cost = self.prices.conversion(held.tensor, device, source, target)
        if cost is None:
            raise InternalError(f"tensor '{held.tensor.root.name}' is wanted in a format that cannot be made")
        touches = tuple(readers), tuple(served)
        return Made(held.tensor, source, target, moved, held.producer, *touches, cost, device)

    def _stand(self, held: Held, assignment: Sequence[int]) -> tuple[State, dict[str, frozenset[int]]]:
        """Where and in which format the tensor is given, and in which it is wanted at each device."""
        number = {f: i for i, f in enumerate(held.formats)}
        giver = self._alternative(held.producer, assignment)
        wanted: dict[str, set[int]] = {}
        for reader in held.readers:
            taker = self._alternative(reader, assignment)
            for device in taker.devices:
                wanted.setdefault(device, set()).add(number[taker.formats[reader.port]])
        given = State(giver.devices, number[giver.formats[held.producer.port]], giver.is_left_out)
        return given, {device: frozenset(formats) for device, formats in wanted.items()}

    def _takers(self, held: Held, assignment: Sequence[int], device: str, format_: Order) -> list[Touch]:
        """Who reads the tensor at a device in this format; where nobody does, all for whom it is converted there."""
        readers = self._readers(held, assignment, device)
        return [t for t in readers if self._alternative(t, assignment).formats[t.port] == format_] or readers

    def _readers(self, held: Held, assignment: Sequence[int], device: str) -> list[Touch]:
        return [touch for touch in held.readers if device in self._alternative(touch, assignment).devices]

    def _alternative(self, touch: Touch, assignment: Sequence[int]) -> Alternative:
        return self.requirements.choices[touch.choice].alternatives[assignment[touch.choice]]
