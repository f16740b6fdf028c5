"""The one door: reduce exactly, give CP-SAT what is left, walk back, and check the cost against the problem.

`solve` is deterministic: the same problem and options give the same solution on every machine, unless a wall-clock
limit stops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter

from .conflict import smallest_conflict
from .encoding import network_of
from .errors import InternalError, UsageError
from .network import FORBIDDEN, Network
from .problem import Problem, conversions_of, cost_of
from .reduction import eliminate, guess, walk_back

__all__ = ["ENGINES", "Solution", "solve"]

ENGINES = ("auto", "cp-sat")
CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Solution:
    """What is known of a problem.

    `status` is optimal (cost = bound), feasible (bound <= cost), infeasible (`conflict` holds a smallest set of choices
    found that cannot be met together) or unknown (the time was over before anything was found). `assignment[c]` is the
    alternative of choice `c`. `engine` says what proved it: elimination, elimination+cp-sat, cp-sat. `choices` counts
    those with more than one alternative, `kernel_choices` the variables that CP-SAT got. `seconds` is by stage.
    """

    status: str
    assignment: tuple[int, ...] | None
    cost: int | None
    bound: int | None
    engine: str
    choices: int
    kernel_choices: int
    seconds: dict[str, float]
    conflict: tuple[int, ...] = ()

    @property
    def gap(self) -> float | None:
        """(cost - bound) / cost: 0.0 where optimal, None where there is no cost or no bound."""
        if self.cost is None or self.bound is None:
            return None
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0


def solve(
    problem: Problem,
    *,
    engine: str = "auto",
    time_limit: float | None = None,
    deterministic_limit: float | None = None,
    hint: Sequence[int] | None = None,
    max_conversions: int | None = None,
) -> Solution:
    """Find the cheapest assignment.

    `engine="cp-sat"` gives the whole problem to CP-SAT: the cross-check. `time_limit` is in seconds of wall-clock time;
    `deterministic_limit`, in CP-SAT's own unit, stops at the same point on every machine. `hint` is an assignment that
    is good already. At most `max_conversions` conversions with a price above 0 are made.
    All costs together must stay below 2**60, else InternalError.
    """
    if engine not in ENGINES:
        raise UsageError("no such engine", expected=" or ".join(ENGINES), found=engine)
    clock = _Clock(time_limit, deterministic_limit)
    if engine == "cp-sat":
        return _solve_whole(problem, clock, hint, max_conversions)
    solution = _solve_reduced(problem, clock, hint)
    if max_conversions is None or solution.assignment is None:
        return solution
    if _paid_conversions(problem, solution.assignment) <= max_conversions:
        return solution
    return _solve_whole(problem, clock, hint, max_conversions)


class _Clock:
    """Seconds by stage, and what is left of the limits."""

    def __init__(self, time_limit: float | None, deterministic_limit: float | None) -> None:
        self.started = self.last = perf_counter()
        self.time_limit = time_limit
        self.deterministic_limit = deterministic_limit
        self.seconds: dict[str, float] = {}

    def stage(self, name: str) -> None:
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def left(self) -> float | None:
        return None if self.time_limit is None else self.time_limit - (perf_counter() - self.started)


def _solve_reduced(problem: Problem, clock: _Clock, hint: Sequence[int] | None) -> Solution:
    network = network_of(problem)
    clock.stage("build")
    free = sum(1 for alternatives in network.alternatives if len(alternatives) > 1)
    alive = set(range(len(network.unary)))
    gone, constant = eliminate(network, alive, CELLS)
    clock.stage("eliminate")
    if constant >= FORBIDDEN:
        return _infeasible(problem, clock, "elimination", free, 0)
    states = [0] * len(network.unary)
    status, bound, kernel = "optimal", constant, len(alive)
    if alive:
        status, found, kernel_bound = _solve_kernel(network, alive, clock)
        if status == "infeasible":
            return _infeasible(problem, clock, "elimination+cp-sat", free, kernel)
        bound += kernel_bound
        if found is None:
            return Solution("unknown", None, None, bound, "elimination+cp-sat", free, kernel, clock.seconds)
        for x, state in found.items():
            states[x] = state
    walk_back(gone, states)
    assignment = tuple([alternatives[s] for alternatives, s in zip(network.alternatives, states, strict=False)])
    cost = cost_of(problem, assignment)
    clock.stage("walk back")
    if cost is None or cost < bound or (status == "optimal" and cost != bound):
        raise InternalError("the cost of the solution is not what was solved", expected=str(bound), found=str(cost))
    engine = "elimination+cp-sat" if kernel else "elimination"
    solution = Solution(status, assignment, cost, bound, engine, free, kernel, clock.seconds)
    return _better_hint(problem, solution, hint)


def _solve_kernel(network: Network, alive: set[int], clock: _Clock) -> tuple[str, dict[int, int] | None, int]:
    incumbent = guess(deepcopy(network), alive, CELLS)
    clock.stage("guess")
    # Imported only now: its import is the larger part of a small run.
    from .cpsat import solve_kernel

    outcome = solve_kernel(
        network, alive, hint=incumbent, time_limit=clock.left(), deterministic_limit=clock.deterministic_limit
    )
    clock.stage("cp-sat")
    status, states = outcome.status, outcome.states
    if status == "unknown" and incumbent is not None:
        # A stop inside presolve answers nothing at all, even with a complete hint.
        status, states = "feasible", incumbent
    return status, states, max(outcome.bound or 0, 0)


def _better_hint(problem: Problem, solution: Solution, hint: Sequence[int] | None) -> Solution:
    if hint is None or solution.status != "feasible" or solution.cost is None:
        return solution
    cost = cost_of(problem, hint)
    if cost is None or cost >= solution.cost:
        return solution
    return Solution(
        "optimal" if cost == solution.bound else "feasible",
        tuple(hint),
        cost,
        solution.bound,
        solution.engine,
        solution.choices,
        solution.kernel_choices,
        solution.seconds,
    )


def _solve_whole(problem: Problem, clock: _Clock, hint: Sequence[int] | None, max_conversions: int | None) -> Solution:
    network_of(Problem(problem.choices, ()))
    from .cpsat import solve_whole

    free = sum(1 for choice in problem.choices if len(choice.costs) > 1)
    outcome = solve_whole(
        problem,
        hint=hint,
        time_limit=clock.left(),
        deterministic_limit=clock.deterministic_limit,
        max_conversions=max_conversions,
    )
    clock.stage("cp-sat")
    if outcome.status == "infeasible":
        if max_conversions is not None:
            return Solution("infeasible", None, None, None, "cp-sat", free, free, clock.seconds)
        return _infeasible(problem, clock, "cp-sat", free, free)
    if outcome.states is None:
        return Solution("unknown", None, None, outcome.bound, "cp-sat", free, free, clock.seconds)
    assignment = tuple([outcome.states[c] for c in range(len(problem.choices))])
    cost = cost_of(problem, assignment)
    bound = cost if outcome.status == "optimal" else outcome.bound
    if cost is None or bound is None or cost < bound:
        raise InternalError("the cost of the solution is not what was solved", expected=str(bound), found=str(cost))
    return Solution(outcome.status, assignment, cost, bound, "cp-sat", free, free, clock.seconds)


def _infeasible(problem: Problem, clock: _Clock, engine: str, free: int, kernel: int) -> Solution:
    conflict = smallest_conflict(problem, _is_infeasible, range(len(problem.choices)))
    clock.stage("explain")
    return Solution("infeasible", None, None, None, engine, free, kernel, clock.seconds, conflict)


def _is_infeasible(problem: Problem) -> bool:
    network = network_of(problem)
    alive = set(range(len(network.unary)))
    _, constant = eliminate(network, alive, CELLS)
    if constant >= FORBIDDEN or not alive:
        return constant >= FORBIDDEN
    from .cpsat import solve_kernel

    return solve_kernel(network, alive).status == "infeasible"


def _paid_conversions(problem: Problem, assignment: Sequence[int]) -> int:
    return sum(1 for value, s, t in conversions_of(problem, assignment) if problem.values[value].conversion[s][t])
