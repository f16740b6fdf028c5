"""A cost-function network (weighted CSP): variables with few states, and cost tables over sets of variables.

A set of formats is an int with one bit a format. Costs are int64. All costs of a problem add up to at most LARGEST;
FORBIDDEN is so far above it that a sum of three entries neither overflows nor looks like a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product, zip_longest
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from relayout.solve.copies import copies_between, members
from relayout.solve.problem import Row

Table = npt.NDArray[np.int64]
Scope = tuple[int, ...]
Masks = tuple[int, ...]
Conversion = tuple[Row, ...]
Role = tuple[tuple[int, ...] | None, Masks | None]

LARGEST = 1 << 60
FORBIDDEN = 1 << 61


class WideTable(Struct, frozen=True):
    """The conversion costs of one item, as `direct` gives them for these arguments."""

    conversion: Conversion
    source: int
    roles: tuple[Role, ...]

    def part(self, states: Sequence[slice]) -> Table:
        """The costs of some states of each choice, one axis a choice."""
        roles = [
            (produces and produces[some], wants and wants[some])
            for (produces, wants), some in zip(self.roles, states, strict=True)
        ]
        return direct(self.conversion, self.source, tuple(roles))


class Network(Struct):
    """Variables and cost tables. `tables[scope]` has one axis for each variable of the ascending `scope`.

    `unary[x]` has one axis. `alternatives[c][state]` is the alternative of choice `c` in that state.
    `incident[x]` are the scopes that contain `x`. `wide[scope]` are tables too large to be made whole: only a
    network that is eliminated to the end has them.
    """

    alternatives: list[tuple[int, ...]]
    unary: list[Table] = field(default_factory=list)
    tables: dict[Scope, Table] = field(default_factory=dict)
    wide: dict[Scope, list[WideTable]] = field(default_factory=dict)
    incident: list[dict[Scope, None]] = field(default_factory=list)
    neighbours: list[set[int]] = field(default_factory=list)
    sums: dict[tuple[int, int], tuple[Table, Table, Table]] = field(default_factory=dict)

    def copy(self) -> Network:
        """A copy that shares the arrays, which are never written to."""
        return Network(
            self.alternatives,
            list(self.unary),
            dict(self.tables),
            dict(self.wide),
            [dict(scopes) for scopes in self.incident],
            [set(others) for others in self.neighbours],
        )

    def variable(self, unary: Table) -> int:
        """Add a variable; returns its index."""
        self.unary.append(unary)
        self.incident.append({})
        self.neighbours.append(set())
        return len(self.unary) - 1

    def scopes_of(self, variables: Iterable[int]) -> set[Scope]:
        """The scopes that contain one of these variables."""
        return {scope for x in variables for scope in self.incident[x]}

    def least(self, x: int) -> Table:
        """A lower bound on the cost of each state of a variable: each table is minimised on its own."""
        total = self.unary[x]
        for scope in self.incident[x]:
            rest = tuple([axis for axis, y in enumerate(scope) if y != x])
            total = np.minimum(total + self.tables[scope].min(axis=rest), FORBIDDEN)
        return total

    def add(self, scope: Scope, table: Table) -> None:
        """Add the costs of a table over ascending variables; the array is shared and never written to."""
        if len(scope) == 1:
            self.unary[scope[0]] = self._sum(self.unary[scope[0]], table)
        elif scope in self.tables:
            self.tables[scope] = self._sum(self.tables[scope], table)
        else:
            self.tables[scope] = table
            self._connect(scope)

    def add_wide(self, scope: Scope, table: WideTable) -> None:
        """Add the costs of a table over ascending variables, which is made piece by piece."""
        self.wide.setdefault(scope, []).append(table)
        self._connect(scope)

    def take(self, x: int) -> tuple[tuple[Scope, Table | WideTable], ...]:
        """Remove a variable from its neighbours, with all tables that contain it, which are returned."""
        taken: list[tuple[Scope, Table | WideTable]] = []
        for scope in self.incident[x]:
            if scope in self.tables:
                taken.append((scope, self.tables.pop(scope)))
            taken += [(scope, table) for table in self.wide.pop(scope, ())]
            for y in scope:
                if y != x:
                    del self.incident[y][scope]
        for y in self.neighbours[x]:
            self.neighbours[y].discard(x)
        return tuple(taken)

    def _connect(self, scope: Scope) -> None:
        for x in scope:
            self.incident[x][scope] = None
            self.neighbours[x].update(scope)
            self.neighbours[x].discard(x)

    def _sum(self, one: Table, other: Table) -> Table:
        """The sum of two tables, the same array for the same tables."""
        key = id(one), id(other)
        if key not in self.sums:
            # With both of them, whose ids are then not given to others.
            self.sums[key] = one, other, np.minimum(one + other, FORBIDDEN)
        return self.sums[key][2]


class Tables:
    """Tables by what they are made of: equal ones are one array, because networks repeat their blocks.

    Networks that are made one after another may share them; `most` is how many bytes are then kept.
    """

    def __init__(self, most: float = inf) -> None:
        self._most, self._bytes = most, 0
        self._known: dict[tuple[object, ...], Table] = {}

    def get(self, make: Callable[..., Table], *given: Any, **options: Any) -> Table:
        """The table that `make` gives for these arguments."""
        key = make, given, *options.values()
        found = self._known.get(key)
        if found is None:
            found = make(*given, **options)
            self._bytes += found.nbytes
            if self._bytes > self._most:
                self._known.clear()
                self._bytes = found.nbytes
            self._known[key] = found
        return found


def vector(costs: Sequence[int] | Sequence[Sequence[int]]) -> Table:
    """A read-only array: equal tables are shared."""
    return _read_only(np.array(costs, dtype=np.int64))


def along(axis: int, rank: int, costs: Table) -> Table:
    """A vector along one axis of a table, to be broadcast along the others."""
    return costs.reshape([-1 if k == axis else 1 for k in range(rank)])


def _read_only(table: Table) -> Table:
    table.flags.writeable = False
    return table


def _price_with_copies(conversion: Conversion, source: int, wanted: int) -> int:
    """The cost of every format of the set `wanted`, each converted from `source` or from another copy."""
    price = copies_between(conversion).cost(source, wanted)
    return FORBIDDEN if price is None else price


def direct(conversion: Conversion, source: int, roles: tuple[Role, ...], *, reuses_copies: bool = False) -> Table:
    """The conversion costs of one item for every combination of states of its choices, one axis a choice.

    A role is (the format that each state produces, the set that each state wants), either may be None. `source` is the
    format produced if no role produces.
    """
    sizes = [len(produces or wants or ()) for produces, wants in roles]
    if reuses_copies:
        cells = [
            _price_with_copies(conversion, *_combined(roles, states, source)) for states in product(*map(range, sizes))
        ]
        return vector(cells).reshape(sizes)
    produced = np.array(source)
    wanted: list[npt.NDArray[np.int64]] = []
    for axis, (produces, wants) in enumerate(roles):
        if produces is not None:
            produced = along(axis, len(roles), np.array(produces))
        if wants is not None:
            wanted += [along(axis, len(roles), column) for column in _columns(wants)]
    prices = _matrix(conversion)
    # It gets its axes one after the other: only the last sum is over all of them.
    total = np.zeros([1] * len(sizes), dtype=np.int64)
    for number, targets in enumerate(wanted):
        # A format that two want is paid once.
        is_paid = targets >= 0
        for before in wanted[:number]:
            is_paid = is_paid & (targets != before)
        total = total + np.where(is_paid, prices[produced, targets], 0)
        np.minimum(total, FORBIDDEN, out=total)
    return _read_only(np.broadcast_to(total, sizes))


def _columns(wants: Masks) -> list[npt.NDArray[np.int64]]:
    """The formats of each set, one array for the first of every set, one for the second, and so on; -1: none."""
    rows = list(zip_longest(*map(members, wants), fillvalue=-1))
    return [np.array(row) for row in rows]


def _combined(roles: tuple[Role, ...], states: Sequence[int], source: int) -> tuple[int, int]:
    """The format that is produced in these states, and the set that is wanted."""
    wanted, produced = 0, source
    for (produces, wants), state in zip(roles, states, strict=True):
        if wants is not None:
            wanted |= wants[state]
        if produces is not None:
            produced = produces[state]
    return produced, wanted


@lru_cache(maxsize=256)
def _matrix(conversion: Conversion) -> Table:
    """The prices as an array: 0 on the diagonal, FORBIDDEN where a conversion is impossible."""
    rows = [[FORBIDDEN if price is None else price for price in row] for row in conversion]
    for index, row in enumerate(rows):
        row[index] = 0
    return vector(rows)


def priced(
    conversion: Conversion,
    produces: tuple[int, ...],
    order: tuple[int, ...],
    sets: Masks,
    *,
    reuses_copies: bool = False,
) -> Table:
    """The cost of every wanted set (columns) from each format of the producer (rows); bit `d` is format `order[d]`."""
    if reuses_copies:
        wanted = [sum(1 << order[d] for d in members(each)) for each in sets]
        return vector([[_price_with_copies(conversion, source, each) for each in wanted] for source in produces])
    rows = _matrix(conversion)[np.ix_(produces, order)]
    wants = np.array([[mask >> d & 1 for mask in sets] for d in range(len(order))], dtype=np.int64).reshape(
        -1, len(sets)
    )
    forbidden = rows >= FORBIDDEN
    total = np.where(forbidden, 0, rows) @ wants
    return _read_only(np.where(forbidden.astype(np.int64) @ wants > 0, FORBIDDEN, total))


def allowed(wants: Masks, formats: int, sets: Masks) -> Table:
    """0 if the set (column) contains the formats that the state (row) wants, among `formats`; else FORBIDDEN."""
    wanted, length = [want & formats for want in wants], max(map(int.bit_length, (*wants, *sets)))
    lacking = _words(wanted, length)[:, None] & ~_words(sets, length)[None]
    return _read_only(np.where(lacking.any(axis=2), FORBIDDEN, 0))


def _words(masks: Sequence[int], length: int) -> npt.NDArray[np.uint64]:
    """The bits of each mask, of so many bits at most, in words of 64: shape (masks, words)."""
    size = 8 * -(-length // 64)
    packed = b"".join([mask.to_bytes(size, "little") for mask in masks])
    return np.frombuffer(packed, "<u8").reshape(len(masks), size // 8)
