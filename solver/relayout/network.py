"""The problem as a cost network: variables with a few states each, and tables of costs between them.

Variable `c` below `len(problem.choices)` is choice `c` with the alternatives that are left of it; the variables after
them stand for the copies of shared values. Minimising the sum of all tables is exactly the problem:

- a value with one free consumer is a table between two choices; with two and few alternatives, among three;
- any other value gets a **hub**: one variable whose states are (format produced, set of copies made), with its cost,
  and a table of 0 or FORBIDDEN to each choice that touches it;
- where a hub would have too many states, one variable of two states a format: "someone wants it" or not.

Equal tables are one object: networks repeat their blocks. Costs are int64. FORBIDDEN is so far above LARGEST that a sum
of three entries neither overflows nor passes for a cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from .errors import InternalError
from .problem import Choice, Problem, Row, Value

__all__ = ["FORBIDDEN", "HUB_STATES", "LARGEST", "Network", "Table", "network_of"]

Table = npt.NDArray[np.int64]
Scope = tuple[int, ...]

LARGEST = 1 << 60
FORBIDDEN = 1 << 61
HUB_STATES = 128
WIDE_CELLS = 128


@dataclass(slots=True)
class Network:
    """Variables and tables. `tables[scope]` has one axis a variable of `scope`, which ascends; `unary[x]` has one."""

    alternatives: list[tuple[int, ...]]
    unary: list[Table]
    tables: dict[Scope, Table] = field(default_factory=dict)
    touching: list[dict[Scope, None]] = field(default_factory=list)
    neighbours: list[set[int]] = field(default_factory=list)

    def variable(self, unary: Table) -> int:
        """Add a variable and answer its index."""
        self.unary.append(unary)
        self.touching.append({})
        self.neighbours.append(set())
        return len(self.unary) - 1

    def add(self, scope: Scope, table: Table) -> None:
        """Add a table over ascending variables. The array is shared, never written to."""
        if len(scope) == 1:
            self.unary[scope[0]] = np.minimum(self.unary[scope[0]] + table, FORBIDDEN)
        elif scope in self.tables:
            self.tables[scope] = np.minimum(self.tables[scope] + table, FORBIDDEN)
        else:
            self.tables[scope] = table
            for x in scope:
                self.touching[x][scope] = None
                self.neighbours[x].update(scope)
                self.neighbours[x].discard(x)


def network_of(problem: Problem, *, hub_states: int = HUB_STATES) -> Network:
    """Build the network, without alternatives that another of the same formats undercuts.

    Raises InternalError where costs could add up to 2**60 or more: beyond that int64 would not be exact.
    """
    builder = _Builder(problem, hub_states)
    for value in problem.values:
        builder.place(value)
    return builder.network


@dataclass(frozen=True, slots=True)
class _Role:
    """What each state of one choice does to one value: the format that it produces (or None), the set it wants."""

    produces: tuple[int, ...] | None
    wants: tuple[int, ...]


class _Builder:
    def __init__(self, problem: Problem, hub_states: int) -> None:
        self.hub_states = hub_states
        self.matrices: dict[tuple[Row, ...], int] = {}
        self.cache: dict[object, tuple[Table, ...]] = {}
        self.ceiling = sum(max(choice.costs) for choice in problem.choices)
        self.check_range()
        kept = _undominated(problem)
        vectors: dict[tuple[int, ...], Table] = {}
        self.network = Network(kept, [])
        for choice, alternatives in zip(problem.choices, kept, strict=True):
            costs = tuple([choice.costs[a] for a in alternatives])
            vector = vectors.get(costs)
            if vector is None:
                vector = vectors[costs] = np.array(costs, dtype=np.int64)
            self.network.variable(vector)
        # What is left of a choice, where that is not all of it.
        self.restricted = [
            None if len(alternatives) == len(choice.costs) else alternatives
            for choice, alternatives in zip(problem.choices, kept, strict=True)
        ]

    def check_range(self) -> None:
        if self.ceiling >= LARGEST:
            raise InternalError("costs too large to be added exactly", expected="a sum below 2**60")

    def formats(self, choice: int, formats: tuple[int, ...]) -> tuple[int, ...]:
        alternatives = self.restricted[choice]
        return formats if alternatives is None else tuple([formats[a] for a in alternatives])

    def place(self, value: Value) -> None:
        """Add the tables of one value."""
        if not value.consumers:
            return
        conversion = value.conversion
        self.ceiling += max(sum(filter(None, row)) for row in conversion)
        self.check_range()
        producer = value.producer.choice
        wants: dict[int, tuple[int, ...]] = {}
        for use in value.consumers:
            masks = tuple([1 << f for f in self.formats(use.choice, use.formats)])
            earlier = wants.get(use.choice)
            if earlier is not None:
                masks = tuple([a | b for a, b in zip(earlier, masks, strict=True)])
            wants[use.choice] = masks
        produces = self.formats(producer, value.producer.formats)
        always = 0
        roles: dict[int, _Role] = {}
        for x, masks in wants.items():
            if len(masks) == 1:
                always |= masks[0]
            elif x != producer:
                roles[x] = _Role(None, masks)
        if len(produces) > 1:
            roles[producer] = _Role(produces, wants.get(producer, (0,) * len(produces)))
        scope = tuple(sorted(roles))
        self.place_roles(conversion, produces[0], always, scope, [roles[x] for x in scope])

    def place_roles(
        self, conversion: tuple[Row, ...], source: int, always: int, scope: Scope, roles: list[_Role]
    ) -> None:
        key = (self.matrices.setdefault(conversion, len(self.matrices)), source, always, *roles)
        found = self.cache.get(key)
        cells = 1
        for role in roles:
            cells *= len(role.wants)
        if len(scope) <= 2 or (len(scope) == 3 and cells <= WIDE_CELLS):
            if found is None:
                found = self.cache[key] = (_direct(conversion, source, always, roles),)
            if scope:
                self.network.add(scope, found[0])
            else:
                # Nothing is free: a cost all the same, and it may be forbidden.
                self.network.variable(found[0].reshape(1))
            return
        if found is None:
            found = self.cache[key] = _hub(conversion, source, always, roles, self.hub_states)
        if found:
            hub = self.network.variable(found[0])
            for x, table in zip(scope, found[1:], strict=True):
                self.network.add((x, hub), table)
            return
        self.place_formats(conversion, source, always, scope, roles)

    def place_formats(
        self, conversion: tuple[Row, ...], source: int, always: int, scope: Scope, roles: list[_Role]
    ) -> None:
        producer = next((k for k, role in enumerate(roles) if role.produces is not None), None)
        for target in range(len(conversion)):
            wanted = [
                np.array([[0 if want >> target & 1 == 0 else FORBIDDEN, 0] for want in role.wants], dtype=np.int64)
                for role in roles
            ]
            if always >> target & 1 == 0 and not any(table.any() for table in wanted):
                continue
            prices = [FORBIDDEN if row[target] is None else row[target] for row in conversion]
            unary = np.zeros(2, dtype=np.int64)
            if always >> target & 1:
                unary[0] = FORBIDDEN
            copy = self.network.variable(unary)
            if producer is None:
                self.network.add((copy,), np.array([0, prices[source]], dtype=np.int64))
            else:
                produces = roles[producer].produces or ()
                table = np.array([[0, prices[s]] for s in produces], dtype=np.int64)
                wanted[producer] = np.minimum(wanted[producer] + table, FORBIDDEN)
            for x, table in zip(scope, wanted, strict=True):
                if table.any():
                    self.network.add((x, copy), table)


def _undominated(problem: Problem) -> list[tuple[int, ...]]:
    """The alternatives left of each choice: of those with the same format everywhere, the first of the cheapest."""
    formats: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for value in problem.values:
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


def _price(conversion: tuple[Row, ...], source: int, wanted: int) -> int:
    """What the copies of a set of formats cost, made from `source`."""
    total = 0
    for target, price in enumerate(conversion[source]):
        if wanted >> target & 1 and target != source:
            if price is None:
                return FORBIDDEN
            total += price
    return total


def _direct(conversion: tuple[Row, ...], source: int, always: int, roles: list[_Role]) -> Table:
    cells = []
    for states in product(*[range(len(role.wants)) for role in roles]):
        wanted, produced = always, source
        for role, state in zip(roles, states, strict=True):
            wanted |= role.wants[state]
            if role.produces is not None:
                produced = role.produces[state]
        cells.append(_price(conversion, produced, wanted))
    return np.array(cells, dtype=np.int64).reshape([len(role.wants) for role in roles])


def _hub(
    conversion: tuple[Row, ...], source: int, always: int, roles: list[_Role], limit: int
) -> tuple[Table, ...]:
    """The costs of a hub's states, then a table of 0 and FORBIDDEN for each role; empty where they are over `limit`."""
    wanted = {always}
    for masks in sorted({tuple(sorted(set(role.wants))) for role in roles}):
        # As many equal roles as there are may each want another format; each round adds one.
        for _ in range(sum(1 for role in roles if tuple(sorted(set(role.wants))) == masks)):
            larger = {have | mask for have in wanted for mask in masks}
            if len(larger) > 2 * limit:
                return ()
            if larger == wanted:
                break
            wanted = larger
    sources = sorted({s for role in roles for s in role.produces or ()}) or [source]
    states = sorted({(s, have & ~(1 << s)) for s in sources for have in wanted})
    prices = [_price(conversion, s, copies) for s, copies in states]
    states = [state for state, price in zip(states, prices, strict=True) if price < FORBIDDEN]
    prices = [price for price in prices if price < FORBIDDEN]
    if len(states) > limit:
        return ()
    if not states:
        # No state at all would be no table at all: one that is forbidden says the same.
        states, prices = [(sources[0], 0)], [FORBIDDEN]
    tables = [np.array(prices, dtype=np.int64)]
    for role in roles:
        produces = role.produces or (None,) * len(role.wants)
        tables.append(
            np.array(
                [
                    [0 if p in (None, s) and not want & ~(copies | 1 << s) else FORBIDDEN for s, copies in states]
                    for p, want in zip(produces, role.wants, strict=True)
                ],
                dtype=np.int64,
            )
        )
    return tuple(tables)
