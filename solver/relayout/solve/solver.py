"""The one door: reduce exactly, give the linear relaxation and CP-SAT what is left, walk back, and check the cost.

`solve` is deterministic: the same problem and options give the same solution, unless a wall-clock limit stops it. Of
equally cheap assignments it prefers low alternatives, so whoever builds a problem puts what the source has first.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relayout.errors import InternalError, UsageError
from relayout.solve.conflict import Lifted, Requirement, questions_of
from relayout.solve.deadline import Clock
from relayout.solve.engines import Answer, by_cpsat, by_reduction, free_choices
from relayout.solve.infeasibility import explained
from relayout.solve.problem import Problem, conversions_of, cost_of

__all__ = ["ENGINES", "Lifted", "Requirement", "Solution", "solve"]

ENGINES = ("auto", "cp-sat")


@dataclass(frozen=True, slots=True)
class Solution:
    """What is known of a problem.

    `status` is optimal (cost = bound), feasible (bound <= cost), infeasible or unknown (the time was over before
    anything was found). `assignment[c]` is the alternative of choice `c`. `engine` says what proved it: elimination,
    elimination+cp-sat, cp-sat. `choices` counts those with more than one alternative, `kernel_choices` those that
    elimination left. `seconds` is by stage.

    Where it is infeasible, `conflict` holds a smallest set found of requirements that cannot be met together, and
    `relaxation` the fewest that have to be lifted, and what for; empty where that is not known. `over_limit`: only the
    limit on conversions is in the way, and `fewest_conversions` is the least that can be kept, if that is known.
    """

    status: str
    assignment: tuple[int, ...] | None
    cost: int | None
    bound: int | None
    engine: str
    choices: int
    kernel_choices: int
    seconds: dict[str, float]
    conflict: tuple[Requirement, ...] = ()
    relaxation: tuple[Lifted, ...] = ()
    over_limit: bool = False
    fewest_conversions: int | None = None

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

    `engine="cp-sat"` gives the whole problem to CP-SAT: the cross-check. `time_limit` is in seconds of wall-clock time,
    for everything that is done here; `deterministic_limit`, in CP-SAT's own unit, stops at the same point on every
    machine. `hint` is an assignment that is good already: the answer is never worse. At most `max_conversions`
    conversions with a price above 0 are made. All costs together must stay below 2**60, else InternalError; another
    engine is a UsageError.
    """
    if engine not in ENGINES:
        raise UsageError("no such engine", expected=" or ".join(ENGINES), found=engine)
    clock = Clock(time_limit, deterministic_limit)
    with _collector_paused():
        if engine == "cp-sat" and max_conversions is None:
            answer = by_cpsat(problem, clock, hint, None)
        else:
            answer = by_reduction(problem, clock)
        solution = _checked(problem, answer, clock, hint)
        if solution.status == "infeasible":
            conflict, relaxation = explained(problem, clock, answer.near)
            return replace(solution, conflict=conflict, relaxation=relaxation)
        if max_conversions is None:
            return solution
        if solution.assignment is not None and _paid_conversions(problem, solution.assignment) <= max_conversions:
            return solution
        return _limited(problem, clock, max_conversions, answer.bound)


def _limited(problem: Problem, clock: Clock, max_conversions: int, bound: int | None) -> Solution:
    """The cheapest assignment of at most so many conversions: CP-SAT, from one with as few as there can be.

    `bound` holds without the limit, and so with it.
    """
    fewest = by_reduction(questions_of(problem, counted=True), clock)
    if fewest.bound is not None and fewest.bound > max_conversions:
        nothing = Answer("infeasible", None, None, fewest.engine, fewest.kernel)
        needed = fewest.bound if fewest.status == "optimal" else None
        near = _near_a_conversion(problem, fewest.assignment)
        conflict, _ = explained(problem, clock, near, most=max_conversions)
        solution = _checked(problem, nothing, clock, None)
        return replace(solution, conflict=conflict, over_limit=True, fewest_conversions=needed)
    hint = fewest.assignment
    if hint is not None and _paid_conversions(problem, hint) > max_conversions:
        hint = None
    answer = by_cpsat(problem, clock, hint, max_conversions)
    if answer.status not in ("optimal", "infeasible"):
        answer = replace(answer, bound=max(answer.bound or 0, bound or 0))
    return _checked(problem, answer, clock, hint)


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


def _checked(problem: Problem, answer: Answer, clock: Clock, hint: Sequence[int] | None) -> Solution:
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
    return Solution(status, assignment, cost, bound, answer.engine, free_choices(problem), answer.kernel, clock.seconds)


def _paid_conversions(problem: Problem, assignment: Sequence[int]) -> int:
    return sum(1 for item, s, t in conversions_of(problem, assignment) if problem.items[item].conversion[s][t])


def _near_a_conversion(problem: Problem, assignment: Sequence[int] | None) -> int:
    """The producer of an item that an assignment converts."""
    made = () if assignment is None else conversions_of(problem, assignment)
    return next((problem.items[i].producer.choice for i, s, t in made if problem.items[i].conversion[s][t]), 0)
