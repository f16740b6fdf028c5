"""Dual ascent: a lower bound of a network in a few passes over its tables, without a linear program.

Sequential reweighted message passing (TRW-S, Kolmogorov 2006, and SRMP for tables of more than two axes, Kolmogorov
2015). A pass visits the variables in order. Each takes the minima of all its tables, and passes what exceeds its
cheapest state on to the tables that lead further, in equal shares. The bound never falls. Its limit can lie below the
optimum of the linear relaxation, but on networks of few cycles it is mostly reached, and the optimum with it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import Network, Scope, Table
from relayout.solve.reparametrize import Relaxation

__all__ = ["ascend"]

# Beyond this, sums of shifts and table entries could leave the range of int64.
LARGEST_SHIFT = 1 << 58


def ascend(network: Network, remaining: set[int], passes: int, deadline: Deadline = UNLIMITED) -> Relaxation:
    """The shifts after `passes` passes, without primal values. Raises ExpiredError.

    Every state of `remaining` must have an allowed entry in each of its tables.
    """
    return _Ascent(network, remaining).run(passes, deadline)


class _Ascent:
    """The shifts of each table so far, and the costs of each variable's states under them."""

    def __init__(self, network: Network, remaining: set[int]) -> None:
        self.tables = network.tables
        self.order = sorted(remaining)
        scopes = {scope for x in self.order for scope in network.incident[x]}
        self.shifts: dict[Scope, list[Table]] = {
            scope: [np.zeros(size, dtype=np.int64) for size in self.tables[scope].shape] for scope in sorted(scopes)
        }
        self.unary = {x: network.unary[x] for x in self.order}
        self.ends = {x: [(scope, scope.index(x)) for scope in network.incident[x]] for x in self.order}

    def run(self, passes: int, deadline: Deadline) -> Relaxation:
        for number in range(passes):
            deadline.check()
            forward = number % 2 == 0
            for x in self.order if forward else reversed(self.order):
                self.visit(x, forward=forward)
            if any(int(np.abs(axis).max()) > LARGEST_SHIFT for axes in self.shifts.values() for axis in axes):
                break
        return Relaxation(self.shifts, {})

    def visit(self, x: int, *, forward: bool) -> None:
        """Take the minima of all tables of `x`, and pass shares on to those with a variable further on."""
        ends, costs = self.ends[x], self.unary[x]
        for scope, axis in ends:
            least = self.least(scope, axis)
            self.shifts[scope][axis] += least
            costs = costs + least
        # Scopes are ascending.
        later = [(scope, axis) for scope, axis in ends if axis < len(scope) - 1]
        earlier = [(scope, axis) for scope, axis in ends if axis > 0]
        further = later if forward else earlier
        if further:
            share = (costs - costs.min()) // max(len(later), len(earlier))
            for scope, axis in further:
                self.shifts[scope][axis] -= share
            costs = costs - share * len(further)
        self.unary[x] = costs

    def least(self, scope: Scope, axis: int) -> Table:
        """The minimum of a table under the shifts, for each state of one of its axes."""
        table = self.tables[scope]
        others: Iterable[int] = [k for k in range(table.ndim) if k != axis]
        for other in others:
            shape = [-1 if k == other else 1 for k in range(table.ndim)]
            table = table - self.shifts[scope][other].reshape(shape)
        least: Table = table.min(axis=tuple(others)) - self.shifts[scope][axis]
        return least
