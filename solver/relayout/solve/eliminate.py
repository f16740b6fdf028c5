"""Exact variable elimination: minimise over one variable at a time, which leaves a table over its neighbours.

This is bucket elimination (Dechter 1999); for variables of degree 0, 1 and 2 it is rules R0, RI and RII of PBQP
(Scholz & Eckstein 2002). The summed tables are kept, so that back-substitution finds the best state of every variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import FORBIDDEN, Network, Scope, Table, WideTable

MOST_AT_ONCE = 1 << 19
"""So many sums are made at once when a variable is eliminated: 4 MiB, which a cache holds."""


Neighbours = Sequence[set[int]] | Mapping[int, set[int]]
_Key = tuple[int, tuple[tuple[tuple[int, ...], int], ...]]


class Eliminated(NamedTuple):
    """An eliminated variable: its neighbours at that time, ascending, and the tables that contained it."""

    variable: int
    neighbours: Scope
    unary: Table
    tables: tuple[tuple[Scope, Table | WideTable], ...]


def eliminate(
    network: Network,
    remaining: set[int],
    cells: int,
    start: Iterable[int] | None = None,
    *,
    by_size: bool = False,
    deadline: Deadline = UNLIMITED,
) -> tuple[list[Eliminated], int]:
    """Eliminate variables of `remaining`, fewest neighbours first, or with `by_size` fewest sums first.

    A variable of more than two neighbours stays where it would take more than `cells` sums.

    Returns the eliminated variables in order and the constant cost that they leave; `remaining` keeps the kernel. A
    constant of FORBIDDEN means that the problem is infeasible. `start` lists the variables that changed since the last
    call; None: all. Changes the network; after an ExpiredError it is unusable.
    """
    unary, neighbours = network.unary, network.neighbours
    rank = partial(_sums if by_size else _degree, unary, neighbours)
    heap = [(rank(x), x) for x in (remaining if start is None else start)]
    heapify(heap)
    eliminated: list[Eliminated] = []
    # Networks repeat their blocks. The tables of a key live on in `eliminated`.
    known: dict[_Key, Table] = {}
    constant = 0
    while heap:
        deadline.check()
        place, x = heappop(heap)
        if x not in remaining or place != rank(x):
            continue
        if len(neighbours[x]) > 2 and _sums(unary, neighbours, x) > cells:
            continue
        scope = tuple(sorted(neighbours[x]))
        eliminated.append(Eliminated(x, scope, unary[x], network.take(x)))
        remaining.discard(x)
        if scope:
            key = _key(eliminated[-1])
            best = known.get(key)
            if best is None:
                best = known[key] = _best(network, eliminated[-1], deadline)
            network.add(scope, best)
        else:
            constant = min(constant + int(unary[x].min()), FORBIDDEN)
        for y in scope:
            heappush(heap, (rank(y), y))
    return eliminated, constant


def _degree(_: Sequence[Table], neighbours: Neighbours, x: int) -> int:
    return len(neighbours[x])


def _sums(unary: Sequence[Table], neighbours: Neighbours, x: int) -> int:
    """The number of sums that the elimination of a variable takes."""
    return prod([len(unary[y]) for y in neighbours[x]], start=len(unary[x]))


class Size(NamedTuple):
    """The entries of the largest table that an elimination leaves, those of all, and the sums that it takes."""

    largest: int
    all: int
    sums: int


def elimination_size(network: Network, remaining: set[int], *, by_size: bool = False) -> Size:
    """The size of an elimination of all variables of `remaining` by `eliminate`."""
    neighbours = {x: network.neighbours[x] & remaining for x in remaining}
    rank = partial(_sums if by_size else _degree, network.unary, neighbours)
    heap = [(rank(x), x) for x in remaining]
    heapify(heap)
    largest = left = sums = 0
    while heap:
        place, x = heappop(heap)
        if x not in neighbours or place != rank(x):
            continue
        others = neighbours.pop(x)
        entries = prod([len(network.unary[y]) for y in others])
        largest, left, sums = max(largest, entries), left + entries, sums + entries * len(network.unary[x])
        for y in others:
            neighbours[y] |= others
            neighbours[y] -= {x, y}
            heappush(heap, (rank(y), y))
    return Size(largest, left, sums)


def _key(eliminated: Eliminated) -> _Key:
    """All that `_best` depends on: the tables, and the axis of each of their variables."""
    axes = {x: axis for axis, x in enumerate(eliminated.neighbours)}
    tables = [(tuple([axes.get(x, -1) for x in scope]), id(table)) for scope, table in eliminated.tables]
    return id(eliminated.unary), tuple(sorted(tables))


def _best(network: Network, eliminated: Eliminated, deadline: Deadline = UNLIMITED) -> Table:
    """The least cost over the eliminated variable for each state of its neighbours."""
    # The eliminated variable first: NumPy is slow to reduce a short innermost axis.
    variable, neighbours = eliminated.variable, eliminated.neighbours
    axes, states = (variable, *neighbours), len(eliminated.unary)
    shape = [len(network.unary[y]) for y in neighbours]
    # The neighbours may have hundreds of formats each: all sums would take gigabytes at once.
    rows = max(MOST_AT_ONCE // prod(shape[1:]), 1)
    step, rows = min(rows, states), max(rows // states, 1)
    best: Table = np.full(shape, FORBIDDEN, dtype=np.int64)
    # The small ones first: their sums are small too.
    tables = sorted(eliminated.tables, key=lambda each: len(each[0]))
    for row, first in product(range(0, shape[0] if shape else 1, rows), range(0, states, step)):
        deadline.check()
        some = slice(first, first + step)
        here = (slice(row, row + rows),)[: len(shape)]
        chosen = {variable: some, **dict(zip(neighbours, here, strict=False))}
        total = _spread((variable,), eliminated.unary[some], axes)
        for scope, table in tables:
            total = total + _spread(scope, _part(scope, table, chosen), axes)
            np.minimum(total, FORBIDDEN, out=total)
        best[here] = np.minimum(best[here], total.min(axis=0))
    return best


def _part(scope: Scope, table: Table | WideTable, states: dict[int, slice]) -> Table:
    """The costs of these states of some variables, and of all states of the others."""
    slices = [states.get(x, slice(None)) for x in scope]
    return table.part(slices) if isinstance(table, WideTable) else table[tuple(slices)]


def _spread(scope: Scope, table: Table, axes: Scope) -> Table:
    """The table broadcast to `axes`: permuted, with length 1 on the axes that it lacks."""
    order = [scope.index(x) for x in axes if x in scope]
    shape = iter([table.shape[axis] for axis in order])
    return table.transpose(order).reshape([next(shape) if x in scope else 1 for x in axes])


def back_substitute(eliminated: list[Eliminated], states: list[int]) -> None:
    """Fill in the states of the eliminated variables, last one first; `states` already has those of the kernel.

    Ties go to the lowest state.
    """
    for x, _, total, tables in reversed(eliminated):
        for scope, table in tables:
            part = _part(scope, table, {y: slice(states[y], states[y] + 1) for y in scope if y != x})
            total = np.minimum(total + part.reshape(-1), FORBIDDEN)
        states[x] = int(total.argmin())


def infeasible_scope(network: Network, eliminated: list[Eliminated]) -> Scope:
    """The variables of the first elimination whose table has no allowed entry; empty if every table has one."""
    for one in eliminated:
        if _best(network, one).min() >= FORBIDDEN:
            return (one.variable, *one.neighbours)
    return ()


def greedy_states(
    network: Network, remaining: set[int], cells: int, *, deadline: Deadline = UNLIMITED
) -> dict[int, int] | None:
    """A heuristic assignment of a kernel, or None: rule RN of PBQP.

    Eliminates small variables, fixes the variable with most neighbours at its locally best state, and repeats. Consumes
    the network; `remaining` is not changed.
    """
    remaining = set(remaining)
    fixed: dict[int, int] = {}
    eliminated, constant = eliminate(network, remaining, cells, deadline=deadline)
    # Choices before set variables: the choices determine them, while an arbitrary set may be infeasible.
    choices = len(network.alternatives)
    heap = [(x >= choices, -len(network.neighbours[x]), x) for x in remaining]
    heapify(heap)
    while heap and constant < FORBIDDEN:
        is_set, key, x = heappop(heap)
        if x not in remaining:
            continue
        if -key != len(network.neighbours[x]):
            heappush(heap, (is_set, -len(network.neighbours[x]), x))
            continue
        least = network.least(x)
        if least.min() >= FORBIDDEN:
            return None
        fixed[x] = state = int(least.argmin())
        changed = sorted(network.neighbours[x])
        fix(network, x, state)
        remaining.discard(x)
        left, constant = eliminate(network, remaining, cells, changed, deadline=deadline)
        eliminated += left
    if constant >= FORBIDDEN:
        return None
    states = [fixed.get(x, 0) for x in range(len(network.unary))]
    back_substitute(eliminated, states)
    return {x: states[x] for x in sorted({*fixed, *(left.variable for left in eliminated)})}


def fix(network: Network, x: int, state: int) -> None:
    """Fix a variable at a state: its row of every table is added to the table's other variables."""
    for scope in list(network.incident[x]):
        table: Table = np.take(network.tables.pop(scope), state, axis=scope.index(x))
        neighbours = tuple([y for y in scope if y != x])
        for y in neighbours:
            del network.incident[y][scope]
            network.neighbours[y].discard(x)
        network.add(neighbours, table)
    network.incident[x].clear()
