"""CP-SAT models of a kernel and of the whole problem.

`linearization_level = 2` adds the Boolean constraints to the linear relaxation; docs/mathematics.md has the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import InternalError
from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import FORBIDDEN, Network, Scope, Table
from relayout.solve.problem import Item, Problem, Use
from relayout.solve.reparametrize import implications

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

# CP-SAT refuses an objective whose coefficients add up to more than int64 holds, whatever the constraints allow.
LARGEST_SUM = 1 << 61


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of every variable, a lower bound and the cost; each None if not known."""

    status: str
    states: dict[int, int] | None
    bound: int | None
    cost: int | None = None


class _Model:
    """A CP-SAT model of one-of-many variables, with an exact integer objective."""

    def __init__(self) -> None:
        from ortools.sat.python import cp_model

        self.model = cp_model.CpModel()
        self.sum = cp_model.LinearExpr.sum
        self.states: dict[int, list[cp_model.IntVar]] = {}
        self.terms: list[tuple[cp_model.IntVar, int]] = []

    def choose(self, x: int, costs: Sequence[int]) -> None:
        literals = [self.model.new_bool_var("") for _ in costs]
        self.model.add_exactly_one(literals)
        self.states[x] = literals
        for literal, cost in zip(literals, costs, strict=True):
            if cost >= FORBIDDEN:
                self.model.add(literal == 0)
            elif cost:
                self.terms.append((literal, cost))

    def solve(self, hint: dict[int, int] | None, deadline: Deadline, base: int = 0) -> Outcome:
        """Minimise. `base` is the cost outside the model, for the listener of the deadline.

        Costs whose sum CP-SAT cannot hold are rounded down to multiples of a scale: the bound holds for the exact ones.
        """
        from ortools.sat.python import cp_model

        def priced(is_chosen: Callable[[cp_model.IntVar], bool]) -> int:
            return sum([cost for literal, cost in self.terms if is_chosen(literal)])

        sums = sum([cost for _, cost in self.terms])
        scale = max(gcd(*[cost for _, cost in self.terms]), -(-sums // LARGEST_SUM), 1)
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
        parameters.num_workers = 1
        parameters.linearization_level = 2
        parameters.add_lp_constraints_lazily = False
        seconds = deadline.left()
        if seconds is not None:
            parameters.max_time_in_seconds = max(seconds, 0.01)
        if deadline.improved is None:
            status = solver.solve(self.model)
        else:

            class Listener(cp_model.CpSolverSolutionCallback):
                def on_solution_callback(self) -> None:
                    bound = _integer_bound(self.best_objective_bound) * scale
                    deadline.found(base + priced(self.boolean_value), base + bound)

            solver.best_bound_callback = lambda bound: deadline.found(None, base + _integer_bound(bound) * scale)
            status = solver.solve(self.model, Listener())
        if status == cp_model.MODEL_INVALID:
            # CP-SAT appends the constraint or the objective that it means, of any length.
            raise InternalError("CP-SAT refuses the model", found=self.model.validate()[:200])
        if status == cp_model.INFEASIBLE:
            return Outcome("infeasible", None, None)
        bound = _integer_bound(solver.best_objective_bound) * scale
        if status == cp_model.UNKNOWN:
            return Outcome("unknown", None, bound)
        states = {
            x: next(a for a, literal in enumerate(literals) if solver.boolean_value(literal))
            for x, literals in self.states.items()
        }
        cost = priced(solver.boolean_value)
        if status == cp_model.OPTIMAL and all(cost % scale == 0 for _, cost in self.terms):
            bound = cost
        return Outcome("optimal" if bound >= cost else "feasible", states, min(bound, cost), cost)


def _integer_bound(bound: float) -> int:
    # An integer up to rounding, unless it is too large for doubles to be exact.
    if abs(bound) < 2**52:
        return int(np.ceil(bound - 1e-6))
    return int(bound) - int(abs(bound) / 2**51)


def solve_kernel(
    network: Network,
    remaining: set[int],
    hint: dict[int, int] | None,
    deadline: Deadline = UNLIMITED,
    base: int = 0,
) -> Outcome:
    """Minimise the sum of the tables over the variables in `remaining`. Raises ExpiredError.

    `base` is the cost of the other variables, for the listener of the deadline.
    """
    model = _Model()
    for x in sorted(remaining):
        deadline.check()
        model.choose(x, network.unary[x].tolist())
    for scope in sorted(network.scopes_of(remaining)):
        deadline.check()
        _add_table(model, scope, network.tables[scope])
    return model.solve(hint, deadline, base)


def _add_table(model: _Model, scope: Scope, table: Table) -> None:
    """Add one table: clauses where it only forbids, transport variables where it costs."""
    groups = implications(table)
    if groups is not None:
        for axis, states, others in groups:
            mine, theirs = model.states[scope[axis]], model.states[scope[1 - axis]]
            for state in states:
                model.model.add_bool_or([mine[state].negated(), *[theirs[other] for other in others]])
        return
    shares: list[list[list[cp_model.IntVar]]] = [[[] for _ in range(size)] for size in table.shape]
    for cell in np.argwhere(table < FORBIDDEN).tolist():
        cost = int(table[tuple(cell)])
        share = model.model.new_bool_var("")
        for axis, state in enumerate(cell):
            shares[axis][state].append(share)
        if cost:
            model.terms.append((share, cost))
    for x, by_state in zip(scope, shares, strict=True):
        for literal, cells in zip(model.states[x], by_state, strict=True):
            model.model.add(model.sum(cells) == literal)


def solve_whole(
    problem: Problem,
    *,
    hint: Sequence[int] | None = None,
    deadline: Deadline = UNLIMITED,
    max_conversions: int | None = None,
) -> Outcome:
    """Minimise the problem itself, without any reduction, with at most `max_conversions` conversions of cost above 0.

    Raises ExpiredError if the deadline passes before CP-SAT starts.
    """
    model = _Model()
    for c, choice in enumerate(problem.choices):
        deadline.check()
        model.choose(c, choice.costs)
    counted: list[cp_model.IntVar] = []
    for item in problem.items:
        deadline.check()
        counted += _add_value(model, item)
    if max_conversions is not None:
        model.model.add(model.sum(counted) <= max_conversions)
    states = None if hint is None else dict(enumerate(hint))
    return model.solve(states, deadline)


def _add_value(model: _Model, item: Item) -> list[cp_model.IntVar]:
    """Add one item: each conversion makes one copy for all consumers. Returns the copies that have a cost.

    If copies are reused, each is also made from another copy, and their numbers ascend, so that none is made of itself.
    """
    produced = _by_format(model, item.producer)
    wanted = [_by_format(model, use) for use in item.consumers]
    formats = range(len(item.conversion))
    targets = list(formats) if item.reuses_copies else sorted({target for use in wanted for target in use})
    sources = list(formats) if item.reuses_copies else list(produced)
    available = {target: list(produced.get(target, ())) for target in formats}
    numbers = [model.model.new_int_var(0, len(formats), "") for _ in formats] if item.reuses_copies else []
    copies: list[tuple[int, cp_model.IntVar]] = []
    counted: list[cp_model.IntVar] = []
    for target in targets:
        for source in sources:
            price = item.conversion[source][target]
            if source == target or price is None:
                continue
            copy = model.model.new_bool_var("")
            copies.append((source, copy))
            available[target].append(copy)
            if numbers:
                model.model.add(numbers[target] > numbers[source]).only_enforce_if(copy)
            if price:
                model.terms.append((copy, price))
                counted.append(copy)
    for source, copy in copies:
        origins = available[source] if item.reuses_copies else produced[source]
        model.model.add(copy <= model.sum(origins))
    for use in wanted:
        for target, literals in use.items():
            model.model.add(model.sum(literals) <= model.sum(available[target]))
    return counted


def _by_format(model: _Model, use: Use) -> dict[int, list[cp_model.IntVar]]:
    literals: dict[int, list[cp_model.IntVar]] = {}
    for literal, target in zip(model.states[use.choice], use.formats, strict=True):
        literals.setdefault(target, []).append(literal)
    return literals
