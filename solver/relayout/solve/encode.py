"""The problem as a cost network: variables of a few states each, and tables of costs between them.

Variable `c` below `len(problem.choices)` is choice `c` with the alternatives that are left of it; the variables after
those stand for the formats that are wanted of shared values. The minimum of the sum of all tables is the problem's:

- a value with one free consumer is a table between two choices; with two and few alternatives, among three;
- any other value gets a **hub**: a variable whose states are the sets of formats that may be wanted of it, with a table
  of prices to its producer, and one of 0 or FORBIDDEN to each consumer;
- where there are too many such sets, a variable for each of several parts of the formats, down to single ones.

Values with the same consumers share a hub, and where all consumers of one value also read another, the hub of the
second only has to contain that of the first: a network in which every layer reads all earlier ones becomes a chain.
Equal tables are one object, since networks repeat their blocks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise
from operator import and_

from relayout.errors import InputError
from relayout.solve.deadline import UNLIMITED, Clock
from relayout.solve.network import LARGEST, Conversion, Masks, Network, allowed, direct, priced, vector
from relayout.solve.problem import Choice, Item, Problem, Use

__all__ = ["HUB_STATES", "check_range", "most_of", "network_of"]

HUB_STATES = 128
WIDE_CELLS = 128


def network_of(problem: Problem, *, hub_states: int = HUB_STATES, clock: Clock = UNLIMITED) -> Network:
    """Build the network, without alternatives that another of the same formats undercuts.

    With `hub_states=0` there are no sets, only variables for single formats: the encoding that linear programs like.
    Raises ExpiredError where the time is over.
    """
    check_range(problem)
    builder = _Builder(problem, hub_states)
    for value in problem.items:
        clock.check()
        if value.consumers:
            builder.place(value)
    builder.place_hubs(clock)
    return builder.network


def check_range(problem: Problem) -> None:
    """Raise InputError where costs could add up to 2**60 or more: beyond that int64 would not be exact."""
    most = most_of(problem)
    if most >= LARGEST:
        raise InputError(
            "costs too large to be added exactly",
            where="all conversions of the graph",
            expected="a sum below 2**60",
            found=str(most),
            hint="sizes of dims and costs of a backend that are nearer to the truth",
        )


def most_of(problem: Problem) -> int:
    """A sum that no assignment can cost more than."""
    most = sum([max(choice.costs) for choice in problem.choices])
    for conversion, times in Counter([value.conversion for value in problem.items]).items():
        most += times * max([sum(filter(None, row)) for row in conversion])
    return most


@dataclass(frozen=True, slots=True)
class _Part:
    """A variable of a hub: its states are sets of formats, each within `formats`."""

    variable: int
    formats: int
    sets: Masks


@dataclass(frozen=True, slots=True)
class _Reading:
    """A value at its hub: `order[d]` is the format that bit `d` of the hub's sets stands for."""

    conversion: Conversion
    producer: int | None
    produces: tuple[int, ...]
    order: tuple[int, ...]


class _Builder:
    def __init__(self, problem: Problem, hub_states: int) -> None:
        self.hub_states = hub_states
        # Equal arguments give the same array: this is the interning.
        self.vector, self.direct = cache(vector), cache(direct)
        self.priced, self.allowed = cache(priced), cache(allowed)
        self.masks = cache(_masks)
        kept = _undominated(problem)
        self.network = Network(kept)
        # What is left of a choice, where that is not all of it.
        self.restricted: dict[int, tuple[int, ...]] = {}
        for c, (choice, alternatives) in enumerate(zip(problem.choices, kept, strict=True)):
            costs = choice.costs
            if len(alternatives) < len(costs):
                costs = tuple([costs[a] for a in alternatives])
                self.restricted[c] = alternatives
            self.network.variable(self.vector(costs))
        # Hubs are the ends of paths in a trie whose steps are (step before, consumer, sets that it wants).
        self.trie: dict[tuple[int, int, Masks], int] = {(0, -1, ()): 0}
        self.readings: dict[int, list[_Reading]] = {}

    def formats(self, use: Use) -> tuple[int, ...]:
        alternatives = self.restricted.get(use.choice)
        return use.formats if alternatives is None else tuple([use.formats[a] for a in alternatives])

    def place(self, value: Item) -> None:
        """Add the tables of one value, or note it at its hub."""
        conversion = value.conversion
        wants, always = self.wants(value)
        producer = value.producer.choice
        produces = self.formats(value.producer)
        if always:
            # Wanted whatever happens, so it is the producer's affair alone.
            role = produces, (always,) * len(produces)
            self.network.add((producer,), self.direct(conversion, 0, (role,)))
        if not wants:
            return
        fixed = produces.count(produces[0]) == len(produces)
        scope = tuple(sorted(wants if fixed else {*wants, producer}))
        cells = 1
        for x in scope:
            cells *= len(self.network.unary[x])
        if len(scope) < 3 or (len(scope) == 3 and cells <= WIDE_CELLS):
            roles = tuple([(None if fixed or x != producer else produces, wants.get(x)) for x in scope])
            self.network.add(scope, self.direct(conversion, produces[0], roles))
        elif fixed:
            self.note(conversion, None, produces[:1], wants)
        else:
            self.note(conversion, producer, produces, wants)

    def wants(self, value: Item) -> tuple[dict[int, Masks], int]:
        """The sets of formats that each consumer's states want beyond those wanted always; and the latter."""
        wants: dict[int, Masks] = {}
        for use in value.consumers:
            masks = self.masks(self.formats(use))
            if use.choice in wants:
                masks = tuple([a | b for a, b in zip(wants[use.choice], masks, strict=True)])
            wants[use.choice] = masks
        always = 0
        for masks in wants.values():
            always |= masks[0] if len(masks) == 1 else reduce(and_, masks)
        if always:
            rest = {c: tuple([mask & ~always for mask in masks]) for c, masks in wants.items()}
            wants = {c: masks for c, masks in rest.items() if any(masks)}
        return wants, always

    def note(
        self, conversion: Conversion, producer: int | None, produces: tuple[int, ...], wants: dict[int, Masks]
    ) -> None:
        # Formats are numbered as they come and the last consumer comes first: then values of which one is read by the
        # last consumers of the other begin with the same steps.
        order: dict[int, int] = {}
        step = 0
        for c in sorted(wants, reverse=True):
            renamed = tuple([_renamed(mask, order) for mask in wants[c]])
            step = self.trie.setdefault((step, c, renamed), len(self.trie))
        self.readings.setdefault(step, []).append(_Reading(conversion, producer, produces, tuple(order)))

    def place_hubs(self, clock: Clock) -> None:
        """Add the hubs, each after those that it contains."""
        steps = list(self.trie)
        sets: list[frozenset[int]] = [frozenset((0,))]
        nearest: list[int] = [0]
        parts: dict[int, list[_Part]] = {0: []}
        for step, (before, _, masks) in enumerate(steps[1:], start=1):
            clock.check()
            have = sets[before]
            if len(have) <= self.hub_states:
                have = frozenset([old | mask for old in have for mask in masks])
            # Without the subsets a set too many would stay too many; what is kept is which formats there are.
            sets.append(have if len(have) <= self.hub_states else have | {reduce(int.__or__, (*have, *masks))})
            nearest.append(step if step in self.readings else nearest[before])
            if step in self.readings:
                parts[step] = self.hub(sets[step])
                self.tie(parts[step], parts[nearest[before]], steps, step, nearest[before])
                for reading in self.readings[step]:
                    self.read(reading, parts[step])

    def hub(self, sets: frozenset[int]) -> list[_Part]:
        if len(sets) <= self.hub_states:
            return [self.part(-1, tuple(sorted(sets)))]
        # Parts of equal size, each small enough to have a state for every subset of its formats.
        formats = max(sets).bit_length()
        count = -(-formats // max(self.hub_states.bit_length() - 1, 1))
        ends = [formats * k // count for k in range(count + 1)]
        parts = []
        for first, end in pairwise(ends):
            mask = (1 << end) - (1 << first)
            parts.append(self.part(mask, tuple([s << first for s in range(1 << (end - first))])))
        return parts

    def part(self, formats: int, sets: Masks) -> _Part:
        return _Part(self.network.variable(self.vector((0,) * len(sets))), formats, sets)

    def tie(
        self, outer: list[_Part], inner: list[_Part], steps: list[tuple[int, int, Masks]], step: int, stop: int
    ) -> None:
        """Make a hub hold what its consumers want, down to a hub that speaks for the rest of them."""
        for part in outer:
            for within in inner:
                table = self.allowed(within.sets, part.formats, part.sets)
                if table.any():
                    self.network.add((within.variable, part.variable), table)
        while step != stop:
            step, consumer, masks = steps[step]
            for part in outer:
                table = self.allowed(masks, part.formats, part.sets)
                if table.any():
                    self.network.add((consumer, part.variable), table)

    def read(self, reading: _Reading, parts: list[_Part]) -> None:
        for part in parts:
            table = self.priced(reading.conversion, reading.produces, reading.order, part.sets)
            if reading.producer is None:
                self.network.add((part.variable,), table[0])
            else:
                self.network.add((reading.producer, part.variable), table)


def _renamed(mask: int, order: dict[int, int]) -> int:
    renamed = 0
    while mask:
        lowest = mask & -mask
        renamed |= 1 << order.setdefault(lowest.bit_length() - 1, len(order))
        mask -= lowest
    return renamed


def _masks(formats: tuple[int, ...]) -> Masks:
    return tuple([1 << f for f in formats])


def _undominated(problem: Problem) -> list[tuple[int, ...]]:
    """The alternatives left of each choice: of those with the same format everywhere, the first of the cheapest."""
    formats: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for value in problem.items:
        if value.consumers:
            formats[value.producer.choice].append(value.producer.formats)
            for use in value.consumers:
                formats[use.choice].append(use.formats)
    return [_cheapest(choice, uses) for choice, uses in zip(problem.choices, formats, strict=True)]


def _cheapest(choice: Choice, uses: list[tuple[int, ...]]) -> tuple[int, ...]:
    costs = choice.costs
    if not uses:
        return (costs.index(min(costs)),)
    alternatives = tuple(range(len(costs)))
    signatures = list(zip(*uses, strict=True))
    if len(set(signatures)) == len(costs):
        return alternatives
    best: dict[tuple[int, ...], int] = {}
    for a in alternatives:
        other = best.setdefault(signatures[a], a)
        if costs[a] < costs[other]:
            best[signatures[a]] = a
    return tuple(sorted(best.values()))
