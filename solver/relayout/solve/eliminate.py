"""Exact elimination: variables leave the network one by one, the best cost over each becoming a table of the others.

This is bucket elimination (Dechter 1999); for variables of degree 0, 1 and 2 it is rules R0, RI and RII of PBQP
(Scholz & Eckstein 2002). What was summed is kept, so that walking back finds the best state of every variable.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from relayout.solve.deadline import UNLIMITED, Clock
from relayout.solve.network import FORBIDDEN, Network, Scope, Table

__all__ = ["Eliminated", "eliminate", "failure", "fix", "guess", "walk_back"]


class Eliminated(NamedTuple):
    """A variable that left: its neighbours then, ascending, and the tables that held it."""

    variable: int
    others: Scope
    unary: Table
    tables: tuple[tuple[Scope, Table], ...]


def eliminate(
    network: Network, alive: set[int], cells: int, start: Iterable[int] | None = None, *, clock: Clock = UNLIMITED
) -> tuple[list[Eliminated], int]:
    """Eliminate variables of `alive` from the network, fewest neighbours first, while no table exceeds `cells`.

    Returns what left, in order, and the constant that it leaves behind; `alive` keeps the kernel. A constant of
    FORBIDDEN says that the problem is infeasible. `start`: the only variables that have changed since the last time.
    Raises ExpiredError where the time is over; the network is then of no more use.
    """
    unary, neighbours = network.unary, network.neighbours
    heap = [(len(neighbours[x]), x) for x in (alive if start is None else start)]
    heapify(heap)
    gone: list[Eliminated] = []
    constant = 0
    while heap:
        clock.check()
        degree, x = heappop(heap)
        if x not in alive or degree != len(neighbours[x]):
            continue
        size = len(unary[x])
        for y in neighbours[x]:
            size *= len(unary[y])
        if degree > 2 and size > cells:
            continue
        others = tuple(sorted(neighbours[x]))
        tables = tuple((scope, network.tables.pop(scope)) for scope in network.touching[x])
        gone.append(Eliminated(x, others, unary[x], tables))
        alive.discard(x)
        for scope, _ in tables:
            for y in scope:
                if y != x:
                    del network.touching[y][scope]
        for y in others:
            neighbours[y].discard(x)
        if others:
            network.add(others, _best(network, gone[-1]))
        else:
            constant = min(constant + int(unary[x].min()), FORBIDDEN)
        for y in others:
            heappush(heap, (len(neighbours[y]), y))
    return gone, constant


def _best(network: Network, gone: Eliminated) -> Table:
    axes = (*gone.others, gone.variable)
    total = gone.unary
    for scope, table in gone.tables:
        total = np.minimum(total + _spread(network, scope, table, axes), FORBIDDEN)
    best: Table = total.min(axis=-1)
    return best


def _spread(network: Network, scope: Scope, table: Table, axes: Scope) -> Table:
    """A table with the axes in another order, and of length 1 where it has none."""
    order = [scope.index(x) for x in axes if x in scope]
    return table.transpose(order).reshape([len(network.unary[x]) if x in scope else 1 for x in axes])


def walk_back(gone: list[Eliminated], states: list[int]) -> None:
    """Fill in the states of what was eliminated, last one first; those of the kernel are in `states` already.

    Of equally good states the first is taken.
    """
    for x, _, total, tables in reversed(gone):
        for scope, table in tables:
            total = total + table[tuple([slice(None) if y == x else states[y] for y in scope])]
            total = np.minimum(total, FORBIDDEN)
        states[x] = int(total.argmin())


def failure(network: Network, gone: list[Eliminated]) -> Scope:
    """The variables around the first elimination that left no allowed entry; none where all went well."""
    for one in gone:
        if _best(network, one).min() >= FORBIDDEN:
            return (one.variable, *one.others)
    return ()


def guess(
    network: Network, alive: set[int], cells: int, *, clock: Clock = UNLIMITED
) -> dict[int, int] | None:
    """Good states for a kernel, or None: eliminate what is small, fix the variable of most neighbours, and again.

    This is rule RN of PBQP. Uses the network up, but not `alive`.
    """
    alive = set(alive)
    fixed: dict[int, int] = {}
    gone, constant = eliminate(network, alive, cells, clock=clock)
    # Choices before hubs: with all choices made, hubs follow, while not every guess at a hub can be met.
    choices = len(network.alternatives)
    heap = [(x >= choices, -len(network.neighbours[x]), x) for x in alive]
    heapify(heap)
    while heap and constant < FORBIDDEN:
        hub, key, x = heappop(heap)
        if x not in alive:
            continue
        if -key != len(network.neighbours[x]):
            heappush(heap, (hub, -len(network.neighbours[x]), x))
            continue
        state = _cheapest(network, x)
        if state is None:
            return None
        fixed[x] = state
        touched = sorted(network.neighbours[x])
        fix(network, x, state)
        alive.discard(x)
        left, constant = eliminate(network, alive, cells, touched, clock=clock)
        gone += left
    if constant >= FORBIDDEN:
        return None
    states = [fixed.get(x, 0) for x in range(len(network.unary))]
    walk_back(gone, states)
    return {x: states[x] for x in sorted({*fixed, *(left.variable for left in gone)})}


def _cheapest(network: Network, x: int) -> int | None:
    """The state of a variable that would be best if each of its tables could choose for itself; None: all forbidden."""
    total: Table = network.unary[x]
    for scope in network.touching[x]:
        rest = tuple([axis for axis, y in enumerate(scope) if y != x])
        total = np.minimum(total + network.tables[scope].min(axis=rest), FORBIDDEN)
    return int(total.argmin()) if total.min() < FORBIDDEN else None


def fix(network: Network, x: int, state: int) -> None:
    """Give one variable a state, and its neighbours what that costs them; the variable leaves all tables."""
    for scope in list(network.touching[x]):
        table: Table = np.take(network.tables.pop(scope), state, axis=scope.index(x))
        others = tuple([y for y in scope if y != x])
        for y in others:
            del network.touching[y][scope]
            network.neighbours[y].discard(x)
        network.add(others, table)
    network.touching[x].clear()
