"""The entry point: eliminate exactly, search on the kernel, substitute back, and recompute the cost.

`solve` is deterministic: the same problem and options give the same solution, unless a wall-clock limit stops it. Ties
go to the lowest alternative, so the builder of a problem puts the source's alternatives first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from msgspec import Struct
from msgspec.structs import replace

from relayout.errors import InternalError, UsageError
from relayout.solve.conflict import DroppedRequirement, Requirement, feasibility_problem
from relayout.solve.deadline import Deadline, Improved
from relayout.solve.engines import Answer, by_cpsat, by_reduction, free_choices
from relayout.solve.infeasibility import explain_infeasibility
from relayout.solve.problem import Problem, conversions_of, cost_of

ENGINES = ("auto", "cp-sat")


class Solution(Struct, frozen=True):
    """The result of a solve.

    `status` is optimal (cost = bound), feasible (bound <= cost), infeasible, or unknown (no solution before the
    deadline). `assignment[c]` is the alternative of choice `c`. `engine` is elimination, elimination+cp-sat or cp-sat.
    `choices` counts the choices with more than one alternative, `kernel_choices` those that elimination left. `seconds`
    is by stage.

    If infeasible, `conflict` is a minimal unsatisfiable subset of the requirements, the smallest found, and
    `relaxation` the fewest requirements to drop with the format that each operand then has; empty if not known.
    `over_limit`: only the limit on conversions is violated, and `fewest_conversions` is the least possible number, if
    known. `is_direct`: the limit was met with every copy made from the format produced."""

    status: str
    assignment: tuple[int, ...] | None
    cost: int | None
    bound: int | None
    engine: str
    choices: int
    kernel_choices: int
    seconds: dict[str, float]
    conflict: tuple[Requirement, ...] = ()
    relaxation: tuple[DroppedRequirement, ...] = ()
    over_limit: bool = False
    is_direct: bool = False
    fewest_conversions: int | None = None


def solve(
    problem: Problem,
    *,
    engine: str = "auto",
    time_limit: float | None = None,
    hint: Sequence[int] | None = None,
    max_conversions: int | None = None,
    improved: Improved | None = None,
) -> Solution:
    """Find the cheapest assignment.

    `engine="cp-sat"` solves the whole problem with CP-SAT, as a cross-check. `time_limit` is in seconds of wall-clock
    time for the whole call. `max_conversions` limits the conversions of cost above 0. `hint` is a known assignment: if
    it meets the limit, the solution is never worse, and of equal ones it is the hint. `improved` is called with the
    cost of each better solution, and the bound, while the solver runs. Raises InputError if all costs together reach
    2**60, and UsageError for an unknown engine.
    """
    if engine not in ENGINES:
        raise UsageError("unknown engine", expected=" or ".join(ENGINES), found=engine)
    deadline = Deadline(time_limit, improved)
    # A solution of the problem without its limit is none yet.
    with deadline.silent() if max_conversions is not None else nullcontext():
        answer = by_cpsat(problem, deadline, hint, None) if engine == "cp-sat" else by_reduction(problem, deadline)
    is_over = hint is not None and max_conversions is not None and _paid_conversions(problem, hint) > max_conversions
    solution = _checked(problem, answer, deadline, None if is_over else hint)
    if solution.status == "infeasible":
        conflict, relaxation = explain_infeasibility(problem, deadline, answer.seed)
        return replace(solution, conflict=conflict, relaxation=relaxation)
    if max_conversions is None:
        return solution
    if solution.assignment is not None and _paid_conversions(problem, solution.assignment) <= max_conversions:
        return solution
    limited = _limited(problem.with_direct_copies(), deadline, max_conversions, answer.bound, hint)
    return replace(limited, is_direct=problem.reuses_copies)


def _limited(
    problem: Problem, deadline: Deadline, max_conversions: int, bound: int | None, hint: Sequence[int] | None
) -> Solution:
    """The cheapest assignment with at most `max_conversions` conversions: CP-SAT, started from one with the fewest, or
    from the hint.

    `bound` is a lower bound without the limit, and therefore also with it.
    """
    with deadline.silent():
        fewest = by_reduction(feasibility_problem(problem, counted=True), deadline)
    if fewest.bound is not None and fewest.bound > max_conversions:
        nothing = Answer("infeasible", None, None, fewest.engine, fewest.kernel)
        needed = fewest.bound if fewest.status == "optimal" else None
        seed = _converted_choice(problem, fewest.assignment)
        conflict, _ = explain_infeasibility(problem, deadline, seed, most=max_conversions)
        solution = _checked(problem, nothing, deadline, None)
        return replace(solution, conflict=conflict, over_limit=True, fewest_conversions=needed)
    known = [
        (cost, tuple(each))
        for each in (hint, fewest.assignment)
        if each is not None and (cost := cost_of(problem, each)) is not None
        if _paid_conversions(problem, each) <= max_conversions
    ]
    _, start = min(known, default=(None, None))
    answer = by_cpsat(problem, deadline, start, max_conversions)
    if answer.status not in ("optimal", "infeasible"):
        answer = replace(answer, bound=max(answer.bound or 0, bound or 0))
    return _checked(problem, answer, deadline, start)


def _checked(problem: Problem, answer: Answer, deadline: Deadline, hint: Sequence[int] | None) -> Solution:
    """The answer as a solution, with the cost recomputed from the problem; or the hint, unless it costs more."""
    assignment, bound, status = answer.assignment, answer.bound, answer.status
    cost = None if assignment is None else cost_of(problem, assignment)
    if assignment is not None and cost is None:
        raise InternalError("the solution has a conversion that does not exist", found=str(assignment))
    if status == "optimal" and cost != bound:
        raise InternalError("the recomputed cost is not the proven optimum", expected=str(bound), found=str(cost))
    hinted = None if hint is None or status == "infeasible" else cost_of(problem, hint)
    if hint is not None and hinted is not None and (cost is None or hinted <= cost):
        assignment, cost, status = tuple(hint), hinted, "feasible"
    if cost is not None and bound is not None and cost < bound:
        raise InternalError("the recomputed cost is below the bound", expected=f">= {bound}", found=str(cost))
    if cost is not None and cost == bound:
        status = "optimal"
    deadline.stage("check")
    return Solution(
        status, assignment, cost, bound, answer.engine, free_choices(problem), answer.kernel, deadline.seconds
    )


def _paid_conversions(problem: Problem, assignment: Sequence[int]) -> int:
    return sum(1 for item, s, t in conversions_of(problem, assignment) if problem.items[item].conversion[s][t])


def _converted_choice(problem: Problem, assignment: Sequence[int] | None) -> int:
    """The producer of an item that the assignment converts; 0 if it converts none."""
    found = () if assignment is None else conversions_of(problem, assignment)
    return next((problem.items[v].producer.choice for v, s, t in found if problem.items[v].conversion[s][t]), 0)
