"""The transfers of one tensor between devices: which device copies which format from where, and converts it.

The node that defines a tensor runs at one device and produces one format. Other formats that are read at that device,
or transferred from it, are converted from the produced one. Each other device that reads the tensor receives it once,
in one format, and converts that to the others it needs. It may receive several formats if a transfer is cheaper than a
conversion. So each copy is charged once per device. A device may make copies from copies that it has.

In the cost problem, each device that may receive the tensor is a choice among `Transfer`s. The tensor at that device is
an item that this choice produces. Consumers at other devices read one further format of the item, "nothing". Formats
are numbers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import combinations, permutations, product

from msgspec import Struct

from relayout.solve.copies import copies_between
from relayout.solve.problem import Choice, Item, Row, Use

Formats = tuple[int, ...]
Wanted = Mapping[str, frozenset[int]]


class State(Struct, frozen=True):
    """The devices and the format of the tensor under one alternative. `is_memory`: its producer is an elided node, and
    each of these devices has the memory."""

    devices: tuple[str, ...]
    format: int
    is_memory: bool = False


Stated = tuple[int, tuple[State, ...]]
"""The index of a choice, and the state of the tensor under each of its alternatives."""

_MOST_FORMATS = 4
"""A tensor with more formats is transferred in at most two of them, because the sets would be too many."""


class Transfer(Struct, frozen=True):
    """A device receives the tensor from `source` in `formats`. Without a source the device itself produced it, in one
    format; without formats the device does not have the tensor."""

    source: str
    formats: Formats


class TransferChoices(Struct, frozen=True, dict=True):
    """One tensor of `count` formats that several devices may use.

    `conversion_costs[device][f][g]` is the cost of converting format f to g, None where no conversion exists;
    `transfer_costs[source, target][f]` is the cost of a transfer in format f. At the devices in `reusing`, a copy may
    be made from another copy.
    """

    name: str
    count: int
    producer: Stated
    consumers: tuple[Stated, ...]
    conversion_costs: Mapping[str, tuple[tuple[int | None, ...], ...]]
    transfer_costs: Mapping[tuple[str, str], tuple[int, ...]]
    reusing: frozenset[str] = frozenset()

    @cached_property
    def produced(self) -> tuple[State, ...]:
        """The states in which the tensor may be produced."""
        return tuple(dict.fromkeys(self.producer[1]))

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The devices that may produce the tensor."""
        return tuple(dict.fromkeys(device for state in self.produced for device in state.devices))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """All devices that may use the tensor, first those that may produce it."""
        read = [device for _, states in self.consumers for state in states for device in state.devices]
        return tuple(dict.fromkeys((*self.sources, *read)))

    def wanted(self, device: str) -> Formats:
        """The formats that some consumer at a device may read."""
        return tuple(sorted({s.format for _, states in self.consumers for s in states if device in s.devices}))

    def format_sets(self, source: str, target: str) -> list[Formats]:
        """The sets of formats of one transfer: single formats, and larger sets if they can save a conversion."""
        single: list[Formats] = [(f,) for f in range(self.count)]
        wanted = self.wanted(target)
        if not wanted:
            return []
        if target in self.reusing and self.count <= _MOST_FORMATS:
            # A format that no consumer reads may be the cheapest origin of one.
            wanted = tuple(range(self.count))
        pairs = [
            (self.conversion_costs[target][f][g], self.transfer_costs[source, target][g])
            for f, g in permutations(wanted, 2)
        ]
        if not any(converted is None or converted > transferred for converted, transferred in pairs):
            return single
        most = len(wanted) if self.count <= _MOST_FORMATS else 2
        return single + [formats for size in range(2, most + 1) for formats in combinations(wanted, size)]

    def plan(self, produced: State, wanted: Wanted) -> dict[str, Transfer] | None:
        """The cheapest transfer to each other device that reads the tensor; the produced format wins ties. None where
        no plan exists."""
        targets = [q for q in self.devices if q not in produced.devices and wanted.get(q)]
        best: tuple[tuple[int, int], tuple[Transfer, ...]] | None = None
        for each in product(*(self._options(produced, q) for q in targets)):
            incoming = dict(zip(targets, each, strict=True))
            cost = self.cost(produced, wanted, incoming)
            if cost is None:
                continue
            rank = cost, sum(f != produced.format for transfer in each for f in transfer.formats)
            if best is None or rank < best[0]:
                best = rank, each
        return None if best is None else dict(zip(targets, best[1], strict=True))

    def _options(self, produced: State, target: str) -> list[Transfer]:
        """The transfers by which a device may receive the tensor."""
        transfers = [Transfer(r, formats) for r in produced.devices for formats in self._formats_between[r, target]]
        return [transfer for transfer in transfers if _is_possible(produced, transfer)]

    def cost(self, produced: State, wanted: Wanted, incoming: Mapping[str, Transfer]) -> int | None:
        """The cost of these transfers and of the necessary conversions; None where one of those does not exist."""
        total = sum([self._cost_of(transfer, q) for q, transfer in incoming.items()])
        for q, source, target in self.conversions(produced, wanted, incoming):
            price = self.conversion_costs[q][source][target]
            if price is None:
                return None
            total += price
        return total

    def _cost_of(self, transfer: Transfer, target: str) -> int:
        if not transfer.source:
            return 0
        return sum([self.transfer_costs[transfer.source, target][f] for f in transfer.formats])

    def conversions(
        self, produced: State, wanted: Wanted, incoming: Mapping[str, Transfer]
    ) -> Iterator[tuple[str, int, int]]:
        """The conversions that these transfers need, as (device, from, to), in an order in which they can be made."""
        for device in produced.devices:
            sent = {f for transfer in incoming.values() if transfer.source == device for f in transfer.formats}
            yield from self._copies(device, (produced.format,), {*wanted.get(device, ()), *sent})
        for q, transfer in incoming.items():
            yield from self._copies(q, transfer.formats, wanted[q])

    def _copies(self, device: str, formats: Formats, wanted: Set[int]) -> Iterator[tuple[str, int, int]]:
        """The cheapest conversions at a device that has these formats."""
        missing = sorted(wanted - {*formats})
        edges = [(-1, target) for target in missing]
        if device in self.reusing and missing:
            # One more row: the format from which all these formats are free.
            rows = [(*row, None) for row in self.conversion_costs[device]]
            rows.append((*self._nearest_prices(device, formats), 0))
            known = copies_between(tuple(rows)).edges(self.count, sum(1 << target for target in missing))
            edges = edges if known is None else [(-1 if f == self.count else f, g) for f, g in known]
        for origin, target in edges:
            if target not in formats:
                yield device, origin if origin >= 0 else self._nearest(device, formats, target), target

    def _nearest(self, device: str, formats: Formats, target: int) -> int:
        prices = [(price, f) for f in formats if (price := self.conversion_costs[device][f][target]) is not None]
        return min(prices)[1] if prices else formats[0]

    @cached_property
    def _formats_between(self) -> dict[tuple[str, str], list[Formats]]:
        return {(r, q): self.format_sets(r, q) for r in self.sources for q in self.devices if r != q}

    @cached_property
    def _alternatives(self) -> dict[str, list[Transfer]]:
        """The possible transfers to each device. The only possible producer has no choice."""
        found: dict[str, list[Transfer]] = {}
        for q in self.devices:
            if self.sources == (q,):
                continue
            own = sorted({state.format for state in self.produced if q in state.devices})
            found[q] = [
                Transfer("", ()),
                *(Transfer("", (f,)) for f in own),
                *(Transfer(r, formats) for r in self.sources if r != q for formats in self._formats_between[r, q]),
            ]
        return found

    def chosen(self, produced: State, wanted: Wanted) -> tuple[int, ...] | None:
        """The alternatives of `choices()` in the cheapest plan; None where no plan exists."""
        plan = self.plan(produced, wanted)
        if plan is None:
            return None
        picked = []
        for q, alternatives in self._alternatives.items():
            here = Transfer("", (produced.format,)) if q in produced.devices else plan.get(q, alternatives[0])
            picked.append(alternatives.index(here))
        return tuple(picked)

    def choices(self) -> list[Choice]:
        """A choice for each device that may receive the tensor."""
        return [
            Choice(f"{self.name} at {device}", tuple([self._cost_of(each, device) for each in alternatives]))
            for device, alternatives in self._alternatives.items()
        ]

    def items(self, first: int) -> Iterator[Item]:
        """The items that couple those choices with producer, consumers and each other, from index `first` on."""
        number = {q: first + i for i, q in enumerate(self._alternatives)}
        for q, alternatives in self._alternatives.items():
            yield self._agreement(q, number[q], alternatives)
        for q in self.devices:
            if (item := self._at(q, number)) is not None:
                yield item

    def _agreement(self, device: str, number: int, alternatives: Sequence[Transfer]) -> Item:
        """An item by which a device receives the tensor only from one that produces it."""
        choice, states = self.producer
        state_count = len(self.produced)
        size = state_count + len(alternatives)
        rows: list[tuple[int | None, ...]] = []
        for own, state in enumerate(self.produced):
            fits = [i == own for i in range(state_count)] + [_agrees(a, device, state) for a in alternatives]
            rows.append(tuple([0 if fit else None for fit in fits]))
        rows += [tuple([0 if i == j else None for i in range(size)]) for j in range(state_count, size)]
        produced = tuple([self.produced.index(state) for state in states])
        received = tuple(range(state_count, size))
        return Item(f"{self.name} to {device}", Use(choice, produced), (Use(number, received),), tuple(rows))

    def _at(self, device: str, number: Mapping[str, int]) -> Item | None:
        """The item of the tensor at one device, with the conversions there; None if no consumer is at that device."""
        nothing = self.count
        consumers = [
            Use(choice, tuple([state.format if device in state.devices else nothing for state in states]))
            for choice, states in self.consumers
            if any(device in state.devices for state in states)
        ]
        for q, alternatives in self._alternatives.items():
            sets = [a.formats if a.source == device else () for a in alternatives]
            consumers += [
                Use(number[q], tuple([formats[i] if i < len(formats) else nothing for formats in sets]))
                for i in range(max(map(len, sets)))
            ]
        if not consumers:
            return None
        if device not in number:
            choice, states = self.producer
            row_of: dict[Formats, int] = {(f,): f for f in range(self.count)}
            producer = Use(choice, tuple([state.format for state in states]))
        else:
            transfers = self._alternatives[device]
            row_of = {(f,): f for f in range(self.count)} | {(): nothing}
            for transfer in transfers:
                row_of.setdefault(transfer.formats, max(len(row_of), nothing + 1))
            producer = Use(number[device], tuple([row_of[a.formats] for a in transfers]))
        size = max(len(row_of), nothing + 1)
        rows: list[Row] = [(None,) * nothing + (0,) + (None,) * (size - nothing - 1)] * size
        for formats, row in row_of.items():
            if formats:
                rows[row] = self._row(device, formats, row, size)
        return Item(f"{self.name} at {device}", producer, tuple(consumers), tuple(rows), device in self.reusing)

    def _row(self, device: str, formats: Formats, own: int, size: int) -> Row:
        """The cost of each format at a device that has `own`."""
        nearest = self._nearest_prices(device, formats)
        return (*nearest, 0, *(0 if i == own else None for i in range(self.count + 1, size)))

    def _nearest_prices(self, device: str, formats: Formats) -> Row:
        """The cost of each format at a device that has these formats."""
        prices: list[int | None] = []
        for target in range(self.count):
            known = [0 if f == target else self.conversion_costs[device][f][target] for f in formats]
            prices.append(min([p for p in known if p is not None], default=None))
        return tuple(prices)


def _agrees(transfer: Transfer, device: str, produced: State) -> bool:
    """Whether this transfer is consistent with the producer's state."""
    if device in produced.devices:
        return not transfer.source and transfer.formats == (produced.format,)
    return not transfer.formats or (transfer.source in produced.devices and _is_possible(produced, transfer))


def _is_possible(produced: State, transfer: Transfer) -> bool:
    """Whether the transfer exists: an elided node's result is transferred as the tensor that it aliases."""
    return not produced.is_memory or produced.format not in transfer.formats
