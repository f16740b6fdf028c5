"""Why a problem has no solution: a set of choices that cannot be met together, though all but any one of them can.

Found by QuickXplain (Junker 2004), a deletion filter that halves. A choice outside the set is relaxed: it wants
nothing, and what it produces comes in whichever format suits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .problem import Choice, Problem, Use, Value

__all__ = ["relaxed", "smallest_conflict"]


def relaxed(problem: Problem, kept: Sequence[int]) -> Problem:
    """The question whether the choices in `kept` can be met, whatever all the others do: a problem without costs.

    Its choice `k` is `kept[k]`; after those come the relaxed producers.
    """
    place = {c: k for k, c in enumerate(kept)}
    choices = [Choice(problem.choices[c].name, (0,) * len(problem.choices[c].costs)) for c in kept]
    values: list[Value] = []
    for value in problem.values:
        consumers = tuple([Use(place[use.choice], use.formats) for use in value.consumers if use.choice in place])
        if not consumers:
            continue
        producer = value.producer
        if producer.choice in place:
            producer = Use(place[producer.choice], producer.formats)
        else:
            formats = len(value.conversion)
            choices.append(Choice(value.name, (0,) * formats))
            producer = Use(len(choices) - 1, tuple(range(formats)))
        conversion = tuple([tuple([None if price is None else 0 for price in row]) for row in value.conversion])
        values.append(Value(value.name, producer, consumers, conversion))
    return Problem(tuple(choices), tuple(values))


def smallest_conflict(problem: Problem, infeasible: Callable[[Problem], bool], start: int) -> tuple[int, ...]:
    """A conflict of an infeasible problem, looked for near choice `start`; no choice of it can be left out."""
    suspects = _suspects(problem, infeasible, start)
    narrow = relaxed(problem, suspects)

    def explain(background: list[int], added: bool, candidates: list[int]) -> list[int]:
        if added and infeasible(relaxed(narrow, background)):
            return []
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        of_second = explain(background + first, True, second)
        of_first = explain(background + of_second, bool(of_second), first)
        return of_first + of_second

    return tuple(sorted([suspects[k] for k in explain([], False, list(range(len(suspects))))]))


def _suspects(problem: Problem, infeasible: Callable[[Problem], bool], start: int) -> list[int]:
    """Choices that hold a conflict: the nearest to `start` that do, or all."""
    order = _by_distance(problem, start)
    size = 8
    while size < len(order):
        nearest = sorted(order[:size])
        if infeasible(relaxed(problem, nearest)):
            return nearest
        size *= 4
    return list(range(len(problem.choices)))


def _by_distance(problem: Problem, start: int) -> list[int]:
    """The choices connected with `start`, nearest first."""
    values: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for value in problem.values:
        together = tuple(dict.fromkeys([value.producer.choice, *[use.choice for use in value.consumers]]))
        for choice in together:
            values[choice].append(together)
    order = [start]
    seen = {start}
    for choice in order:
        for together in values[choice]:
            fresh = [other for other in together if other not in seen]
            seen.update(fresh)
            order += fresh
    return order
