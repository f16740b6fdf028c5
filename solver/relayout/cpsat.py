"""The two integer programs, for OR-tools' CP-SAT: the kernel that elimination leaves, and the whole problem.

The only module that imports ortools. Both encodings are tight: their linear relaxation is that of the local polytope.
`linearization_level = 2` puts the Boolean constraints into it too; without it small networks are not proved in minutes
(measured: see docs/mathematics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

import numpy as np
from ortools.sat.python import cp_model

from .errors import InternalError
from .network import FORBIDDEN, Network, Scope, Table
from .problem import Problem, Use, Value

__all__ = ["Outcome", "solve_kernel", "solve_whole"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What CP-SAT found: the state of every variable (None: nothing), and a bound (None: none)."""

    status: str
    states: dict[int, int] | None
    bound: int | None


class _Model:
    """A CP-SAT model of one-of-many variables, with an exact integer objective."""

    def __init__(self) -> None:
        self.model = cp_model.CpModel()
        self.states: dict[int, list[cp_model.IntVar]] = {}
        self.terms: list[tuple[cp_model.IntVar, int]] = []
        self.constant = 0

    def choose(self, x: int, costs: Sequence[int]) -> None:
        literals = [self.model.new_bool_var("") for _ in costs]
        self.model.add_exactly_one(literals)
        self.states[x] = literals
        for literal, cost in zip(literals, costs, strict=True):
            if cost >= FORBIDDEN:
                self.model.add(literal == 0)
            elif cost:
                self.terms.append((literal, cost))

    def solve(
        self, hint: dict[int, int] | None, seconds: float | None, deterministic: float | None, workers: int
    ) -> Outcome:
        scale = gcd(*[cost for _, cost in self.terms]) or 1
        self.model.minimize(
            cp_model.LinearExpr.weighted_sum(
                [literal for literal, _ in self.terms], [cost // scale for _, cost in self.terms]
            )
        )
        for x, state in (hint or {}).items():
            for a, literal in enumerate(self.states.get(x, ())):
                self.model.add_hint(literal, a == state)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.random_seed = 0
        parameters.num_workers = workers
        parameters.linearization_level = 2
        parameters.add_lp_constraints_lazily = False
        if seconds is not None:
            parameters.max_time_in_seconds = max(seconds, 0.01)
        if deterministic is not None:
            parameters.max_deterministic_time = deterministic
        status = solver.solve(self.model)
        if status == cp_model.MODEL_INVALID:
            raise InternalError("CP-SAT refuses the model", found=self.model.validate())
        if status == cp_model.INFEASIBLE:
            return Outcome("infeasible", None, None)
        bound = self.constant + _floor(solver.best_objective_bound) * scale
        if status == cp_model.UNKNOWN:
            return Outcome("unknown", None, bound)
        states = {
            x: next(a for a, literal in enumerate(literals) if solver.boolean_value(literal))
            for x, literals in self.states.items()
        }
        return Outcome("optimal" if status == cp_model.OPTIMAL else "feasible", states, bound)


def _floor(bound: float) -> int:
    # The bound comes as a double: an integer up to rounding, except where it is too large to be one.
    if abs(bound) < 2**52:
        return int(np.ceil(bound - 1e-6))
    return int(bound) - int(abs(bound) / 2**51)


def solve_kernel(
    network: Network,
    alive: Iterable[int],
    *,
    hint: dict[int, int] | None = None,
    time_limit: float | None = None,
    deterministic_limit: float | None = None,
    workers: int = 1,
) -> Outcome:
    """Minimise the sum of the tables over the variables in `alive`."""
    model = _Model()
    kernel = sorted(alive)
    for x in kernel:
        model.choose(x, network.unary[x].tolist())
    for scope in sorted({scope for x in kernel for scope in network.touching[x]}):
        _add_table(model, scope, network.tables[scope])
    return model.solve(hint, time_limit, deterministic_limit, workers)


def _add_table(model: _Model, scope: Scope, table: Table) -> None:
    """Add one table: clauses where it only forbids, transport variables where it costs."""
    free = table == 0
    if np.all(free | (table >= FORBIDDEN)) and len(scope) == 2:
        for x, y, allowed in ((scope[0], scope[1], free), (scope[1], scope[0], free.T)):
            for literal, row in zip(model.states[x], allowed, strict=True):
                if not row.all():
                    others = [other for other, fine in zip(model.states[y], row, strict=True) if fine]
                    model.model.add_bool_or([*others, literal.negated()])
        return
    shares: list[list[list[cp_model.IntVar]]] = [[[] for _ in range(size)] for size in table.shape]
    for cell in product(*[range(size) for size in table.shape]):
        cost = int(table[cell])
        if cost >= FORBIDDEN:
            continue
        share = model.model.new_bool_var("")
        for axis, state in enumerate(cell):
            shares[axis][state].append(share)
        if cost:
            model.terms.append((share, cost))
    for x, by_state in zip(scope, shares, strict=True):
        for literal, cells in zip(model.states[x], by_state, strict=True):
            model.model.add(cp_model.LinearExpr.sum(cells) == literal)


def solve_whole(
    problem: Problem,
    *,
    hint: Sequence[int] | None = None,
    time_limit: float | None = None,
    deterministic_limit: float | None = None,
    max_conversions: int | None = None,
    workers: int = 1,
) -> Outcome:
    """Minimise the problem itself, without any reduction; at most `max_conversions` conversions that cost anything."""
    model = _Model()
    for c, choice in enumerate(problem.choices):
        model.choose(c, choice.costs)
    counted: list[cp_model.IntVar] = []
    for value in problem.values:
        counted += _add_value(model, value)
    if max_conversions is not None:
        model.model.add(cp_model.LinearExpr.sum(counted) <= max_conversions)
    states = None if hint is None else dict(enumerate(hint))
    return model.solve(states, time_limit, deterministic_limit, workers)


def _add_value(model: _Model, value: Value) -> list[cp_model.IntVar]:
    """Add one value: a copy is made from the format that is produced, and serves everyone; returns copies that cost."""
    produced = _by_format(model, value.producer)
    wanted = [_by_format(model, use) for use in value.consumers]
    counted: list[cp_model.IntVar] = []
    for target in sorted({target for use in wanted for target in use}):
        available = list(produced.get(target, ()))
        for source, literals in produced.items():
            price = value.conversion[source][target]
            if source == target or price is None:
                continue
            copy = model.model.new_bool_var("")
            model.model.add(copy <= cp_model.LinearExpr.sum(literals))
            available.append(copy)
            if price:
                model.terms.append((copy, price))
                counted.append(copy)
        for use in wanted:
            if target in use:
                model.model.add(cp_model.LinearExpr.sum(use[target]) <= cp_model.LinearExpr.sum(available))
    return counted


def _by_format(model: _Model, use: Use) -> dict[int, list[cp_model.IntVar]]:
    literals: dict[int, list[cp_model.IntVar]] = {}
    for literal, target in zip(model.states[use.choice], use.formats, strict=True):
        literals.setdefault(target, []).append(literal)
    return literals
