"""Explanation of an infeasible problem: a minimal unsatisfiable subset, and the fewest requirements to drop."""

from __future__ import annotations

from collections.abc import Collection

from relayout.solve.conflict import (
    Lifted,
    Requirement,
    feasibility_problem,
    relaxed,
    requirements_of,
    smallest_conflict,
    soft_problem,
)
from relayout.solve.deadline import Deadline
from relayout.solve.encode import most_of
from relayout.solve.engines import by_reduction
from relayout.solve.network import LARGEST
from relayout.solve.problem import Problem

__all__ = ["explain_infeasibility"]

# A satisfiable set is extended one requirement at a time, for at most this many.
MOST_WIDENED = 64


def explain_infeasibility(
    problem: Problem, deadline: Deadline, near: int, *, most: int | None = None
) -> tuple[tuple[Requirement, ...], tuple[Lifted, ...]]:
    """A conflict of a problem without a solution (with at most `most` conversions), and the requirements to drop.

    After the deadline the conflict is still a conflict, but may not be minimal.
    """
    questions = feasibility_problem(problem, counted=most is not None)
    every = requirements_of(questions)

    def is_infeasible(question: Problem) -> bool:
        if deadline.is_over():
            return False
        answer = by_reduction(question, deadline)
        if most is None or answer.status == "infeasible":
            return answer.status == "infeasible"
        return answer.bound is not None and answer.bound > most

    def complement_of(met: Collection[Requirement]) -> frozenset[Requirement] | None:
        if len(every) > MOST_WIDENED:
            return None
        kept = list(met)
        for one in every:
            if one not in met and not is_infeasible(relaxed(questions, [*kept, one])):
                kept.append(one)
        return None if deadline.is_over() else frozenset(every) - frozenset(kept)

    def correction_of(met: Collection[Requirement]) -> frozenset[Requirement] | None:
        return frozenset([lifted.requirement for lifted in _fewest_relaxed(questions, deadline, met)])

    conflict = smallest_conflict(questions, is_infeasible, correction_of if most is None else complement_of, near)
    relaxation = _fewest_relaxed(problem, deadline, ()) if most is None else ()
    deadline.stage("explain")
    return conflict, relaxation


def _fewest_relaxed(problem: Problem, deadline: Deadline, met: Collection[Requirement]) -> tuple[Lifted, ...]:
    """The fewest requirements outside `met` whose removal leaves a solution; empty: not known.

    Of equally many, those that pin an operand to one format come before those that couple it to others, then those
    with the cheapest solution.
    """
    requirements = sum([1 + len(item.consumers) for item in problem.items])
    apart = most_of(problem) + 1
    if apart * (requirements + 1) ** 2 >= LARGEST:
        return _fewest_relaxed(feasibility_problem(problem, counted=False), deadline, met)

    def price(requirement: Requirement) -> int:
        item = problem.items[requirement.item]
        formats = (item.producer, *item.consumers)[requirement.use].formats
        return apart * (requirements + 1 if len(set(formats)) == 1 else requirements + 2)

    soft, adapters = soft_problem(problem, met, price)
    answer = by_reduction(soft, deadline)
    if answer.status != "optimal" or answer.assignment is None:
        return ()
    lifted: list[Lifted] = []
    for requirement, adapter in adapters:
        item = problem.items[requirement.item]
        use = (item.producer, *item.consumers)[requirement.use]
        if use.formats[answer.assignment[use.choice]] != answer.assignment[adapter]:
            lifted.append(Lifted(requirement, answer.assignment[adapter]))
    return tuple(lifted)
