"""What is told of a problem without a solution: a smallest conflict, and the fewest requirements to lift."""

from __future__ import annotations

from collections.abc import Collection

from relayout.solve.conflict import (
    Lifted,
    Requirement,
    questions_of,
    relaxed,
    requirements_of,
    smallest_conflict,
    softened,
)
from relayout.solve.deadline import Clock
from relayout.solve.encode import most_of
from relayout.solve.engines import by_reduction
from relayout.solve.network import LARGEST
from relayout.solve.problem import Problem

__all__ = ["explained"]

# A set of requirements that can be met is widened one by one: not beyond so many.
MOST_WIDENED = 64


def explained(
    problem: Problem, clock: Clock, near: int, *, most: int | None = None
) -> tuple[tuple[Requirement, ...], tuple[Lifted, ...]]:
    """A conflict of a problem without a solution (of at most `most` conversions), and what to lift.

    Out of time, the conflict is one still, only not a small one.
    """
    questions = questions_of(problem, counted=most is not None)
    every = requirements_of(questions)

    def unmet(question: Problem) -> bool:
        if clock.over():
            return False
        answer = by_reduction(question, clock)
        if most is None or answer.status == "infeasible":
            return answer.status == "infeasible"
        return answer.bound is not None and answer.bound > most

    def widened(met: Collection[Requirement]) -> frozenset[Requirement] | None:
        if len(every) > MOST_WIDENED:
            return None
        kept = list(met)
        for one in every:
            if one not in met and not unmet(relaxed(questions, [*kept, one])):
                kept.append(one)
        return None if clock.over() else frozenset(every) - frozenset(kept)

    def corrected(met: Collection[Requirement]) -> frozenset[Requirement] | None:
        return frozenset([lifted.requirement for lifted in _fewest_lifted(questions, clock, met)])

    conflict = smallest_conflict(questions, unmet, corrected if most is None else widened, near)
    relaxation = _fewest_lifted(problem, clock, ()) if most is None else ()
    clock.stage("explain")
    return conflict, relaxation


def _fewest_lifted(problem: Problem, clock: Clock, met: Collection[Requirement]) -> tuple[Lifted, ...]:
    """The fewest requirements beside those in `met` without which there is a solution; none: not known.

    Of as many, those are taken that pin an operand to one format, before those that tie it to others; then those
    that make for the cheapest solution.
    """
    requirements = sum([1 + len(item.consumers) for item in problem.items])
    apart = most_of(problem) + 1
    if apart * (requirements + 1) ** 2 >= LARGEST:
        return _fewest_lifted(questions_of(problem, counted=False), clock, met)

    def price(requirement: Requirement) -> int:
        item = problem.items[requirement.item]
        formats = (item.producer, *item.consumers)[requirement.use].formats
        return apart * (requirements + 1 if len(set(formats)) == 1 else requirements + 2)

    soft, adapters = softened(problem, met, price)
    answer = by_reduction(soft, clock)
    if answer.status != "optimal" or answer.assignment is None:
        return ()
    lifted: list[Lifted] = []
    for requirement, adapter in adapters:
        item = problem.items[requirement.item]
        use = (item.producer, *item.consumers)[requirement.use]
        if use.formats[answer.assignment[use.choice]] != answer.assignment[adapter]:
            lifted.append(Lifted(requirement, answer.assignment[adapter]))
    return tuple(lifted)
