"""Requirements -> the problem as pure data (see `relayout.formulation` for what its numbers mean)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.candidates.requirements import Requirements
from relayout.formulate.conversion_costs import Prices
from relayout.formulate.def_use import DefUse, TensorUse, def_use_chains
from relayout.formulate.device_expansion import expand_devices
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import Scale
from relayout.formulate.tie_breaks import changes
from relayout.formulate.transfers import Arrivals, State, Stated
from relayout.layout.memory_format import MemoryFormat
from relayout.solve.problem import Choice, Problem, Use, Value

__all__ = ["formulate"]


def formulate(
    requirements: Requirements,
    elements: Callable[[ir.Shape | None], int],
    backend: Backend,
    objective: str,
    *,
    host: str | None = None,
) -> Formulation:
    """The problem of choosing every node's alternative at the least cost of conversions, and of transfers.

    `elements` counts the elements of a shape, symbolic dims priced. `host` is the device of the graph's inputs and
    outputs; without it they are where they cost least.
    """
    devices = backend.devices()
    if devices:
        requirements = expand_devices(requirements, devices, (host,) if host is not None else devices)
    prices = Prices(requirements, backend, elements)
    def_use = def_use_chains(requirements, prices, apart=bool(devices))
    scale = _scale(requirements, prices, def_use, objective)
    choices = [
        Choice(
            choice.label,
            tuple(
                scale.price(a.cost, 0, change) + (scale.aside if a.moves else 0)
                for a, change in zip(choice.alternatives, changed, strict=True)
            ),
        )
        for choice, changed in zip(requirements.choices, changes(requirements, backend), strict=True)
    ]
    values: list[Value] = []
    uniform: dict[tuple[int, int], tuple[tuple[int | None, ...], ...]] = {}
    settled: list[DefUse] = []
    for h in def_use:
        number = {f: i for i, f in enumerate(h.formats)}
        arrivals = None
        if len(h.devices) > 1:
            producer, *takers = [_stated(requirements, use, number) for use in h.uses]
            change, carry = partial(_change, prices, scale, h), partial(_carry, prices, scale, h)
            arrivals = Arrivals(h.tensor.base.name or "", len(number), producer, tuple(takers), change, carry)
            values += arrivals.values(len(choices))
            choices += arrivals.choices()
        elif len(h.formats) > 1:
            conversion = _conversions(prices, scale, h, uniform)
            given, *readers = [_use(requirements, use, number) for use in h.uses]
            values.append(Value(h.tensor.base.name or "", given, tuple(readers), conversion))
        settled.append(replace(h, arrivals=arrivals) if arrivals is not None else h)
    values += _together(requirements)
    return Formulation(Problem(tuple(choices), tuple(values)), requirements, scale, prices, tuple(settled))


def _together(requirements: Requirements) -> Iterator[Value]:
    """What crosses the border of the graphs inside a node is where the node runs, and in the way that it runs."""
    for node, choices in requirements.region_ops().items():
        known = list(dict.fromkeys((a.device, a.way) for c in choices for a in requirements.choices[c].alternatives))
        table = tuple(tuple(0 if p == q else None for q in known) for p in known)
        if len(known) > 1:
            alternatives = [requirements.choices[c].alternatives for c in choices]
            uses = [
                Use(c, tuple([known.index((a.device, a.way)) for a in each]))
                for c, each in zip(choices, alternatives, strict=True)
            ]
            yield Value(f"{node.name or ''} way", uses[0], tuple(uses[1:]), table)


def _stated(requirements: Requirements, use: TensorUse, number: Mapping[MemoryFormat, int]) -> Stated:
    choice = requirements.choices[use.choice]
    is_given = choice.ports[use.port].is_result
    return use.choice, tuple(
        [State(a.devices, number[a.formats[use.port]], is_given and a.is_left_out) for a in choice.alternatives]
    )


def _use(requirements: Requirements, use: TensorUse, number: Mapping[MemoryFormat, int]) -> Use:
    alternatives = requirements.choices[use.choice].alternatives
    return Use(use.choice, tuple([number[a.formats[use.port]] for a in alternatives]))


def _change(prices: Prices, scale: Scale, def_use: DefUse, device: str, source: int, target: int) -> int | None:
    cost = prices.conversion(def_use.tensor, device, def_use.formats[source], def_use.formats[target])
    count = prices.passes(def_use.tensor, device, def_use.formats[source], def_use.formats[target]) if cost is not None else 0
    return None if cost is None else scale.price(cost, count)


def _carry(prices: Prices, scale: Scale, def_use: DefUse, source: str, target: str, format_: int) -> int:
    return scale.price(prices.transfer(def_use.tensor, def_use.formats[format_], source, target))


_Table = tuple[tuple[int | None, ...], ...]


def _conversions(prices: Prices, scale: Scale, def_use: DefUse, uniform: dict[tuple[int, int], _Table]) -> _Table:
    """The prices for a tensor that stays at one device. Equal tables are one object: networks repeat their blocks."""
    known = def_use.formats
    (device,) = def_use.devices
    numbers = range(len(known))
    if def_use.uniform is None:
        return tuple(tuple(_change(prices, scale, def_use, device, f, g) for g in numbers) for f in numbers)
    key = (len(known), def_use.uniform)
    if key not in uniform:
        price = scale.price(def_use.uniform, 1)
        uniform[key] = tuple(tuple(0 if f == g else price for g in numbers) for f in numbers)
    return uniform[key]


def _scale(requirements: Requirements, prices: Prices, def_use: Sequence[DefUse], objective: str) -> Scale:
    """The scale for all that may be charged, and at most how much of it can add up."""
    charges = {a.cost for c in requirements.choices for a in c.alternatives}
    most_bytes = sum(max(a.cost for a in c.alternatives) for c in requirements.choices)
    most_conversions, asides = 0, sum(any(a.moves for a in c.alternatives) for c in requirements.choices)
    for h in def_use:
        known, devices = h.formats, h.devices
        count = 1
        if h.uniform is not None:
            own = [h.uniform]
        else:
            pairs = [(p, f, g) for p in devices for f, g in permutations(known, 2)]
            priced = [prices.conversion(h.tensor, p, f, g) for p, f, g in pairs]
            count = max((prices.passes(h.tensor, p, f, g) for p, f, g in pairs), default=1)
            own = [0, *(price for price in priced if price is not None)]
        transfers = [prices.transfer(h.tensor, f, p, q) for f in known for p in devices for q in devices if p != q]
        copies = min(len(known) - 1, len(h.readers)) * len(devices) + len(devices) - 1
        charges.update(own, transfers)
        most_bytes += copies * max(own) + (len(devices) - 1) * len(known) * max(transfers, default=0)
        most_conversions += copies * count
    return Scale.of(objective, charges, (most_bytes, most_conversions, len(requirements.choices)), asides)
