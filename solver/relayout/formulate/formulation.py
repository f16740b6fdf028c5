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
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.objective import Scale
from relayout.formulate.transfers import Arrivals, State
from relayout.layout.memory_format import MemoryFormat
from relayout.solve.problem import Problem

__all__ = ["Formulation", "PlannedConversion", "PlannedTransfer", "TensorUse"]


@dataclass(frozen=True, slots=True)
class PlannedConversion:
    """One conversion of a solution: `tensor` from the format that its producer gives, or in which it came to a device,
    to one that somebody wants there. `bytes` are read and written; `cost` is what it is priced at. It serves those who
    want it there, and those elsewhere for whom it crosses."""

    tensor: Tensor
    source: MemoryFormat
    target: MemoryFormat
    bytes: int
    producer: TensorUse
    wanted_by: tuple[TensorUse, ...]
    serves: tuple[TensorUse, ...]
    cost: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """One tensor that a solution brings from one device to another: its size in bytes, and what that is priced at."""

    tensor: Tensor
    format: MemoryFormat
    source: str
    target: str
    bytes: int
    cost: int
    producer: TensorUse
    wanted_by: tuple[TensorUse, ...]


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
    def_use: tuple[DefUse, ...]

    def source_assignment(self) -> tuple[int, ...] | None:
        """The alternatives that leave every node as it is, or None where some node has none such."""
        every = self.requirements.choices
        natural = [[i for i, a in enumerate(choice.alternatives) if a.is_source] for choice in every]
        for choices in self.requirements.region_ops().values():
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
        for def_use in reversed(self.def_use):
            alternatives, chosen = self.requirements.choices[def_use.producer.choice].alternatives, def_use.producer.choice
            own = alternatives[picked[chosen]]
            if def_use.arrivals is None or not own.beside:
                continue
            given, wanted = self._stand(def_use, picked)
            plan = def_use.arrivals.plan(given, wanted)
            needed = {device for device in own.devices if device in wanted} | {a.source for a in plan.values()}
            same = (i for i, a in enumerate(alternatives) if a.is_left_out and a.formats == own.formats)
            picked[chosen] = next((i for i in same if {*alternatives[i].devices} == needed), picked[chosen])
        return tuple(picked)

    def completed(self, assignment: Sequence[int]) -> tuple[int, ...] | None:
        """An assignment of the requirements' choices with the arrivals that follow; None where there are none."""
        picked = list(assignment)
        for def_use in self.def_use:
            if def_use.arrivals is not None:
                try:
                    picked += def_use.arrivals.completed(*self._stand(def_use, assignment))
                except ValueError:
                    return None
        return tuple(picked)

    def conversions(self, assignment: Sequence[int]) -> Iterator[PlannedConversion]:
        """The conversions that this assignment needs, each once a device, by tensor."""
        for def_use in self.def_use:
            if def_use.arrivals is None:
                yield from self._made(def_use, assignment)
            else:
                yield from self._made_apart(def_use, def_use.arrivals, assignment)

    def transfers(self, assignment: Sequence[int]) -> Iterator[PlannedTransfer]:
        """What this assignment brings from one device to another, each tensor once a format, by tensor."""
        for def_use in self.def_use:
            if def_use.arrivals is None:
                continue
            for target, arrival in def_use.arrivals.plan(*self._stand(def_use, assignment)).items():
                for f in arrival.formats:
                    format_, source = def_use.formats[f], arrival.source
                    size = self.prices.bytes_of(def_use.tensor, format_)
                    cost = self.prices.transfer(def_use.tensor, format_, source, target)
                    takers = tuple(self._takers(def_use, assignment, target, format_))
                    yield PlannedTransfer(def_use.tensor, format_, source, target, size, cost, def_use.producer, takers)

    def _made(self, def_use: DefUse, assignment: Sequence[int]) -> Iterator[PlannedConversion]:
        producer = self._alternative(def_use.producer, assignment)
        produced = producer.formats[def_use.producer.port]
        wanted: dict[MemoryFormat, list[TensorUse]] = {}
        for reader in def_use.readers:
            wanted.setdefault(self._alternative(reader, assignment).formats[reader.port], []).append(reader)
        for target, readers in wanted.items():
            if target != produced:
                yield self._conversion(def_use, producer.device, produced, target, readers, readers)

    def _made_apart(self, def_use: DefUse, arrivals: Arrivals, assignment: Sequence[int]) -> Iterator[PlannedConversion]:
        given, wanted = self._stand(def_use, assignment)
        plan = arrivals.plan(given, wanted)
        for at, f, g in arrivals.made(given, wanted, plan):
            source, target = def_use.formats[f], def_use.formats[g]
            readers = [
                use
                for use in self._readers(def_use, assignment, at)
                if self._alternative(use, assignment).formats[use.port] == target
            ]
            beyond = [
                use
                for q, arrival in plan.items()
                if at == arrival.source and g in arrival.formats
                for use in self._takers(def_use, assignment, q, target)
            ]
            yield self._conversion(def_use, at, source, target, readers or beyond, [*readers, *beyond])

    def _conversion(
        self, def_use: DefUse, device: str, source: MemoryFormat, target: MemoryFormat, readers: Sequence[TensorUse], served: Sequence[TensorUse]
    ) -> PlannedConversion:
        moved = self.prices.traffic(def_use.tensor, device, source, target)
        cost = self.prices.conversion(def_use.tensor, device, source, target)
        if cost is None:
            raise InternalError(f"tensor '{def_use.tensor.base.name}' is wanted in a format that cannot be made")
        uses = tuple(readers), tuple(served)
        return PlannedConversion(def_use.tensor, source, target, moved, def_use.producer, *uses, cost, device)

    def _stand(self, def_use: DefUse, assignment: Sequence[int]) -> tuple[State, dict[str, frozenset[int]]]:
        """Where and in which format the tensor is given, and in which it is wanted at each device."""
        number = {f: i for i, f in enumerate(def_use.formats)}
        producer = self._alternative(def_use.producer, assignment)
        wanted: dict[str, set[int]] = {}
        for reader in def_use.readers:
            consumer = self._alternative(reader, assignment)
            for device in consumer.devices:
                wanted.setdefault(device, set()).add(number[consumer.formats[reader.port]])
        given = State(producer.devices, number[producer.formats[def_use.producer.port]], producer.is_left_out)
        return given, {device: frozenset(formats) for device, formats in wanted.items()}

    def _takers(self, def_use: DefUse, assignment: Sequence[int], device: str, format_: MemoryFormat) -> list[TensorUse]:
        """Who reads the tensor at a device in this format; where nobody does, all for whom it is converted there."""
        readers = self._readers(def_use, assignment, device)
        return [t for t in readers if self._alternative(t, assignment).formats[t.port] == format_] or readers

    def _readers(self, def_use: DefUse, assignment: Sequence[int], device: str) -> list[TensorUse]:
        return [use for use in def_use.readers if device in self._alternative(use, assignment).devices]

    def _alternative(self, use: TensorUse, assignment: Sequence[int]) -> Alternative:
        return self.requirements.choices[use.choice].alternatives[assignment[use.choice]]
