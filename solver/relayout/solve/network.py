"""A cost network: variables of a few states each, tables of costs between them, and how prices become tables.

A set of formats is an int with one bit a format. Costs are int64; FORBIDDEN is so far above LARGEST, the most that all
costs of a problem may add up to, that a sum of three entries neither overflows nor passes for a cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from relayout.solve.problem import Row

__all__ = [
    "FORBIDDEN",
    "LARGEST",
    "Conversion",
    "Masks",
    "Network",
    "Scope",
    "Table",
    "allowed",
    "direct",
    "priced",
    "vector",
]

Table = npt.NDArray[np.int64]
Scope = tuple[int, ...]
Masks = tuple[int, ...]
Conversion = tuple[Row, ...]
Role = tuple[tuple[int, ...] | None, Masks | None]

LARGEST = 1 << 60
FORBIDDEN = 1 << 61


@dataclass(slots=True)
class Network:
    """Variables and tables. `tables[scope]` has one axis a variable of `scope`, which ascends; `unary[x]` has one.

    `alternatives[c]` are the alternatives of choice `c` that its variable's states stand for.
    """

    alternatives: list[tuple[int, ...]]
    unary: list[Table] = field(default_factory=list)
    tables: dict[Scope, Table] = field(default_factory=dict)
    touching: list[dict[Scope, None]] = field(default_factory=list)
    neighbours: list[set[int]] = field(default_factory=list)

    def copy(self) -> Network:
        """A network of its own; the arrays are shared."""
        return Network(
            self.alternatives,
            list(self.unary),
            dict(self.tables),
            [dict(scopes) for scopes in self.touching],
            [set(others) for others in self.neighbours],
        )

    def variable(self, unary: Table) -> int:
        """Add a variable and answer its index."""
        self.unary.append(unary)
        self.touching.append({})
        self.neighbours.append(set())
        return len(self.unary) - 1

    def add(self, scope: Scope, table: Table) -> None:
        """Add a table over ascending variables; the array is shared, never written to."""
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


def vector(costs: Sequence[int] | Sequence[Sequence[int]]) -> Table:
    """An array that nobody writes to, since equal tables are shared."""
    table = np.array(costs, dtype=np.int64)
    table.flags.writeable = False
    return table


def _price_of(prices: Row, source: int, wanted: int) -> int:
    """What the copies in a set of formats cost, given the row of `source`."""
    total = 0
    for target, price in enumerate(prices):
        if wanted >> target & 1 and target != source:
            if price is None:
                return FORBIDDEN
            total += price
    return total


def direct(conversion: Conversion, source: int, roles: tuple[Role, ...]) -> Table:
    """The price of one value for every combination of states of the choices around it, an axis a choice.

    A role is (the format that each state produces, the set that each state wants), either None. `source` is produced
    where no role produces.
    """
    sizes = [len(produces or wants or ()) for produces, wants in roles]
    cells = []
    for states in product(*map(range, sizes)):
        wanted, produced = 0, source
        for (produces, wants), state in zip(roles, states, strict=True):
            if wants is not None:
                wanted |= wants[state]
            if produces is not None:
                produced = produces[state]
        cells.append(_price_of(conversion[produced], produced, wanted))
    return vector(cells).reshape(sizes)


def priced(conversion: Conversion, produces: tuple[int, ...], order: tuple[int, ...], sets: Masks) -> Table:
    """The price of every wanted set (columns) from every state of the producer (rows); bit `d` is format `order[d]`."""
    rows = []
    for source in produces:
        row = tuple([conversion[source][target] for target in order])
        free = order.index(source) if source in order else -1
        rows.append([_price_of(row, free, wanted) for wanted in sets])
    return vector(rows)


def allowed(wants: Masks, formats: int, sets: Masks) -> Table:
    """0 where what a state wants, within `formats`, is in the set; else FORBIDDEN. Rows are states, columns sets."""
    return vector([[FORBIDDEN if want & formats & ~have else 0 for have in sets] for want in wants])
