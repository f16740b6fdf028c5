"""The problem as a cost network: variables of a few states each, and tables of costs between them.

Variable `c` below `len(problem.choices)` is choice `c` without its dominated alternatives. The variables after those
are auxiliary set variables. The minimum of the sum of all tables is the minimum of the problem:

- an item with one consumer that has a choice is a table over two choices; with two such consumers and few alternatives,
  a table over three;
- any other item gets a **set variable**: its states are the sets of formats that consumers may want, with a table of
  conversion costs to the producer, and a table of 0 or FORBIDDEN to each consumer;
- if there are too many such sets, the formats are split into parts with one set variable each, down to single formats.
  The sets of an item that reuses copies stay whole, because its cost is no sum over formats.

Items with the same consumers share a set variable. Where all consumers of one item also read another, the set
variable of the second only has to contain that of the first: a network in which every layer reads all earlier ones is a
chain. Equal tables are one object, because networks repeat their blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache, reduce
from itertools import pairwise
from operator import and_

from msgspec import Struct

from relayout.errors import InputError
from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import LARGEST, Masks, Network, Tables, WideTable, allowed, direct, priced, vector
from relayout.solve.problem import Choice, Item, Problem, Row, Use

SET_STATES = 128
WIDE_CELLS = 128


def network_of(
    problem: Problem,
    *,
    set_states: int = SET_STATES,
    widest: int = 0,
    deadline: Deadline = UNLIMITED,
    tables: Tables | None = None,
) -> Network:
    """The cost network of a problem, without dominated alternatives: those dearer than another one of equal formats.

    `set_states` is the most states of a set variable. With 0 each format has a variable of its own, and the linear
    relaxation is small and mostly integral. An item of at most `widest` combinations of states has no set variable but
    one table, which is not made whole: such a network can only be eliminated. `tables` are shared with networks of
    similar problems. Raises InputError and ExpiredError."""
    check_range(problem)
    builder = _Builder(problem, set_states, widest, tables or Tables())
    for item in problem.items:
        deadline.check()
        if item.consumers:
            builder.add_item(item)
    builder.add_set_variables(deadline)
    return builder.network


def check_range(problem: Problem) -> None:
    """Raise InputError if costs could add up to 2**60 or more, beyond which int64 sums would not be exact."""
    most = most_of(problem)
    if most >= LARGEST:
        raise InputError(
            "costs too large to be added exactly",
            where="all conversions of the graph",
            expected="a sum below 2**60",
            found=str(most),
            hint="give realistic sizes of dims and costs of the backend",
        )


def most_of(problem: Problem) -> int:
    """An upper bound on the cost of any assignment."""
    most = sum([max(choice.costs) for choice in problem.choices])
    for (conversion, reuses), times in Counter([(i.conversion, i.reuses_copies) for i in problem.items]).items():
        rows: Iterable[Row] = conversion
        if reuses:
            # Each format is made at most once, from any other.
            rows = [tuple([max(filter(None, column), default=0) for column in zip(*conversion, strict=True)])]
        most += times * max([sum(filter(None, row)) for row in rows])
    return most


class _Part(Struct, frozen=True):
    """One auxiliary variable: its states are sets of formats, each a subset of `formats`."""

    variable: int
    formats: int
    sets: Masks


class _Deferred(Struct, frozen=True):
    """An item with a set variable: bit `d` of its sets is format `order[d]`."""

    item: Item
    producer: int | None
    produces: tuple[int, ...]
    order: tuple[int, ...]


class _Builder:
    def __init__(self, problem: Problem, set_states: int, widest: int, tables: Tables) -> None:
        self.set_states, self.widest, self.table = set_states, widest, tables.get
        self.wide = cache(WideTable)
        self.masks = cache(_masks)
        kept = _undominated(problem)
        self.network = Network(kept)
        # The alternatives that remain of a choice, where some were dominated.
        self.restricted: dict[int, tuple[int, ...]] = {}
        for c, (choice, alternatives) in enumerate(zip(problem.choices, kept, strict=True)):
            costs = choice.costs
            if len(alternatives) < len(costs):
                costs = tuple([costs[a] for a in alternatives])
                self.restricted[c] = alternatives
            self.network.variable(self.table(vector, costs))
        # Each set variable is a node of a trie whose edges are (parent, consumer, sets that the consumer wants).
        self.trie: dict[tuple[int, int, Masks], int] = {(0, -1, ()): 0}
        self.deferred: dict[int, list[_Deferred]] = {}
        # The set variables of items that reuse copies, and those that they extend.
        self.whole: set[int] = set()

    def formats(self, use: Use) -> tuple[int, ...]:
        alternatives = self.restricted.get(use.choice)
        return use.formats if alternatives is None else tuple([use.formats[a] for a in alternatives])

    def add_item(self, item: Item) -> None:
        """Add the tables of one item, or defer it to its set variable."""
        conversion = item.conversion
        wants, always = self.wants(item)
        producer = item.producer.choice
        produces = self.formats(item.producer)
        if always:
            # Wanted under every assignment, so the cost depends on the producer alone.
            role = produces, (always,) * len(produces)
            self.network.add((producer,), self.table(direct, conversion, 0, (role,), reuses_copies=item.reuses_copies))
        if not wants:
            return
        fixed = produces.count(produces[0]) == len(produces)
        scope = tuple(sorted(wants if fixed else {*wants, producer}))
        cells = 1
        for x in scope:
            cells *= len(self.network.unary[x])
        roles = tuple([(None if fixed or x != producer else produces, wants.get(x)) for x in scope])
        if len(scope) < 3 or (len(scope) == 3 and cells <= WIDE_CELLS):
            self.network.add(
                scope, self.table(direct, conversion, produces[0], roles, reuses_copies=item.reuses_copies)
            )
        elif cells <= self.widest and not item.reuses_copies:
            self.network.add_wide(scope, self.wide(conversion, produces[0], roles))
        elif fixed:
            self.defer(item, None, produces[:1], wants)
        else:
            self.defer(item, producer, produces, wants)

    def wants(self, item: Item) -> tuple[dict[int, Masks], int]:
        """The sets of formats that each consumer's states want, without those wanted in every state; and the latter.

        Where copies are reused the cost is no sum of these two, so they are only separate if one of them is empty.
        """
        wants: dict[int, Masks] = {}
        for use in item.consumers:
            masks = self.masks(self.formats(use))
            if use.choice in wants:
                masks = tuple([a | b for a, b in zip(wants[use.choice], masks, strict=True)])
            wants[use.choice] = masks
        always = 0
        for masks in wants.values():
            always |= masks[0] if len(masks) == 1 else reduce(and_, masks)
        if always:
            rest = {c: tuple([mask & ~always for mask in masks]) for c, masks in wants.items()}
            rest = {c: masks for c, masks in rest.items() if any(masks)}
            if rest and item.reuses_copies:
                return wants, 0
            wants = rest
        return wants, always

    def defer(self, item: Item, producer: int | None, produces: tuple[int, ...], wants: dict[int, Masks]) -> None:
        # Formats are numbered in order of appearance, the last consumer first. Then two items share a prefix in the
        # trie where the consumers of one are the last consumers of the other.
        order: dict[int, int] = {}
        step = 0
        for c in sorted(wants, reverse=True):
            renamed = tuple([_renamed(mask, order) for mask in wants[c]])
            step = self.trie.setdefault((step, c, renamed), len(self.trie))
            if item.reuses_copies:
                self.whole.add(step)
        self.deferred.setdefault(step, []).append(_Deferred(item, producer, produces, tuple(order)))

    def add_set_variables(self, deadline: Deadline) -> None:
        """Add the set variables, each after those that it contains."""
        steps = list(self.trie)
        sets: list[frozenset[int]] = [frozenset((0,))]
        nearest: list[int] = [0]
        parts: dict[int, list[_Part]] = {0: []}
        for step, (before, _, masks) in enumerate(steps[1:], start=1):
            deadline.check()
            have = sets[before]
            is_whole = step in self.whole
            if is_whole or len(have) <= self.set_states:
                have = frozenset([old | mask for old in have for mask in masks])
            # Past the limit only the union is kept: the formats are then split into parts.
            is_kept = is_whole or len(have) <= self.set_states
            sets.append(have if is_kept else have | {reduce(int.__or__, (*have, *masks))})
            nearest.append(step if step in self.deferred else nearest[before])
            if step in self.deferred:
                parts[step] = self.set_variable(sets[step], is_whole=is_whole)
                self.link(parts[step], parts[nearest[before]], steps, step, nearest[before])
                for item in self.deferred[step]:
                    self.read(item, parts[step])

    def set_variable(self, sets: frozenset[int], *, is_whole: bool) -> list[_Part]:
        if is_whole or len(sets) <= self.set_states:
            return [self.part(-1, tuple(sorted(sets)))]
        # Parts of equal size, each small enough to have a state for every subset of its formats.
        formats = max(sets).bit_length()
        count = -(-formats // max(self.set_states.bit_length() - 1, 1))
        ends = [formats * k // count for k in range(count + 1)]
        parts = []
        for first, end in pairwise(ends):
            mask = (1 << end) - (1 << first)
            parts.append(self.part(mask, tuple([s << first for s in range(1 << (end - first))])))
        return parts

    def part(self, formats: int, sets: Masks) -> _Part:
        return _Part(self.network.variable(self.table(vector, (0,) * len(sets))), formats, sets)

    def link(
        self, outer: list[_Part], inner: list[_Part], steps: list[tuple[int, int, Masks]], step: int, stop: int
    ) -> None:
        """Force a set variable to contain the sets of its consumers, down to the nearest set variable that it
        contains."""
        for part in outer:
            for within in inner:
                table = self.table(allowed, within.sets, part.formats, part.sets)
                if table.any():
                    self.network.add((within.variable, part.variable), table)
        while step != stop:
            step, consumer, masks = steps[step]
            for part in outer:
                table = self.table(allowed, masks, part.formats, part.sets)
                if table.any():
                    self.network.add((consumer, part.variable), table)

    def read(self, deferred: _Deferred, parts: list[_Part]) -> None:
        item = deferred.item
        for part in parts:
            table = self.table(
                priced, item.conversion, deferred.produces, deferred.order, part.sets, reuses_copies=item.reuses_copies
            )
            if deferred.producer is None:
                self.network.add((part.variable,), table[0])
            else:
                self.network.add((deferred.producer, part.variable), table)


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
    """The alternatives of each choice that are not dominated: of equal formats everywhere, the first cheapest."""
    formats: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for item in problem.items:
        if item.consumers:
            for use in item.uses:
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
