"""A network that costs the same, assignment by assignment, with as much of the cost as possible in a constant.

Shifting costs between a table and the variables that it touches changes no assignment's cost (equivalence-preserving
transformations: Cooper & Schiex 2004). With the dual solution of the linear relaxation as shifts, the minima of all
tables add up to its optimum: a bound in exact integers, whatever the rounding. What a state costs above the bound tells
which states no solution better than a known one can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayout.solve.network import FORBIDDEN, Network, Scope, Table

__all__ = ["Implications", "Relaxation", "implications", "price_of", "restrict", "shift", "worthwhile"]

Implications = list[tuple[int, list[int], list[int]]]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear relaxation of a kernel, solved: `shifts[scope]` is what each axis of a table takes over from it.

    `values[x]` holds one number from 0 to 1 a state: the relaxed solution itself.
    """

    shifts: dict[Scope, list[Table]]
    values: dict[int, list[float]]


def implications(table: Table) -> Implications | None:
    """A table that only forbids as implications: (axis, some of its states, the states of the other that they allow).

    None where it has costs, or not two axes. Where one axis has two states, one direction says it all.
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


def shift(network: Network, alive: set[int], shifts: dict[Scope, list[Table]]) -> int:
    """Move costs from tables into variables, then what is left to pay everywhere into the constant that is returned.

    Afterwards every table and every variable of `alive` has an entry of 0 and none below. FORBIDDEN says that one of
    them has no entry that is allowed; it may then be left half done.
    """
    constant = 0
    settled: dict[int, Table] = {}
    for scope, axes in shifts.items():
        table = network.tables[scope]
        if not any(taken.any() for taken in axes):
            # Equal tables are one object, and most of them have nothing to give.
            if id(table) in settled:
                continue
            if table.min() == 0:
                settled[id(table)] = table
                continue
        moved = table
        for axis, (x, taken) in enumerate(zip(scope, axes, strict=True)):
            moved = moved - taken.reshape([-1 if k == axis else 1 for k in range(len(scope))])
            network.unary[x] = np.where(network.unary[x] >= FORBIDDEN, FORBIDDEN, network.unary[x] + taken)
        least, network.tables[scope] = _settled(table, moved)
        if least >= FORBIDDEN:
            return FORBIDDEN
        constant += least
    for x in sorted(alive):
        least, network.unary[x] = _settled(network.unary[x], network.unary[x])
        if least >= FORBIDDEN:
            return FORBIDDEN
        constant += least
    return constant


def _settled(table: Table, moved: Table) -> tuple[int, Table]:
    """The least of the entries that are allowed, and all of them without it."""
    forbidden = table >= FORBIDDEN
    if forbidden.all():
        return FORBIDDEN, table
    least = int(moved[~forbidden].min())
    return least, np.where(forbidden, FORBIDDEN, moved - least)


def price_of(network: Network, alive: set[int], states: dict[int, int]) -> int:
    """What an assignment of the variables of `alive` costs in this network; FORBIDDEN or more: it is not allowed."""
    total = sum(int(network.unary[x][states[x]]) for x in alive)
    for scope in {scope for x in alive for scope in network.touching[x]}:
        total += int(network.tables[scope][tuple([states[x] for x in scope])])
    return total


def worthwhile(network: Network, alive: set[int], most: int) -> dict[int, list[int]]:
    """The states of each variable that can be part of an assignment of cost `most` or less; needs a settled network."""
    left: dict[int, list[int]] = {}
    for x in sorted(alive):
        least = network.unary[x]
        for scope in network.touching[x]:
            rest = tuple([axis for axis, y in enumerate(scope) if y != x])
            least = np.minimum(least + network.tables[scope].min(axis=rest), FORBIDDEN)
        left[x] = np.flatnonzero(least <= most).tolist()
    return left


def restrict(network: Network, left: dict[int, list[int]], most: int) -> Network:
    """The network of the same variables with the states that are left, and nothing dearer than `most` in its tables.

    Variables of one state leave all tables, so that they hold nothing together.
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
