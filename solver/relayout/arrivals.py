"""How one tensor gets to the devices that read it: what crosses, in which format, and which copies are made where.

The node that gives a tensor runs at one place, and gives it in one format. At that place the other formats that are
wanted there, or that shall cross, are made of it. To each other place that reads it, it crosses once, in one format,
and the others are made of that; where crossing is cheaper than a conversion it may cross in several. So each copy is
paid once a place, however many read it there, and each crossing once.

In the problem, a place where a tensor may arrive is a choice: that nothing arrives, that it was made there, or from
where it crosses in which formats. What lies at the place is a value of that choice; one more format of it, "nothing",
is what is wanted by all that runs elsewhere. Formats are numbers here, places names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations, product

from relayout.problem import Choice, Use, Value

__all__ = ["Arrivals", "Stated"]

Formats = tuple[int, ...]
Wanted = Mapping[str, frozenset[int]]
Stated = tuple[int, tuple[tuple[str, int], ...]]
"""A choice by its number, and for each of its alternatives the place and the format in which it has the tensor."""

_MOST_FORMATS = 4
"""With more, a tensor that crosses in several formats crosses in two: sets of them would be too many."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The tensor crosses from `source` in `formats`; without a source it was made here, in its one format. Without
    formats nothing is here."""

    source: str
    formats: Formats


@dataclass(frozen=True)
class Arrivals:
    """One tensor of `count` formats that several places may touch.

    `change(place, f, g)` is the price of making format g from f, None where that cannot be; `carry(source, target, f)`
    that of a crossing.
    """

    name: str
    count: int
    producer: Stated
    readers: tuple[Stated, ...]
    change: Callable[[str, int, int], int | None]
    carry: Callable[[str, str, int], int]

    @cached_property
    def makers(self) -> tuple[str, ...]:
        """The places where the tensor may be made."""
        return tuple(dict.fromkeys(place for place, _ in self.producer[1]))

    @cached_property
    def places(self) -> tuple[str, ...]:
        """All places that may touch it, those that may make it first."""
        read = [place for _, states in self.readers for place, _ in states]
        return tuple(dict.fromkeys((*self.makers, *read)))

    def wanted(self, place: str) -> Formats:
        """The formats in which somebody at a place may want it."""
        return tuple(sorted({f for _, states in self.readers for at, f in states if at == place}))

    def crossings(self, source: str, target: str) -> list[Formats]:
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

    def plan(self, place: str, format_: int, wanted: Wanted) -> dict[str, Formats]:
        """In which formats the tensor crosses to each other place that wants it, at the least cost of it all, and as it
        is made where that costs no more.

        Raises ValueError where that cannot be.
        """
        targets = [q for q in self.places if q != place and wanted.get(q)]
        best: tuple[tuple[int, int], tuple[Formats, ...]] | None = None
        for sets in product(*(self._crossings[place, q] for q in targets)):
            arrived = dict(zip(targets, sets, strict=True))
            cost = self.cost(place, format_, wanted, arrived)
            if cost is None:
                continue
            rank = cost, sum(f != format_ for formats in sets for f in formats)
            if best is None or rank < best[0]:
                best = rank, sets
        if best is None:
            raise ValueError(f"no way to bring {self.name} to {', '.join(targets)}")
        return dict(zip(targets, best[1], strict=True))

    def cost(self, place: str, format_: int, wanted: Wanted, arrived: Mapping[str, Formats]) -> int | None:
        """What it costs that the tensor crosses in these formats; None where something cannot be made."""
        total = 0
        for q, formats in arrived.items():
            total += sum(self.carry(place, q, f) for f in formats)
        for q, source, target in self.made(place, format_, wanted, arrived):
            price = self.change(q, source, target)
            if price is None:
                return None
            total += price
        return total

    def made(
        self, place: str, format_: int, wanted: Wanted, arrived: Mapping[str, Formats]
    ) -> Iterator[tuple[str, int, int]]:
        """The conversions that this takes, as (place, from, to): first those where the tensor is made."""
        crossing = {f for formats in arrived.values() for f in formats}
        for target in sorted({*wanted.get(place, ()), *crossing} - {format_}):
            yield place, format_, target
        for q, formats in arrived.items():
            for target in sorted({*wanted[q]} - {*formats}):
                yield q, self._nearest(q, formats, target), target

    def _nearest(self, place: str, formats: Formats, target: int) -> int:
        prices = [(price, f) for f in formats if (price := self.change(place, f, target)) is not None]
        return min(prices)[1] if prices else formats[0]

    @cached_property
    def _crossings(self) -> dict[tuple[str, str], list[Formats]]:
        return {(r, q): self.crossings(r, q) for r in self.makers for q in self.places if r != q}

    @cached_property
    def _alternatives(self) -> dict[str, list[_Arrival]]:
        """For each place that chooses, what may arrive there. Where it is made at one place only, it is there."""
        found: dict[str, list[_Arrival]] = {}
        for q in self.places:
            if self.makers == (q,):
                continue
            own = sorted({f for place, f in self.producer[1] if place == q})
            found[q] = [
                _Arrival("", ()),
                *(_Arrival("", (f,)) for f in own),
                *(_Arrival(r, formats) for r in self.makers if r != q for formats in self._crossings[r, q]),
            ]
        return found

    def completed(self, place: str, format_: int, wanted: Wanted) -> tuple[int, ...]:
        """The alternatives of the choices of `choices` that go with the cheapest plan."""
        plan = self.plan(place, format_, wanted)
        picked = []
        for q, alternatives in self._alternatives.items():
            elsewhere = _Arrival(place, plan[q]) if q in plan else alternatives[0]
            picked.append(alternatives.index(_Arrival("", (format_,)) if q == place else elsewhere))
        return tuple(picked)

    def choices(self) -> list[Choice]:
        """A choice for each place where the tensor may arrive."""
        return [
            Choice(
                f"{self.name} at {q}",
                tuple(sum(self.carry(a.source, q, f) for f in a.formats) if a.source else 0 for a in alternatives),
            )
            for q, alternatives in self._alternatives.items()
        ]

    def values(self, first: int) -> Iterator[Value]:
        """What ties those choices, the first of which is choice `first`, to the producer, to the readers and to each
        other."""
        number = {q: first + i for i, q in enumerate(self._alternatives)}
        for q, alternatives in self._alternatives.items():
            yield self._agreement(q, number[q], alternatives)
        for q in self.places:
            if (value := self._at(q, number)) is not None:
                yield value

    def _agreement(self, place: str, number: int, alternatives: Sequence[_Arrival]) -> Value:
        """That what arrives at a place comes from where it is made."""
        choice, states = self.producer
        made = len(self.makers) * self.count
        size = made + len(alternatives)
        rows: list[tuple[int | None, ...]] = []
        for m, maker in enumerate(self.makers):
            for f in range(self.count):
                own = m * self.count + f
                fits = [i == own for i in range(made)] + [self._agrees(a, place, maker, f) for a in alternatives]
                rows.append(tuple([0 if fit else None for fit in fits]))
        rows += [tuple([0 if i == j else None for i in range(size)]) for j in range(made, size)]
        gives = tuple([self.makers.index(at) * self.count + f for at, f in states])
        takes = tuple(range(made, size))
        return Value(f"{self.name} to {place}", Use(choice, gives), (Use(number, takes),), tuple(rows))

    @staticmethod
    def _agrees(arrival: _Arrival, place: str, maker: str, format_: int) -> bool:
        if maker == place:
            return not arrival.source and arrival.formats == (format_,)
        return arrival.source == maker or not arrival.formats

    def _at(self, place: str, number: Mapping[str, int]) -> Value | None:
        """The tensor as it lies at one place, with the copies that are made there; None where nobody wants any."""
        nothing = self.count
        readers = [
            Use(choice, tuple([f if at == place else nothing for at, f in states]))
            for choice, states in self.readers
            if any(at == place for at, _ in states)
        ]
        for q, alternatives in self._alternatives.items():
            sets = [a.formats if a.source == place else () for a in alternatives]
            readers += [
                Use(number[q], tuple([formats[i] if i < len(formats) else nothing for formats in sets]))
                for i in range(max(map(len, sets)))
            ]
        if not readers:
            return None
        if place not in number:
            choice, states = self.producer
            lies: dict[Formats, int] = {(f,): f for f in range(self.count)}
            producer = Use(choice, tuple([f for _, f in states]))
        else:
            arrivals = self._alternatives[place]
            lies = {(f,): f for f in range(self.count)} | {(): nothing}
            for arrival in arrivals:
                lies.setdefault(arrival.formats, max(len(lies), nothing + 1))
            producer = Use(number[place], tuple([lies[a.formats] for a in arrivals]))
        size = max(len(lies), nothing + 1)
        rows: list[tuple[int | None, ...]] = [(None,) * nothing + (0,) + (None,) * (size - nothing - 1)] * size
        for formats, row in lies.items():
            if formats:
                rows[row] = self._row(place, formats, row, size)
        return Value(f"{self.name} at {place}", producer, tuple(readers), tuple(rows))

    def _row(self, place: str, formats: Formats, own: int, size: int) -> tuple[int | None, ...]:
        """What each format costs to make at a place where these lie."""
        prices: list[int | None] = []
        for target in range(self.count):
            known = [0 if f == target else self.change(place, f, target) for f in formats]
            prices.append(min([p for p in known if p is not None], default=None))
        return (*prices, 0, *(0 if i == own else None for i in range(self.count + 1, size)))
