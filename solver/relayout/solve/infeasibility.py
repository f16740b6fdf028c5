"""Explanation of an infeasible problem: a minimal unsatisfiable subset, and the fewest requirements to drop."""

from __future__ import annotations

from collections.abc import Collection

from relayout.solve.conflict import (
    DroppedRequirement,
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
from relayout.solve.network import LARGEST, Tables
from relayout.solve.problem import Problem

# A satisfiable set is extended one requirement at a time, for at most this many.
MOST_WIDENED = 64

MOST_BYTES = 1 << 26
"""So many bytes of tables are kept from one question to the next."""


def explain_infeasibility(
    problem: Problem, deadline: Deadline, near: int, *, most: int | None = None
) -> tuple[tuple[Requirement, ...], tuple[DroppedRequirement, ...]]:
    """A conflict of an infeasible problem, and the fewest requirements to drop.

    With `most` the problem is infeasible only with at most so many conversions, and no requirements are dropped. The
    search starts near choice `near`. A conflict that is found after the deadline may not be minimal.
    """
    questions = feasibility_problem(problem, counted=most is not None)
    every = requirements_of(questions)
    # The questions of a search have most of their tables in common.
    tables = Tables(MOST_BYTES)

    def is_infeasible(question: Problem) -> bool:
        if deadline.is_over():
            return False
        answer = by_reduction(question, deadline, tables)
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
        return frozenset([dropped.requirement for dropped in _fewest_relaxed(questions, deadline, met)])

    with deadline.silent():
        conflict = smallest_conflict(questions, is_infeasible, correction_of if most is None else complement_of, near)
        relaxation = _fewest_relaxed(problem, deadline, ()) if most is None else ()
    deadline.stage("explain")
    return conflict, relaxation


def _fewest_relaxed(
    problem: Problem, deadline: Deadline, met: Collection[Requirement]
) -> tuple[DroppedRequirement, ...]:
    """The fewest requirements outside `met` whose removal leaves a solution; empty if not known.

    Of sets of equal size, those of requirements that pin an operand to one format are preferred to those that couple it
    to another, then those with the cheapest solution.
    """
    requirements = sum([1 + len(item.consumers) for item in problem.items])
    apart = most_of(problem) + 1
    if apart * (requirements + 1) ** 2 >= LARGEST:
        return _fewest_relaxed(feasibility_problem(problem, counted=False), deadline, met)

    def price(requirement: Requirement) -> int:
        item = problem.items[requirement.item]
        formats = item.uses[requirement.use].formats
        return apart * (requirements + 1 if len(set(formats)) == 1 else requirements + 2)

    soft, adapters = soft_problem(problem, met, price)
    answer = by_reduction(soft, deadline)
    if answer.status != "optimal" or answer.assignment is None:
        return ()
    dropped: list[DroppedRequirement] = []
    for requirement, adapter in adapters:
        item = problem.items[requirement.item]
        use = item.uses[requirement.use]
        if use.formats[answer.assignment[use.choice]] != answer.assignment[adapter]:
            dropped.append(DroppedRequirement(requirement, answer.assignment[adapter]))
    return tuple(dropped)
