"""Reparametrization: move as much cost as possible into a constant, without changing the cost of any assignment.

Shifting costs between a table and its variables is an equivalence-preserving transformation (Cooper & Schiex 2004).
With the dual solution of the linear relaxation as shifts, the minima of all tables add up to the optimum of the
relaxation: a lower bound in exact integers, whatever the rounding of the duals. A state whose reduced cost is too high
is in no solution better than a known one, and is dropped (reduced-cost fixing).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from relayout.solve.network import FORBIDDEN, Network, Scope, Table, along

Implications = list[tuple[int, list[int], list[int]]]


class Relaxation(Struct, frozen=True):
    """A solved linear relaxation: `shifts[scope]` is the integer cost that each axis takes from that table.

    `values[x][state]`, from 0 to 1, is the primal solution, and `objective` its cost; dual ascent has none.
    """

    shifts: dict[Scope, list[Table]]
    values: dict[int, list[float]]
    objective: float = 0.0


def implications(table: Table) -> Implications | None:
    """A table of 0 and FORBIDDEN as implications: (axis, states of it, the states of the other axis that they allow).

    None if the table has costs or does not have two axes. If one axis has two states, one direction suffices.
    """
    allowed = table == 0
    if table.ndim != 2 or not (allowed | (table >= FORBIDDEN)).all():
        return None
    axes = (0,) if table.shape[1] == 2 else (1,) if table.shape[0] == 2 else (0, 1)
    groups: dict[tuple[int, tuple[bool, ...]], list[int]] = {}
    for axis in axes:
        for state, row in enumerate((allowed if axis == 0 else allowed.T).tolist()):
            if not all(row):
                groups.setdefault((axis, tuple(row)), []).append(state)
    return [(axis, states, [k for k, fine in enumerate(row) if fine]) for (axis, row), states in groups.items()]


def apply_shifts(network: Network, remaining: set[int], shifts: dict[Scope, list[Table]]) -> int:
    """Move costs from tables into variables, and the minimum of every table and variable into the returned constant.

    Afterwards every table and every variable of `remaining` has least entry 0. Returns FORBIDDEN if one of them has no
    allowed entry; the network is then unusable.
    """
    constant = 0
    settled: dict[int, Table] = {}
    for scope, axes in shifts.items():
        table = network.tables[scope]
        if not any(taken.any() for taken in axes):
            # Equal tables are one object, and most have minimum 0 already.
            if id(table) in settled:
                continue
            if table.min() == 0:
                settled[id(table)] = table
                continue
        moved = table
        for axis, (x, taken) in enumerate(zip(scope, axes, strict=True)):
            moved = moved - along(axis, len(scope), taken)
            network.unary[x] = np.where(network.unary[x] >= FORBIDDEN, FORBIDDEN, network.unary[x] + taken)
        least, network.tables[scope] = _normalized(table, moved)
        if least >= FORBIDDEN:
            return FORBIDDEN
        constant += least
    for x in sorted(remaining):
        least, network.unary[x] = _normalized(network.unary[x], network.unary[x])
        if least >= FORBIDDEN:
            return FORBIDDEN
        constant += least
    return constant


def _normalized(table: Table, moved: Table) -> tuple[int, Table]:
    """The least allowed entry, and the table with it subtracted."""
    forbidden = table >= FORBIDDEN
    if forbidden.all():
        return FORBIDDEN, table
    least = int(moved[~forbidden].min())
    return least, np.where(forbidden, FORBIDDEN, moved - least)


def assignment_cost(network: Network, remaining: set[int], states: dict[int, int]) -> int:
    """The cost of an assignment of `remaining` in this network; FORBIDDEN or more: infeasible."""
    total = sum(int(network.unary[x][states[x]]) for x in remaining)
    for scope in network.scopes_of(remaining):
        total += int(network.tables[scope][tuple([states[x] for x in scope])])
    return total


def states_within(network: Network, remaining: set[int], most: int) -> dict[int, list[int]]:
    """The states of each variable whose reduced cost is at most `most`; needs a reparametrized network."""
    return {x: np.flatnonzero(network.least(x) <= most).tolist() for x in sorted(remaining)}


def restrict(network: Network, left: dict[int, list[int]], most: int) -> Network:
    """The same variables with only the states of `left`; table entries above `most` become FORBIDDEN.

    A variable with one state leaves every table, so that it no longer connects its neighbours.
    """
    smaller = Network(network.alternatives)
    for x, unary in enumerate(network.unary):
        smaller.variable(unary[left[x]] if x in left else unary)
    # Equal tables are one object, and become one.
    known: dict[tuple[int, tuple[tuple[int, ...], ...]], Table] = {}
    states = {x: tuple(some) for x, some in left.items()}
    for scope, table in network.tables.items():
        key = id(table), tuple([states[x] for x in scope])
        cut = known.get(key)
        if cut is None:
            cut = table[np.ix_(*key[1])]
            cut = known[key] = np.where(cut > most, FORBIDDEN, cut)
        free = tuple([x for x in scope if len(left[x]) > 1]) or scope[:1]
        smaller.add(free, cut.reshape([len(left[x]) for x in free]))
    return smaller
