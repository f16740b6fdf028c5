"""A solution in one pass, for when there is no time for a better one."""

from __future__ import annotations

from collections.abc import Sequence

from .problem import Problem, Use, Value

__all__ = ["greedy", "least_own_costs"]


def least_own_costs(problem: Problem) -> int:
    """A bound that needs no search: what the choices cost by themselves, each at its cheapest."""
    return sum([min(choice.costs) for choice in problem.choices])


def greedy(problem: Problem) -> tuple[int, ...] | None:
    """Each choice, in order, takes what is cheapest beside the choices before it; None where that meets a dead end."""
    produced: list[list[int]] = [[] for _ in problem.choices]
    read: list[list[tuple[int, Use]]] = [[] for _ in problem.choices]
    for index, value in enumerate(problem.values):
        produced[value.producer.choice].append(index)
        for use in value.consumers:
            read[use.choice].append((index, use))
    sources: list[int | None] = [None] * len(problem.values)
    wanted: list[set[int]] = [set() for _ in problem.values]
    assignment: list[int] = []
    for c, choice in enumerate(problem.choices):
        best: tuple[int, int] | None = None
        for a, own in enumerate(choice.costs):
            price = _price(problem.values, produced[c], read[c], sources, wanted, a)
            if price is not None and (best is None or own + price < best[0]):
                best = own + price, a
        if best is None:
            return None
        assignment.append(best[1])
        for index in produced[c]:
            sources[index] = problem.values[index].producer.formats[best[1]]
        for index, use in read[c]:
            wanted[index].add(use.formats[best[1]])
    return tuple(assignment)


def _price(
    values: Sequence[Value],
    produced: Sequence[int],
    read: Sequence[tuple[int, Use]],
    sources: Sequence[int | None],
    wanted: Sequence[set[int]],
    alternative: int,
) -> int | None:
    """What conversions one alternative adds to those that are there; None: one that does not exist."""
    total = 0
    fresh: set[tuple[int, int]] = set()
    here = {index: values[index].producer.formats[alternative] for index in produced}
    for index, use in read:
        target = use.formats[alternative]
        source = here.get(index, sources[index])
        if source is None or target == source or target in wanted[index] or (index, target) in fresh:
            continue
        fresh.add((index, target))
        price = values[index].conversion[source][target]
        if price is None:
            return None
        total += price
    for index, source in here.items():
        for target in wanted[index] - {source}:
            price = values[index].conversion[source][target]
            if price is None:
                return None
            total += price
    return total
