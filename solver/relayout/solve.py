"""The one door: reduce exactly, give the linear relaxation and CP-SAT what is left, walk back, and check the cost.

`solve` is deterministic: the same problem and options give the same solution, unless a wall-clock limit stops it. Of
equally cheap assignments it prefers low alternatives, so whoever builds a problem puts what the source has first.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from .conflict import smallest_conflict
from .encoding import check_range, network_of
from .errors import InternalError, UsageError
from .network import FORBIDDEN, Conversion, Network
from .problem import Choice, Problem, conversions_of, cost_of
from .reduction import eliminate, failure, walk_back

__all__ = ["ENGINES", "Solution", "solve"]

ENGINES = ("auto", "cp-sat")
CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Solution:
    """What is known of a problem.

    `status` is optimal (cost = bound), feasible (bound <= cost), infeasible (`conflict` holds a smallest set of choices
    found that cannot be met together) or unknown (the time was over before anything was found). `assignment[c]` is the
    alternative of choice `c`. `engine` says what proved it: elimination, elimination+cp-sat, cp-sat. `choices` counts
    those with more than one alternative, `kernel_choices` those that elimination left. `seconds` is by stage.
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
    is good already: the answer is never worse. At most `max_conversions` conversions with a price above 0 are made; a
    problem that is infeasible for that reason alone has no conflict. All costs together must stay below 2**60, else
    InternalError; another engine is a UsageError.
    """
    if engine not in ENGINES:
        raise UsageError("no such engine", expected=" or ".join(ENGINES), found=engine)
    clock = _Clock(time_limit, deterministic_limit)
    with _collector_paused():
        if engine == "cp-sat" and max_conversions is None:
            answer = _by_cpsat(problem, clock, hint, None)
        else:
            answer = _by_reduction(problem, clock)
        solution = _checked(problem, answer, clock, hint)
        if solution.status == "infeasible":
            return _explained(problem, solution, answer.near, clock)
        if max_conversions is None:
            return solution
        if solution.assignment is not None and _paid_conversions(problem, solution.assignment) <= max_conversions:
            return solution
        return _limited(problem, clock, max_conversions)


def _limited(problem: Problem, clock: _Clock, max_conversions: int) -> Solution:
    """The cheapest assignment of at most so many conversions: CP-SAT, from one with as few as there can be."""
    fewest = _by_reduction(_counting(problem), clock)
    if fewest.bound is not None and fewest.bound > max_conversions:
        answer = _Answer("infeasible", None, None, fewest.engine, fewest.kernel)
        return _checked(problem, answer, clock, None)
    hint = fewest.assignment
    if hint is not None and _paid_conversions(problem, hint) > max_conversions:
        hint = None
    return _checked(problem, _by_cpsat(problem, clock, hint, max_conversions), clock, hint)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an engine says: an assignment or None, a bound or None, and of the infeasible a choice near the conflict."""

    status: str
    assignment: tuple[int, ...] | None
    bound: int | None
    engine: str
    kernel: int = 0
    near: int = 0


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

    def over(self) -> bool:
        left = self.left()
        return left is not None and left <= 0


@contextmanager
def _collector_paused() -> Iterator[None]:
    # A network is a million small objects that all stay: walking them again and again cost a quarter of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _by_reduction(problem: Problem, clock: _Clock) -> _Answer:
    network = network_of(problem)
    clock.stage("build")
    alive = set(range(len(network.unary)))
    gone, constant = eliminate(network, alive, CELLS)
    clock.stage("eliminate")
    if constant >= FORBIDDEN:
        near = next((x for x in failure(network, gone) if x < len(problem.choices)), 0)
        return _Answer("infeasible", None, None, "elimination", near=near)
    if not alive:
        states = [0] * len(network.unary)
        walk_back(gone, states)
        clock.stage("walk back")
        return _Answer("optimal", _assignment(network, states), constant, "elimination")
    # Imported only now: the import of ortools is the larger part of a small run.
    from .kernel import Limits, minimise

    kernel = sum(1 for x in alive if x < len(problem.choices))
    outcome = minimise(problem, Limits(clock.left, clock.deterministic_limit))
    clock.stage("kernel")
    assignment = None if outcome.states is None else _assignment(network, outcome.states)
    return _Answer(outcome.status, assignment, outcome.bound, "elimination+cp-sat", kernel)


def _assignment(network: Network, states: list[int] | dict[int, int]) -> tuple[int, ...]:
    return tuple([alternatives[states[c]] for c, alternatives in enumerate(network.alternatives)])


def _by_cpsat(problem: Problem, clock: _Clock, hint: Sequence[int] | None, max_conversions: int | None) -> _Answer:
    check_range(problem)
    from .cpsat import solve_whole

    outcome = solve_whole(
        problem,
        hint=hint,
        time_limit=clock.left(),
        deterministic_limit=clock.deterministic_limit,
        max_conversions=max_conversions,
    )
    clock.stage("cp-sat")
    assignment = None if outcome.states is None else tuple([outcome.states[c] for c in range(len(problem.choices))])
    return _Answer(outcome.status, assignment, outcome.bound, "cp-sat", _free(problem))


def _checked(problem: Problem, answer: _Answer, clock: _Clock, hint: Sequence[int] | None) -> Solution:
    """The answer as a solution, its cost computed from the problem itself, or the hint where that is better."""
    assignment, bound, status = answer.assignment, answer.bound, answer.status
    cost = None if assignment is None else cost_of(problem, assignment)
    if assignment is not None and (cost is None or (bound is not None and cost < bound)):
        raise InternalError("the solution does not cost what was solved", expected=f">= {bound}", found=str(cost))
    if status == "optimal" and cost != bound:
        raise InternalError("the optimum does not cost what was solved", expected=str(bound), found=str(cost))
    hinted = None if hint is None or status in ("optimal", "infeasible") else cost_of(problem, hint)
    if hint is not None and hinted is not None and (cost is None or hinted < cost):
        assignment, cost, status = tuple(hint), hinted, "feasible"
    if cost is not None and cost == bound:
        status = "optimal"
    clock.stage("check")
    return Solution(status, assignment, cost, bound, answer.engine, _free(problem), answer.kernel, clock.seconds)


def _free(problem: Problem) -> int:
    return sum(1 for choice in problem.choices if len(choice.costs) > 1)


def _explained(problem: Problem, solution: Solution, near: int, clock: _Clock) -> Solution:
    """The solution with its conflict."""

    def infeasible(question: Problem) -> bool:
        # Out of time, every choice counts as needed: what is found is a conflict still, only not a small one.
        return not clock.over() and _by_reduction(question, _Clock(None, None)).status == "infeasible"

    conflict = smallest_conflict(problem, infeasible, near)
    clock.stage("explain")
    return replace(solution, conflict=conflict)


def _paid_conversions(problem: Problem, assignment: Sequence[int]) -> int:
    return sum(1 for value, s, t in conversions_of(problem, assignment) if problem.values[value].conversion[s][t])


def _counting(problem: Problem) -> Problem:
    """The same problem with the number of conversions that cost anything as its cost."""
    choices = tuple([Choice(choice.name, (0,) * len(choice.costs)) for choice in problem.choices])
    counts: dict[Conversion, Conversion] = {}
    for value in problem.values:
        if value.conversion not in counts:
            counts[value.conversion] = tuple(
                [tuple([None if price is None else min(price, 1) for price in row]) for row in value.conversion]
            )
    values = tuple([replace(value, conversion=counts[value.conversion]) for value in problem.values])
    return Problem(choices, values)
