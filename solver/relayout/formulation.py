"""Requirements -> the problem as pure data, and the way back from an assignment to formats.

A conversion is priced as a transpose of the whole tensor: twice its bytes, read and write. Formats with the same normal
form are one format: there is nothing to convert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from relayout.backend import Backend, TensorType
from relayout.cost import Scale
from relayout.errors import InternalError
from relayout.layout import Layout
from relayout.memory_format import Order, atom_extent
from relayout.pricing import tensor_bytes
from relayout.problem import Choice, Problem, Use, Value
from relayout.requirements import Requirements
from relayout.views import Tensor

__all__ = ["Formulation", "Made", "Touch", "formulate"]


@dataclass(frozen=True, slots=True)
class Touch:
    """Port `port` of choice `choice`: one place where a tensor is given or read."""

    choice: int
    port: int


@dataclass(frozen=True, slots=True)
class Made:
    """One conversion of a solution: `tensor` from the format that its producer gives to one that somebody wants."""

    tensor: Tensor
    source: Order
    target: Order
    bytes: int
    producer: Touch
    wanted_by: tuple[Touch, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor with its producer and its readers."""

    tensor: Tensor
    producer: Touch
    readers: tuple[Touch, ...]


@dataclass(frozen=True, slots=True)
class Formulation:
    """A problem with what its numbers mean. Choice c is `requirements.choices[c]`; costs are in the scale's units."""

    problem: Problem
    requirements: Requirements
    scale: Scale
    charges: Mapping[Tensor, int]
    held: tuple[_Held, ...]

    def source_assignment(self) -> tuple[int, ...] | None:
        """The alternatives that leave every node as it is, or None where some node has none such."""
        picked = []
        for choice in self.requirements.choices:
            natural = next((i for i, a in enumerate(choice.alternatives) if a.is_source), None)
            if natural is None:
                return None
            picked.append(natural)
        return tuple(picked)

    def conversions(self, assignment: Sequence[int]) -> Iterator[Made]:
        """The conversions that this assignment needs, each once, by tensor."""
        for held in self.held:
            produced = self._format(held.producer, assignment)
            wanted: dict[Order, list[Touch]] = {}
            for reader in held.readers:
                wanted.setdefault(self._format(reader, assignment), []).append(reader)
            for target, readers in wanted.items():
                if target != produced:
                    charge = self.charges[held.tensor]
                    yield Made(held.tensor, produced, target, charge, held.producer, tuple(readers))

    def _format(self, touch: Touch, assignment: Sequence[int]) -> Order:
        return self.requirements.choices[touch.choice].alternatives[assignment[touch.choice]].formats[touch.port]


def formulate(
    requirements: Requirements, elements: Callable[[ir.Shape | None], int], backend: Backend, objective: str
) -> Formulation:
    """The problem of choosing every node's alternative at the least cost of conversions.

    `elements` counts the elements of a shape, symbolic dims priced.
    """
    held = _hold(requirements)
    charges = {h.tensor: 2 * tensor_bytes(elements(h.tensor.root.shape), h.tensor.root.dtype) for h in held}
    formats = {h.tensor: _formats(requirements, h) for h in held}
    costs = [a.cost for c in requirements.choices for a in c.alternatives]
    copies = [min(len(formats[h.tensor]) - 1, len(h.readers)) for h in held]
    special = type(backend).conversion_cost is not Backend.conversion_cost
    prices = {h.tensor: _prices(requirements, backend, h, formats[h.tensor]) if special else {} for h in held}
    all_charges = [*charges.values(), *costs, *(p for table in prices.values() for p in table.values())]
    most_bytes = (
        sum(n * max([charges[h.tensor], *prices[h.tensor].values()]) for n, h in zip(copies, held, strict=True))
        + sum(max(a.cost for a in c.alternatives) for c in requirements.choices)
    )
    scale = Scale.of(objective, all_charges, (most_bytes, sum(copies), len(requirements.choices)))

    choices = tuple(
        Choice(choice.label, tuple(scale.price(a.cost, 0, not a.is_source) for a in choice.alternatives))
        for choice in requirements.choices
    )
    values = []
    uniform: dict[tuple[int, int], tuple[tuple[int | None, ...], ...]] = {}
    for h in held:
        known = formats[h.tensor]
        if len(known) == 1:
            continue
        charge = charges[h.tensor]
        table = prices[h.tensor]
        if table or not all(a.is_whole for f in known for a in f):
            conversion = tuple(
                tuple(_conversion(scale, h.tensor, table, f, g, charge) for g in known) for f in known
            )
        else:
            key = (len(known), charge)
            if key not in uniform:
                price = scale.price(charge, 1)
                uniform[key] = tuple(
                    tuple(0 if i == j else price for j in range(len(known))) for i in range(len(known))
                )
            conversion = uniform[key]
        number = {f: i for i, f in enumerate(known)}
        uses = [_use(requirements, touch, number) for touch in (h.producer, *h.readers)]
        values.append(Value(h.tensor.root.name or "", uses[0], tuple(uses[1:]), conversion))
    return Formulation(Problem(choices, tuple(values)), requirements, scale, charges, held)


def _hold(requirements: Requirements) -> tuple[_Held, ...]:
    producers: dict[Tensor, Touch] = {}
    readers: dict[Tensor, list[Touch]] = {}
    for c, choice in enumerate(requirements.choices):
        for p, port in enumerate(choice.ports):
            tensor = port.operand.tensor
            if port.is_result:
                producers[tensor] = Touch(c, p)
            else:
                readers.setdefault(tensor, []).append(Touch(c, p))
    for tensor in readers:
        if tensor not in producers:
            raise InternalError(f"tensor '{tensor.root.name}' is read and nothing gives it")
    return tuple(_Held(t, producers[t], tuple(readers[t])) for t in producers if t in readers)


def _formats(requirements: Requirements, held: _Held) -> tuple[Order, ...]:
    found: dict[Order, None] = {}
    for touch in (held.producer, *held.readers):
        for alternative in requirements.choices[touch.choice].alternatives:
            found[alternative.formats[touch.port]] = None
    return tuple(found)


def _use(requirements: Requirements, touch: Touch, number: Mapping[Order, int]) -> Use:
    alternatives = requirements.choices[touch.choice].alternatives
    return Use(touch.choice, tuple(number[a.formats[touch.port]] for a in alternatives))


def _conversion(
    scale: Scale, tensor: Tensor, table: Mapping[tuple[Order, Order], int], source: Order, target: Order, charge: int
) -> int | None:
    if source == target:
        return 0
    # A Reshape to the atoms can leave one extent open; with two unknown ones it cannot be written.
    unknown = sum(not isinstance(atom_extent(a, tensor.extents), int) for a in source)
    if unknown > 1 and not all(a.is_whole for a in (*source, *target)):
        return None
    return scale.price(table.get((source, target), charge), 1)


def _prices(
    requirements: Requirements,
    backend: Backend,
    held: _Held,
    formats: tuple[Order, ...],
) -> dict[tuple[Order, Order], int]:
    """The conversions that the backend prices itself."""
    found: dict[tuple[Order, Order], int] = {}
    producer = requirements.choices[held.producer.choice].ports[held.producer.port].operand
    rank = len(held.tensor.extents)
    dtype = held.tensor.root.dtype
    size = max(1, dtype.bitwidth // 8) if dtype is not None and dtype.bitwidth else 4
    letters = {f: requirements.names.in_order(producer, f) for f in formats}
    for f in formats:
        shape = tuple(held.tensor.extents[a.axis] for a in f)
        for g in formats:
            source = Layout.from_names(letters[f] or "") if letters[f] else Layout.any(len(f))
            target = Layout.from_names(letters[g] or "") if letters[g] else Layout.any(len(g))
            price = backend.conversion_cost(TensorType(size, shape), source, target) if f != g and rank else None
            if price is not None:
                found[f, g] = price
    return found
