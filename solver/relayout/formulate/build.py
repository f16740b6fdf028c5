"""Alternatives and their costs -> the cost problem as pure data, with its provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain as joined
from math import comb

import onnx_ir as ir
from msgspec.structs import replace

from relayout.backend.interface import Backend
from relayout.candidates.requirements import Requirements
from relayout.formulate.conversion_costs import ConversionCosts, CostTable
from relayout.formulate.coupling import coupling_items
from relayout.formulate.def_use import DefUse, TensorUse, def_use_chains
from relayout.formulate.device_expansion import expand_devices
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import Objective, Scale
from relayout.formulate.tie_breaks import MOST_CHANGES, changes
from relayout.formulate.transfers import State, Stated, TransferChoices
from relayout.layout.memory_format import MemoryFormat
from relayout.solve.problem import Choice, Item, Problem, Use

_Rows = tuple[tuple[int | None, ...], ...]

MOST_REUSED = 10
"""A tensor of no more formats at all its devices may have copies made from copies, however many nodes read it."""
MOST_REUSED_BY_FEW = 16
"""A tensor of no more at its one device may, if few nodes read it: the sets of its copies are then no more than those
of a tensor of `MOST_REUSED` formats that many read. Any other is converted from the produced or received formats
alone."""


def build(
    requirements: Requirements,
    elements: Callable[[ir.Shape | None], int],
    backend: Backend,
    objective: Objective,
    *,
    host: str | None = None,
) -> Formulation:
    """The problem of choosing every node's alternative at the least cost of nodes, conversions and transfers.

    `elements` counts the elements of a shape, with a size assumed for each symbolic dim. `host` is the device of the
    graph's inputs and outputs; if None, any device is possible.
    """
    devices = backend.devices()
    if devices:
        requirements = expand_devices(requirements, devices, (host,) if host is not None else devices)
    costs = ConversionCosts(requirements, backend, elements)
    chains = [_with_copies(costs, chain) for chain in def_use_chains(requirements, has_devices=bool(devices))]
    scale = _scale(requirements, costs, chains, objective)
    packed = _packed_by(scale)
    choices = _priced(requirements, scale, changes(requirements, backend))
    items: list[Item] = []
    provenance: list[int | None] = []
    def_use: list[DefUse] = []
    for index, chain in enumerate(chains):
        if len(chain.devices) > 1:
            transfers = _transfer_choices(requirements, costs, scale, packed, chain)
            items += transfers.items(len(choices))
            choices += transfers.choices()
            chain = replace(chain, transfers=transfers)
        elif len(chain.formats) > 1:
            producer, *consumers = [_use(requirements, use, chain.number) for use in chain.uses]
            rows = packed(costs.table(chain.tensor, chain.devices[0], chain.formats))
            reuses = bool(_reusing(costs, chain))
            items.append(Item(chain.tensor.base.name or "", producer, tuple(consumers), rows, reuses))
        provenance += [index] * (len(items) - len(provenance))
        def_use.append(chain)
    items += coupling_items(requirements)
    provenance += [None] * (len(items) - len(provenance))
    problem = Problem(tuple(choices), tuple(items))
    return Formulation(problem, requirements, scale, costs, tuple(def_use), tuple(provenance))


def _priced(requirements: Requirements, scale: Scale, changes_of: Iterable[tuple[int, ...]]) -> list[Choice]:
    """The choices with the costs of their alternatives, computed once for all nodes that share them."""
    known: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    found = []
    for choice, changed in zip(requirements.choices, changes_of, strict=True):
        key = id(choice.alternatives), changed
        costs = known.get(key)
        if costs is None:
            each = zip(choice.alternatives, changed, strict=True)
            costs = known[key] = tuple(
                [scale.price(a.cost, changes=change, elidable=bool(a.elidable_bytes)) for a, change in each]
            )
        found.append(Choice(choice.label, costs))
    return found


def _packed_by(scale: Scale) -> Callable[[CostTable], _Rows]:
    """The rows of a table as packed costs. Equal ones are shared, because networks repeat their blocks."""
    equal: dict[_Rows, _Rows] = {}
    price, unit = scale.price, scale.objective.unit

    @cache
    def packed(table: CostTable) -> _Rows:
        prices: dict[int, int | None] = {id(each): price(each.cost, each.count(unit)) for each in table.distinct}
        prices[id(None)] = None
        rows = tuple([tuple([prices[id(each)] for each in row]) for row in table.rows])
        return equal.setdefault(rows, rows)

    return packed


def _with_copies(costs: ConversionCosts, chain: DefUse) -> DefUse:
    """The chain with formats that no node takes, where a copy of one may cost less: those that the source's Transposes
    make, and those between the steps of a conversion. The former come first: of copies that cost the same, the one of
    the first format is read."""
    if len(chain.formats) < 2:
        return chain
    known = tuple(dict.fromkeys((*chain.turned, *chain.formats)))
    most = MOST_REUSED // len(chain.devices)
    further = [costs.between(chain.tensor, device, known) for device in chain.devices] if len(known) < most else []
    formats = tuple(dict.fromkeys((*known, *joined.from_iterable(further))))[: max(most, len(known))]
    more = replace(chain, formats=formats)
    return more if len(formats) > len(chain.formats) and _reusing(costs, more) else chain


def _reusing(costs: ConversionCosts, chain: DefUse) -> frozenset[str]:
    """The devices at which copies may be made from copies, and some may cost less for it."""
    count = len(chain.formats) * len(chain.devices)
    # Transfers between devices are read as well.
    readers = len(chain.consumers) if len(chain.devices) == 1 else count
    if count > MOST_REUSED_BY_FEW or _splits(count, readers) > _splits(MOST_REUSED, MOST_REUSED):
        return frozenset()
    tables = {device: costs.table(chain.tensor, device, chain.formats) for device in chain.devices}
    return frozenset(device for device, table in tables.items() if not table.is_direct)


def _splits(formats: int, readers: int) -> int:
    """From how many formats in how many ways the sets that the readers may read are made in two parts."""
    return formats * sum(comb(formats, size) << size for size in range(min(formats, readers) + 1))


def _use(requirements: Requirements, use: TensorUse, number: Mapping[MemoryFormat, int]) -> Use:
    alternatives, port = requirements.choices[use.choice].alternatives, use.port
    return Use(use.choice, tuple([number[a.formats[port]] for a in alternatives]))


def _transfer_choices(
    requirements: Requirements,
    costs: ConversionCosts,
    scale: Scale,
    packed: Callable[[CostTable], _Rows],
    chain: DefUse,
) -> TransferChoices:
    producer, *consumers = [_stated(requirements, use, chain.number) for use in chain.uses]
    return TransferChoices(
        chain.tensor.base.name or "",
        len(chain.formats),
        producer,
        tuple(consumers),
        {device: packed(costs.table(chain.tensor, device, chain.formats)) for device in chain.devices},
        {
            (p, q): tuple([scale.price(costs.transfer(chain.tensor, f, p, q)) for f in chain.formats])
            for p in chain.devices
            for q in chain.devices
            if p != q
        },
        _reusing(costs, chain),
    )


def _stated(requirements: Requirements, use: TensorUse, number: Mapping[MemoryFormat, int]) -> Stated:
    choice = requirements.choices[use.choice]
    is_result = choice.ports[use.port].is_result
    return use.choice, tuple(
        [State(a.devices, number[a.formats[use.port]], is_result and a.is_elided) for a in choice.alternatives]
    )


def _scale(requirements: Requirements, costs: ConversionCosts, chains: Sequence[DefUse], objective: Objective) -> Scale:
    """The scale for all possible charges and an upper bound on the sum of each quantity."""
    # Nodes with the same alternatives share them.
    times = Counter([id(choice.alternatives) for choice in requirements.choices])
    shared = {id(choice.alternatives): choice.alternatives for choice in requirements.choices}
    charges = {a.cost for alternatives in shared.values() for a in alternatives}
    most_bytes = sum(times[key] * max(a.cost for a in alternatives) for key, alternatives in shared.items())
    elidable = sum(times[key] * any(a.elidable_bytes for a in alternatives) for key, alternatives in shared.items())
    most_conversions = 0
    for chain in chains:
        formats, devices = len(chain.formats), chain.devices
        if formats == len(devices) == 1:
            continue
        tables = [costs.table(chain.tensor, device, chain.formats) for device in devices]
        conversions = frozenset().union(*(table.charges for table in tables))
        transfers = {
            costs.transfer(chain.tensor, f, p, q) for f in chain.formats for p in devices for q in devices if p != q
        }
        charges |= conversions | transfers
        # A copy that no consumer reads may lead to one that is.
        copies = (formats - 1) * len(devices) + len(devices) - 1
        most_bytes += copies * max(conversions) + (len(devices) - 1) * formats * max(transfers, default=0)
        most_conversions += copies * max(table.most_passes for table in tables)
    most = {
        "bytes": most_bytes,
        "transposes": most_conversions,
        "elidable": elidable,
        "changes": MOST_CHANGES * len(requirements.choices),
    }
    return Scale.of(objective, charges, most)
