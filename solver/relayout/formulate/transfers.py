"""How one tensor gets to the devices that read it: what crosses, in which format, and which copies are made where.

The node that gives a tensor runs at one device, and gives it in one format. At that device the other formats that are
wanted there, or that shall cross, are made of it. To each other device that reads it, it crosses once, in one format,
and the others are made of that; where transfer is cheaper than a conversion it may cross in several. So each copy is
paid once a device, however many read it there, and each transfer once.

In the problem, a device where a tensor may arrive is a choice: that nothing arrives, that it was made there, or from
where it crosses in which formats. What lies at the device is a value of that choice; one more format of it, "nothing",
is what is wanted by all that runs elsewhere. Formats are numbers here, devices names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations, product

from relayout.solve.problem import Choice, Item, Use

__all__ = ["Arrival", "Arrivals", "State", "Stated"]

Formats = tuple[int, ...]
Wanted = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class State:
    """Where an alternative has the tensor, and in which format. `is_memory`: what gives it is no node, but what lies at
    each of these devices."""

    devices: tuple[str, ...]
    format: int
    is_memory: bool = False


Stated = tuple[int, tuple[State, ...]]
"""A choice by its number, and how each of its alternatives has the tensor."""

_MOST_FORMATS = 4
"""With more, a tensor that crosses in several formats crosses in two: sets of them would be too many."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The tensor crosses from `source` in `formats`; without a source it was made here, in its one format. Without
    formats nothing is here."""

    source: str
    formats: Formats


@dataclass(frozen=True)
class Arrivals:
    """One tensor of `count` formats that several devices may touch.

    `change(device, f, g)` is the price of making format g from f, None where that cannot be; `carry(source, target, f)`
    that of a transfer.
    """

    name: str
    count: int
    producer: Stated
    readers: tuple[Stated, ...]
    change: Callable[[str, int, int], int | None]
    carry: Callable[[str, str, int], int]

    @cached_property
    def given(self) -> tuple[State, ...]:
        """How the tensor may be given."""
        return tuple(dict.fromkeys(self.producer[1]))

    @cached_property
    def makers(self) -> tuple[str, ...]:
        """The devices where the tensor may be made."""
        return tuple(dict.fromkeys(device for state in self.given for device in state.devices))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """All devices that may touch it, those that may make it first."""
        read = [device for _, states in self.readers for state in states for device in state.devices]
        return tuple(dict.fromkeys((*self.makers, *read)))

    def wanted(self, device: str) -> Formats:
        """The formats in which somebody at a device may want it."""
        return tuple(sorted({s.format for _, states in self.readers for s in states if device in s.devices}))

    def transfers(self, source: str, target: str) -> list[Formats]:
        """The sets of formats in which it may cross: single ones, and more where that can spare a conversion."""
        singles: list[Formats] = [(f,) for f in range(self.count)]
        wanted = self.wanted(target)
        if not wanted:
            return []
        pairs = [(self.change(target, f, g), self.carry(source, target, g)) for f, g in permutations(wanted, 2)]
        if not any(converted is None or converted > carried for converted, carried in pairs):
            return singles
        most = len(wanted) if self.count <= _MOST_FORMATS else 2
        return singles + [formats for size in range(2, most + 1) for formats in combinations(wanted, size)]

    def plan(self, given: State, wanted: Wanted) -> dict[str, Arrival]:
        """From where and in which formats the tensor crosses to each other device that wants it, at the least cost of it
        all, and as it is made where that costs no more.

        Raises ValueError where that cannot be.
        """
        targets = [q for q in self.devices if q not in given.devices and wanted.get(q)]
        best: tuple[tuple[int, int], tuple[Arrival, ...]] | None = None
        for each in product(*(self._ways(given, q) for q in targets)):
            arrived = dict(zip(targets, each, strict=True))
            cost = self.cost(given, wanted, arrived)
            if cost is None:
                continue
            rank = cost, sum(f != given.format for arrival in each for f in arrival.formats)
            if best is None or rank < best[0]:
                best = rank, each
        if best is None:
            raise ValueError(f"no way to bring {self.name} to {', '.join(targets)}")
        return dict(zip(targets, best[1], strict=True))

    def _ways(self, given: State, target: str) -> list[Arrival]:
        """How the tensor may cross to a device where it is not given."""
        ways = [Arrival(r, formats) for r in given.devices for formats in self._transfers[r, target]]
        return [way for way in ways if _leaves(given, way)]

    def cost(self, given: State, wanted: Wanted, arrived: Mapping[str, Arrival]) -> int | None:
        """What it costs that the tensor crosses so; None where something cannot be made."""
        total = 0
        for q, arrival in arrived.items():
            total += sum(self.carry(arrival.source, q, f) for f in arrival.formats)
        for q, source, target in self.made(given, wanted, arrived):
            price = self.change(q, source, target)
            if price is None:
                return None
            total += price
        return total

    def made(
        self, given: State, wanted: Wanted, arrived: Mapping[str, Arrival]
    ) -> Iterator[tuple[str, int, int]]:
        """The conversions that this takes, as (device, from, to): first those where the tensor is given."""
        for device in given.devices:
            transfer = {f for arrival in arrived.values() if arrival.source == device for f in arrival.formats}
            for target in sorted({*wanted.get(device, ()), *transfer} - {given.format}):
                yield device, given.format, target
        for q, arrival in arrived.items():
            for target in sorted({*wanted[q]} - {*arrival.formats}):
                yield q, self._nearest(q, arrival.formats, target), target

    def _nearest(self, device: str, formats: Formats, target: int) -> int:
        prices = [(price, f) for f in formats if (price := self.change(device, f, target)) is not None]
        return min(prices)[1] if prices else formats[0]

    @cached_property
    def _transfers(self) -> dict[tuple[str, str], list[Formats]]:
        return {(r, q): self.transfers(r, q) for r in self.makers for q in self.devices if r != q}

    @cached_property
    def _alternatives(self) -> dict[str, list[Arrival]]:
        """For each device that chooses, what may arrive there. Where it is made at one device only, it is there."""
        found: dict[str, list[Arrival]] = {}
        for q in self.devices:
            if self.makers == (q,):
                continue
            own = sorted({state.format for state in self.given if q in state.devices})
            found[q] = [
                Arrival("", ()),
                *(Arrival("", (f,)) for f in own),
                *(Arrival(r, formats) for r in self.makers if r != q for formats in self._transfers[r, q]),
            ]
        return found

    def completed(self, given: State, wanted: Wanted) -> tuple[int, ...]:
        """The alternatives of the choices of `choices` that go with the cheapest plan."""
        plan = self.plan(given, wanted)
        picked = []
        for q, alternatives in self._alternatives.items():
            here = Arrival("", (given.format,)) if q in given.devices else plan.get(q, alternatives[0])
            picked.append(alternatives.index(here))
        return tuple(picked)

    def choices(self) -> list[Choice]:
        """A choice for each device where the tensor may arrive."""
        return [
            Choice(
                f"{self.name} at {q}",
                tuple(sum(self.carry(a.source, q, f) for f in a.formats) if a.source else 0 for a in alternatives),
            )
            for q, alternatives in self._alternatives.items()
        ]

    def values(self, first: int) -> Iterator[Item]:
        """What ties those choices, the first of which is choice `first`, to the producer, to the readers and to each
        other."""
        number = {q: first + i for i, q in enumerate(self._alternatives)}
        for q, alternatives in self._alternatives.items():
            yield self._agreement(q, number[q], alternatives)
        for q in self.devices:
            if (value := self._at(q, number)) is not None:
                yield value

    def _agreement(self, device: str, number: int, alternatives: Sequence[Arrival]) -> Item:
        """That what arrives at a device comes from where it is made."""
        choice, states = self.producer
        made = len(self.given)
        size = made + len(alternatives)
        rows: list[tuple[int | None, ...]] = []
        for own, state in enumerate(self.given):
            fits = [i == own for i in range(made)] + [_agrees(a, device, state) for a in alternatives]
            rows.append(tuple([0 if fit else None for fit in fits]))
        rows += [tuple([0 if i == j else None for i in range(size)]) for j in range(made, size)]
        gives = tuple([self.given.index(state) for state in states])
        takes = tuple(range(made, size))
        return Item(f"{self.name} to {device}", Use(choice, gives), (Use(number, takes),), tuple(rows))

    def _at(self, device: str, number: Mapping[str, int]) -> Item | None:
        """The tensor as it lies at one device, with the copies that are made there; None where nobody wants any."""
        nothing = self.count
        readers = [
            Use(choice, tuple([state.format if device in state.devices else nothing for state in states]))
            for choice, states in self.readers
            if any(device in state.devices for state in states)
        ]
        for q, alternatives in self._alternatives.items():
            sets = [a.formats if a.source == device else () for a in alternatives]
            readers += [
                Use(number[q], tuple([formats[i] if i < len(formats) else nothing for formats in sets]))
                for i in range(max(map(len, sets)))
            ]
        if not readers:
            return None
        if device not in number:
            choice, states = self.producer
            lies: dict[Formats, int] = {(f,): f for f in range(self.count)}
            producer = Use(choice, tuple([state.format for state in states]))
        else:
            arrivals = self._alternatives[device]
            lies = {(f,): f for f in range(self.count)} | {(): nothing}
            for arrival in arrivals:
                lies.setdefault(arrival.formats, max(len(lies), nothing + 1))
            producer = Use(number[device], tuple([lies[a.formats] for a in arrivals]))
        size = max(len(lies), nothing + 1)
        rows: list[tuple[int | None, ...]] = [(None,) * nothing + (0,) + (None,) * (size - nothing - 1)] * size
        for formats, row in lies.items():
            if formats:
                rows[row] = self._row(device, formats, row, size)
        return Item(f"{self.name} at {device}", producer, tuple(readers), tuple(rows))

    def _row(self, device: str, formats: Formats, own: int, size: int) -> tuple[int | None, ...]:
        """What each format costs to make at a device where these lie."""
        prices: list[int | None] = []
        for target in range(self.count):
            known = [0 if f == target else self.change(device, f, target) for f in formats]
            prices.append(min([p for p in known if p is not None], default=None))
        return (*prices, 0, *(0 if i == own else None for i in range(self.count + 1, size)))


def _agrees(arrival: Arrival, device: str, given: State) -> bool:
    """Whether this may be what arrives at a device where the tensor is given so."""
    if device in given.devices:
        return not arrival.source and arrival.formats == (given.format,)
    return not arrival.formats or (arrival.source in given.devices and _leaves(given, arrival))


def _leaves(given: State, arrival: Arrival) -> bool:
    """Whether the tensor may cross so: memory that is only seen as this tensor crosses as what it is."""
    return not given.is_memory or given.format not in arrival.formats
