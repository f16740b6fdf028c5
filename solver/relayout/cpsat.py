"""What OR-tools solves: the linear relaxation of a kernel (GLOP), a kernel, and the whole problem (CP-SAT).

The only module that imports ortools, and CP-SAT only where it is called: its import takes longer than most relaxations.
The encodings are tight: their linear relaxation is that of the local polytope. `linearization_level = 2` puts the
Boolean constraints into it too; docs/mathematics.md says what that is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, inf
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from ortools.linear_solver.python import model_builder_helper

from .clock import UNLIMITED, Clock
from .errors import InternalError
from .network import FORBIDDEN, Network, Scope, Table
from .problem import Problem, Use, Value
from .tighten import Implications, Relaxation, implications

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Outcome", "relax", "solve_kernel", "solve_whole"]

# Beyond this a double says too little of a dual solution for it to be worth shifting.
LARGEST_RELAXED = 1 << 50
LARGEST_DUAL = 1 << 52
LARGE_PROGRAM = 20_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found: the state of every variable (None: nothing), a bound and the cost (None: not known)."""

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

    def solve(self, hint: dict[int, int] | None, clock: Clock) -> Outcome:
        from ortools.sat.python import cp_model

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
        parameters.num_workers = 1
        parameters.linearization_level = 2
        parameters.add_lp_constraints_lazily = False
        seconds = clock.left()
        if seconds is not None:
            parameters.max_time_in_seconds = max(seconds, 0.01)
        if clock.deterministic is not None:
            parameters.max_deterministic_time = clock.deterministic
        status = solver.solve(self.model)
        if status == cp_model.MODEL_INVALID:
            raise InternalError("CP-SAT refuses the model", found=self.model.validate())
        if status == cp_model.INFEASIBLE:
            return Outcome("infeasible", None, None)
        bound = _floor(solver.best_objective_bound) * scale
        if status == cp_model.UNKNOWN:
            return Outcome("unknown", None, bound)
        states = {
            x: next(a for a, literal in enumerate(literals) if solver.boolean_value(literal))
            for x, literals in self.states.items()
        }
        cost = sum(cost for literal, cost in self.terms if solver.boolean_value(literal))
        if status == cp_model.OPTIMAL:
            return Outcome("optimal", states, cost, cost)
        return Outcome("feasible", states, min(bound, cost), cost)


def _floor(bound: float) -> int:
    # The bound comes as a double: an integer up to rounding, except where it is too large to be one.
    if abs(bound) < 2**52:
        return int(np.ceil(bound - 1e-6))
    return int(bound) - int(abs(bound) / 2**51)


def solve_kernel(
    network: Network, alive: set[int], hint: dict[int, int] | None, clock: Clock = UNLIMITED
) -> Outcome:
    """Minimise the sum of the tables over the variables in `alive`. Raises ExpiredError where no time is left."""
    model = _Model()
    for x in sorted(alive):
        clock.check()
        model.choose(x, network.unary[x].tolist())
    for scope in sorted({scope for x in alive for scope in network.touching[x]}):
        clock.check()
        _add_table(model, scope, network.tables[scope])
    return model.solve(hint, clock)


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


def relax(
    network: Network, alive: set[int], clock: Clock = UNLIMITED, *, precise: bool = True
) -> Relaxation | None:
    """Solve the linear relaxation of a kernel; None where that fails or is infeasible. Raises ExpiredError.

    With `precise=False` a large one is solved to 1 part in 10,000 only, which takes a fraction of the time.
    """
    program = _Program()
    for x in sorted(alive):
        program.choose(x, network.unary[x])
    scopes = sorted({scope for x in alive for scope in network.touching[x]})
    rows: dict[Scope, int] = {}
    for scope in scopes:
        clock.check()
        rows[scope] = program.tie(scope, network.tables[scope])
    solution = program.solve(clock, precise=precise)
    if solution is None:
        clock.check()
        return None
    values, duals = solution
    shifts: dict[Scope, list[Table]] = {}
    for scope, first in rows.items():
        table = network.tables[scope]
        groups = program.implied(table)
        axes = [np.zeros(size, dtype=np.int64) for size in table.shape]
        if groups is None:
            ends = np.cumsum((first, *table.shape))
            axes = [duals[a:b].copy() for a, b in pairwise(ends.tolist())]
        for row, (axis, states, others) in enumerate(groups or (), start=first):
            axes[axis][states] -= min(int(duals[row]), 0)
            axes[1 - axis][others] += min(int(duals[row]), 0)
        shifts[scope] = axes
    relaxed = {x: values[first : first + len(network.unary[x])].tolist() for x, first in program.first.items()}
    return Relaxation(shifts, relaxed)


class _Program:
    """A linear program: a column a state, and one a cell of a table that has costs."""

    def __init__(self) -> None:
        # Its stubs name array types that numpy does not have.
        self.helper: Any = model_builder_helper.ModelBuilderHelper()
        self.first: dict[int, int] = {}
        self.costs: list[int] = []
        self.rows = 0
        # By the table's identity, for equal ones are one object; it is kept, so that no other can take its place.
        self._implied: dict[int, tuple[Table, Implications | None]] = {}

    def row(self, least: float, most: float, terms: Iterable[tuple[int, float]]) -> None:
        row = self.helper.add_linear_constraint()
        self.helper.set_constraint_lower_bound(row, least)
        self.helper.set_constraint_upper_bound(row, most)
        for column, factor in terms:
            self.helper.add_term_to_constraint(row, column, factor)
        self.rows += 1

    def implied(self, table: Table) -> Implications | None:
        """The table's implications, looked for once."""
        if id(table) not in self._implied:
            self._implied[id(table)] = table, implications(table)
        return self._implied[id(table)][1]

    def choose(self, x: int, unary: Table) -> None:
        self.first[x] = len(self.costs)
        self.costs += unary.tolist()
        self.row(1.0, 1.0, [(column, 1.0) for column in range(self.first[x], len(self.costs))])

    def tie(self, scope: Scope, table: Table) -> int:
        """Add a table and answer its first row: one an implication, or one a state of each variable."""
        first = self.rows
        columns = [self.first[x] for x in scope]
        groups = self.implied(table)
        if groups is not None:
            for axis, states, others in groups:
                mine = [(columns[axis] + state, 1.0) for state in states]
                self.row(-inf, 0.0, mine + [(columns[1 - axis] + other, -1.0) for other in others])
            return first
        cells = np.argwhere(table < FORBIDDEN).tolist()
        shares = [[[(columns[axis] + state, -1.0)] for state in range(size)] for axis, size in enumerate(table.shape)]
        for cell in cells:
            for axis, state in enumerate(cell):
                shares[axis][state].append((len(self.costs), 1.0))
            self.costs.append(int(table[tuple(cell)]))
        for by_state in shares:
            for terms in by_state:
                self.row(0.0, 0.0, terms)
        return first

    def solve(self, clock: Clock, *, precise: bool) -> tuple[npt.NDArray[np.float64], Table] | None:
        """The values of all columns, and the duals of all rows rounded to integers."""
        costs = np.array(self.costs, dtype=np.int64)
        forbidden = costs >= FORBIDDEN
        most = int(costs[~forbidden].max(initial=1))
        if most > LARGEST_RELAXED:
            return None
        columns = len(costs)
        scale = max(most / 1e4, 1.0)
        self.helper.add_var_array_with_bounds(
            np.zeros(columns), np.where(forbidden, 0.0, 1.0), np.zeros(columns, dtype=bool), ""
        )
        self.helper.set_objective_coefficients(list(range(columns)), np.where(forbidden, 0.0, costs / scale).tolist())
        engines = _SMALL if self.rows + columns < LARGE_PROGRAM else _LARGE if precise else _LARGE_ROUGHLY
        solver = next(filter(None, (self.solved(name, parameters, clock) for name, parameters in engines)), None)
        if solver is None:
            return None
        duals = np.clip(np.rint(solver.dual_values() * scale), -LARGEST_DUAL, LARGEST_DUAL)
        return solver.variable_values(), duals.astype(np.int64)

    def solved(self, engine: str, parameters: str, clock: Clock) -> Any:
        """The engine after it solved this program, or None."""
        solver: Any = model_builder_helper.ModelSolverHelper(engine)
        solver.set_solver_specific_parameters(parameters)
        seconds = clock.left()
        if seconds is not None:
            solver.set_time_limit_in_seconds(max(seconds, 0.01))
        solver.solve(self.helper)
        return solver if solver.status() == model_builder_helper.OPTIMAL else None


# Twenty times faster than GLOP's default is its dual simplex, and on large programs the first-order method PDLP than
# that (measured on scattered networks). Its solution is not quite one, but rounded duals need not be.
_SMALL = (("GLOP", "use_dual_simplex: true"),)
_LARGE = (("PDLP", "num_threads: 1"), *_SMALL)
_ROUGHLY = "simple_optimality_criteria { eps_optimal_relative: 1e-4 eps_optimal_absolute: 1e-4 } iteration_limit: 4000"
_LARGE_ROUGHLY = (("PDLP", f"num_threads: 1 termination_criteria {{ {_ROUGHLY} }}"),)


def solve_whole(
    problem: Problem,
    *,
    hint: Sequence[int] | None = None,
    clock: Clock = UNLIMITED,
    max_conversions: int | None = None,
) -> Outcome:
    """Minimise the problem itself, without any reduction; at most `max_conversions` conversions that cost anything.

    Raises ExpiredError where no time is left to begin.
    """
    model = _Model()
    for c, choice in enumerate(problem.choices):
        clock.check()
        model.choose(c, choice.costs)
    counted: list[cp_model.IntVar] = []
    for value in problem.values:
        clock.check()
        counted += _add_value(model, value)
    if max_conversions is not None:
        model.model.add(model.sum(counted) <= max_conversions)
    states = None if hint is None else dict(enumerate(hint))
    return model.solve(states, clock)


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
            model.model.add(copy <= model.sum(literals))
            available.append(copy)
            if price:
                model.terms.append((copy, price))
                counted.append(copy)
        for use in wanted:
            if target in use:
                model.model.add(model.sum(use[target]) <= model.sum(available))
    return counted


def _by_format(model: _Model, use: Use) -> dict[int, list[cp_model.IntVar]]:
    literals: dict[int, list[cp_model.IntVar]] = {}
    for literal, target in zip(model.states[use.choice], use.formats, strict=True):
        literals.setdefault(target, []).append(literal)
    return literals
