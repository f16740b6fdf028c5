"""Why a problem has no solution: a set of choices that cannot be met together, though all but any one of them can.

Found by QuickXplain (Junker 2004), a deletion filter that halves. A choice outside the set is relaxed: it wants
nothing, and what it produces comes in whichever format suits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .problem import Choice, Problem, Use, Value

__all__ = ["relaxed", "smallest_conflict"]


def relaxed(problem: Problem, kept: set[int]) -> Problem:
    """The question whether the choices in `kept` can be met, whatever all the others do: a problem without costs."""
    choices = [Choice(choice.name, (0,) * len(choice.costs)) for choice in problem.choices]
    values: list[Value] = []
    for value in problem.values:
        consumers = tuple([use for use in value.consumers if use.choice in kept])
        if not consumers:
            continue
        producer = value.producer
        if producer.choice not in kept:
            formats = len(value.conversion)
            choices.append(Choice(value.name, (0,) * formats))
            producer = Use(len(choices) - 1, tuple(range(formats)))
        conversion = tuple([tuple([None if price is None else 0 for price in row]) for row in value.conversion])
        values.append(Value(value.name, producer, consumers, conversion))
    return Problem(tuple(choices), tuple(values))


def smallest_conflict(
    problem: Problem, infeasible: Callable[[Problem], bool], suspects: Sequence[int]
) -> tuple[int, ...]:
    """A conflict among `suspects`, which are known to hold one; no choice of it can be left out."""

    def fails(kept: list[int]) -> bool:
        return infeasible(relaxed(problem, set(kept)))

    def explain(background: list[int], added: bool, candidates: list[int]) -> list[int]:
        if added and fails(background):
            return []
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        of_second = explain(background + first, True, second)
        of_first = explain(background + of_second, bool(of_second), first)
        return of_first + of_second

    return tuple(sorted(explain([], False, sorted(suspects))))
