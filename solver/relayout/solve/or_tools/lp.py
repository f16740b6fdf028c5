"""The linear relaxation of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from ortools.linear_solver.python import model_builder_helper

from relayout.solve.deadline import UNLIMITED, Deadline
from relayout.solve.network import FORBIDDEN, Network, Scope, Table
from relayout.solve.reparametrize import Implications, Relaxation, implications

# With larger costs a double is too imprecise for a useful dual solution.
LARGEST_RELAXED = 1 << 50
LARGEST_DUAL = 1 << 52
LARGE_PROGRAM = 20_000


def relax(
    network: Network, remaining: set[int], deadline: Deadline = UNLIMITED, *, precise: bool = True
) -> Relaxation | None:
    """Solve the linear relaxation of a kernel; None if it is infeasible or the solver fails. Raises ExpiredError.

    With `precise=False` a large one is solved only to 1 part in 10,000, which takes a fraction of the time.
    """
    program = _Program()
    for x in sorted(remaining):
        program.choose(x, network.unary[x])
    rows: dict[Scope, int] = {}
    for scope in sorted(network.scopes_of(remaining)):
        deadline.check()
        rows[scope] = program.tie(scope, network.tables[scope])
    solution = program.solve(deadline, precise=precise)
    if solution is None:
        deadline.check()
        return None
    values, duals, objective = solution
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
    return Relaxation(shifts, relaxed, objective)


class _Program:
    """A linear program with one column for each state, and for each cell of a table with costs."""

    def __init__(self) -> None:
        # The stubs of ortools name array types that numpy does not have.
        self.helper: Any = model_builder_helper.ModelBuilderHelper()
        self.first: dict[int, int] = {}
        self.costs: list[int] = []
        self.rows = 0
        # Keyed by identity, since equal tables are one object. The table is kept so that its id is not reused.
        self._implied: dict[int, tuple[Table, Implications | None]] = {}

    def row(self, least: float, most: float, terms: Iterable[tuple[int, float]]) -> None:
        row = self.helper.add_linear_constraint()
        self.helper.set_constraint_lower_bound(row, least)
        self.helper.set_constraint_upper_bound(row, most)
        for column, factor in terms:
            self.helper.add_term_to_constraint(row, column, factor)
        self.rows += 1

    def implied(self, table: Table) -> Implications | None:
        """The table's implications, computed once."""
        if id(table) not in self._implied:
            self._implied[id(table)] = table, implications(table)
        return self._implied[id(table)][1]

    def choose(self, x: int, unary: Table) -> None:
        self.first[x] = len(self.costs)
        self.costs += unary.tolist()
        self.row(1.0, 1.0, [(column, 1.0) for column in range(self.first[x], len(self.costs))])

    def tie(self, scope: Scope, table: Table) -> int:
        """Add a table and return the index of its first row: one row for each implication, or for each state."""
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

    def solve(self, deadline: Deadline, *, precise: bool) -> tuple[npt.NDArray[np.float64], Table, float] | None:
        """The values of all columns, the duals of all rows rounded to integers, and the cost of the values."""
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
        solver = next(filter(None, (self.solved(name, parameters, deadline) for name, parameters in engines)), None)
        if solver is None:
            return None
        duals = np.clip(np.rint(solver.dual_values() * scale), -LARGEST_DUAL, LARGEST_DUAL)
        return solver.variable_values(), duals.astype(np.int64), solver.objective_value() * scale

    def solved(self, engine: str, parameters: str, deadline: Deadline) -> Any:
        """The engine after it solved this program, or None."""
        solver: Any = model_builder_helper.ModelSolverHelper(engine)
        solver.set_solver_specific_parameters(parameters)
        seconds = deadline.left()
        if seconds is not None:
            solver.set_time_limit_in_seconds(max(seconds, 0.01))
        solver.solve(self.helper)
        return solver if solver.status() == model_builder_helper.OPTIMAL else None


# GLOP's dual simplex is twenty times faster than its default. On large programs the first-order method PDLP is twenty
# times faster again (measured on scattered networks). Its solution is approximate, which rounded duals allow.
_SMALL = (("GLOP", "use_dual_simplex: true"),)
_LARGE = (("PDLP", "num_threads: 1"), *_SMALL)
_ROUGHLY = "simple_optimality_criteria { eps_optimal_relative: 1e-4 eps_optimal_absolute: 1e-4 } iteration_limit: 4000"
_LARGE_ROUGHLY = (("PDLP", f"num_threads: 1 termination_criteria {{ {_ROUGHLY} }}"),)
