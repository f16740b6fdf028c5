"""The engines: exact elimination with what the kernel makes of the rest, and CP-SAT on the problem itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .clock import Clock, ExpiredError
from .encoding import check_range, network_of
from .greedy import greedy, least_own_costs
from .network import FORBIDDEN, Network
from .problem import Problem, cost_of
from .reduction import eliminate, failure, walk_back

__all__ = ["Answer", "by_cpsat", "by_reduction", "free_choices"]

CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine says: an assignment or None, a bound or None, and of the infeasible a choice near the conflict."""

    status: str
    assignment: tuple[int, ...] | None
    bound: int | None
    engine: str
    kernel: int = 0
    near: int = 0


def by_reduction(problem: Problem, clock: Clock) -> Answer:
    """Eliminate what can be, and minimise the kernel. Out of time, the answer is what was found until then."""
    try:
        return _reduced(problem, clock)
    except ExpiredError:
        clock.stage("eliminate")
        return _first_best(problem, "elimination")


def _reduced(problem: Problem, clock: Clock) -> Answer:
    network = network_of(problem, clock=clock)
    clock.stage("build")
    alive = set(range(len(network.unary)))
    gone, constant = eliminate(network, alive, CELLS, clock=clock)
    clock.stage("eliminate")
    if constant >= FORBIDDEN:
        near = next((x for x in failure(network, gone) if x < len(problem.choices)), 0)
        return Answer("infeasible", None, None, "elimination", near=near)
    if not alive:
        states = [0] * len(network.unary)
        walk_back(gone, states)
        clock.stage("walk back")
        return Answer("optimal", _assignment(network, states), constant, "elimination")
    # Imported only now: the import of ortools is the larger part of a small run.
    from .kernel import minimise

    engine, kernel = "elimination+cp-sat", sum(1 for x in alive if x < len(problem.choices))
    first = greedy(problem)
    outcome = minimise(problem, clock, None if first is None else cost_of(problem, first))
    clock.stage("kernel")
    assignment = first if outcome.states is None else _assignment(network, outcome.states)
    bound = outcome.bound
    if outcome.status in ("feasible", "unknown"):
        bound = max(bound or 0, least_own_costs(problem))
    return Answer(outcome.status, assignment, bound, engine, kernel)


def by_cpsat(problem: Problem, clock: Clock, hint: Sequence[int] | None, max_conversions: int | None) -> Answer:
    """Give the whole problem to CP-SAT."""
    check_range(problem)
    from .cpsat import solve_whole

    free = free_choices(problem)
    try:
        outcome = solve_whole(problem, hint=hint, clock=clock, max_conversions=max_conversions)
    except ExpiredError:
        clock.stage("cp-sat")
        return Answer("unknown", None, least_own_costs(problem), "cp-sat", free)
    clock.stage("cp-sat")
    assignment = None if outcome.states is None else tuple([outcome.states[c] for c in range(len(problem.choices))])
    return Answer(outcome.status, assignment, outcome.bound, "cp-sat", free)


def free_choices(problem: Problem) -> int:
    """How many choices there are to make."""
    return sum(1 for choice in problem.choices if len(choice.costs) > 1)


def _first_best(problem: Problem, engine: str) -> Answer:
    """What one pass finds."""
    assignment = greedy(problem)
    status = "unknown" if assignment is None else "feasible"
    return Answer(status, assignment, least_own_costs(problem), engine)


def _assignment(network: Network, states: list[int] | dict[int, int]) -> tuple[int, ...]:
    return tuple([alternatives[states[c]] for c, alternatives in enumerate(network.alternatives)])
