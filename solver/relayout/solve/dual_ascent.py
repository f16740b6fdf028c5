"""Dual ascent: a lower bound of a network in a few passes over its tables, without a linear program.

Sequential reweighted message passing (TRW-S, Kolmogorov 2006, and SRMP for tables of more than two axes, Kolmogorov
2015). A pass visits the variables in order. Each takes the minima of all its tables, and passes what exceeds its
cheapest state on to the tables that lead further, in equal shares. The bound never falls. Its limit can lie below the
optimum of the linear relaxation, but on networks of few cycles it is mostly reached, and the optimum with it.

Near the limit each pass gains a fixed share of what is missing. So after every few passes a line search goes further
along the sum of their shifts: the bound is concave in the shifts.
"""

from __future__ import annotations

import numpy as np

from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import Network, Scope, Table, along
from relayout.solve.reparametrize import Relaxation

Shifts = dict[Scope, list[Table]]

PASSES = 6
"""The passes between two line searches: an even number, so that both ends of the sum follow a pass backward."""

FURTHEST = 64
# Beyond this, sums of shifts and table entries could leave the range of int64.
LARGEST_SHIFT = 1 << 58


def ascend(network: Network, remaining: set[int], rounds: int, deadline: Deadline = UNLIMITED) -> Relaxation:
    """The shifts after `rounds` rounds of PASSES passes, without primal values. Raises ExpiredError.

    Every state of `remaining` must have an allowed entry in each of its tables.
    """
    return _Ascent(network, remaining).run(rounds, deadline)


class _Ascent:
    """The shifts of each table so far, and the costs of each variable's states under them."""

    def __init__(self, network: Network, remaining: set[int]) -> None:
        self.network = network
        self.order = sorted(remaining)
        self.tables = {scope: network.tables[scope] for scope in sorted(network.scopes_of(remaining))}
        self.shifts: Shifts = {
            scope: [np.zeros(size, dtype=np.int64) for size in table.shape] for scope, table in self.tables.items()
        }
        self.unary = self.own_costs(self.shifts)
        self.ends = {
            x: [_End(scope, scope.index(x), self.tables[scope]) for scope in network.incident[x]] for x in self.order
        }

    def run(self, rounds: int, deadline: Deadline) -> Relaxation:
        start: Shifts = {}
        for number in range(rounds * PASSES):
            deadline.check()
            if number % PASSES == 0:
                start = {scope: list(axes) for scope, axes in self.shifts.items()}
            forward = number % 2 == 0
            for x in self.order if forward else reversed(self.order):
                self.visit(x, forward=forward)
            if not _is_small(self.shifts):
                break
            if number % PASSES == PASSES - 1:
                self.search(start)
        return Relaxation(self.shifts, {})

    def own_costs(self, shifts: Shifts) -> dict[int, Table]:
        """The costs of each variable's states, with what the shifts add to them."""
        costs = {x: self.network.unary[x] for x in self.order}
        for scope, axes in shifts.items():
            for x, taken in zip(scope, axes, strict=True):
                costs[x] = costs[x] + taken
        return costs

    def bound(self, shifts: Shifts) -> int:
        """The sum of the minima of all tables and variables under the shifts."""
        tables = sum([int(_less(table, shifts[scope]).min()) for scope, table in self.tables.items()])
        return tables + sum([int(costs.min()) for costs in self.own_costs(shifts).values()])

    def search(self, start: Shifts) -> None:
        """Go on from `start` through the shifts so far, twice as far each time, while that raises the bound."""
        steps = {scope: [b - a for a, b in zip(start[scope], axes, strict=True)] for scope, axes in self.shifts.items()}
        best, factor = self.bound(self.shifts), 1
        here = self.shifts
        while factor <= FURTHEST:
            further = {
                scope: [a + factor * b for a, b in zip(axes, steps[scope], strict=True)] for scope, axes in here.items()
            }
            bound = self.bound(further) if _is_small(further) else best
            if bound <= best:
                break
            best, self.shifts, factor = bound, further, 2 * factor
        if self.shifts is not here:
            self.unary = self.own_costs(self.shifts)

    def visit(self, x: int, *, forward: bool) -> None:
        """Take the minima of all tables of `x`, and pass shares on to those with a variable further on."""
        ends, costs, shifts = self.ends[x], self.unary[x], self.shifts
        for end in ends:
            own = shifts[end.scope]
            least = end.least(own)
            own[end.axis] = own[end.axis] + least
            costs = costs + least
        # Scopes are ascending.
        later = [end for end in ends if not end.is_last]
        earlier = [end for end in ends if end.axis > 0]
        further = later if forward else earlier
        if further:
            share = (costs - costs.min()) // max(len(later), len(earlier))
            for end in further:
                own = shifts[end.scope]
                own[end.axis] = own[end.axis] - share
            costs = costs - share * len(further)
        self.unary[x] = costs


class _End:
    """A table of a variable, with the variable's axis first."""

    __slots__ = ("_others", "_table", "axis", "is_last", "scope")

    def __init__(self, scope: Scope, axis: int, table: Table) -> None:
        self.scope, self.axis, self.is_last = scope, axis, axis == len(scope) - 1
        self._table = np.ascontiguousarray(np.moveaxis(table, axis, 0))
        others = [k for k in range(len(scope)) if k != axis]
        shapes = [[-1 if place == k else 1 for place in range(len(scope))] for k in range(1, len(scope))]
        self._others = list(zip(others, shapes, strict=True))

    def least(self, shifts: list[Table]) -> Table:
        """The least entry of the table under the shifts of its axes, for each state of the variable."""
        table = self._table
        for axis, shape in self._others:
            table = table - shifts[axis].reshape(shape)
        least: Table = np.minimum.reduce(table.reshape(len(table), -1), axis=1) - shifts[self.axis]
        return least


def _less(table: Table, shifts: list[Table]) -> Table:
    """A table less the shifts of its axes."""
    for axis, taken in enumerate(shifts):
        table = table - along(axis, len(shifts), taken)
    return table


def _is_small(shifts: Shifts) -> bool:
    return all(max(-int(axis.min()), int(axis.max())) <= LARGEST_SHIFT for axes in shifts.values() for axis in axes)
