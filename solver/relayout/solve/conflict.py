"""Minimal unsatisfiable subsets (MUS) of the requirements of an infeasible problem.

A **requirement** is one use of one item: the formats in which a choice reads an operand or produces a result. A dropped
requirement accepts any format.

QuickXplain (Junker 2004) finds a subset from which nothing can be removed. Its size is proved least by correction sets:
every conflict has a member in each of them, so a smallest hitting set of those known is a conflict or yields another
correction set ("Smallest MUS extraction with minimal hitting set dualization", Ignatiev et al. 2015). A problem has
thousands of requirements; those of one node are so few that `candidates.node_conflict` tries their subsets by size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from relayout.solve.network import Conversion
from relayout.solve.problem import Choice, Item, Problem, Use

# The proof that no conflict is smaller takes several solves; it is skipped for conflicts larger than this.
MOST_PROVED = 24
MOST_CORRECTIONS = 100

T = TypeVar("T", bound=Any)


class Requirement(NamedTuple):
    """Use number `use` of item number `item`: 0 is the producer's, `k` that of consumer `k - 1`."""

    item: int
    use: int


class DroppedRequirement(NamedTuple):
    """A dropped requirement, and the format that its operand then has."""

    requirement: Requirement
    format: int


IsInfeasible = Callable[[Problem], bool]
Correct = Callable[[Collection[Requirement]], "frozenset[Requirement] | None"]


def feasibility_problem(problem: Problem, *, counted: bool) -> Problem:
    """The feasibility version of a problem: every cost 0, or with `counted` 1 for a conversion that is not free.

    Items whose conversions are all free constrain nothing, so their consumers are dropped.
    """
    known: dict[Conversion, tuple[Conversion, bool]] = {}
    items: list[Item] = []
    for item in problem.items:
        if item.conversion not in known:
            asked = tuple([tuple([_asked(price, counted=counted) for price in row]) for row in item.conversion])
            known[item.conversion] = asked, any(price != 0 for row in asked for price in row)
        conversion, matters = known[item.conversion]
        consumers = item.consumers if matters else ()
        items.append(Item(item.name, item.producer, consumers, conversion, item.reuses_copies))
    return Problem(tuple([Choice(choice.name, (0,) * len(choice.costs)) for choice in problem.choices]), tuple(items))


def _asked(price: int | None, *, counted: bool) -> int | None:
    return None if price is None else int(counted and price > 0)


def requirements_of(problem: Problem, choices: Collection[int] | None = None) -> list[Requirement]:
    """The requirements of all items with consumers, or those of the given choices."""
    return [
        Requirement(v, k)
        for v, item in enumerate(problem.items)
        if item.consumers
        for k, use in enumerate(item.uses)
        if choices is None or use.choice in choices
    ]


def relaxed(problem: Problem, kept: Iterable[Requirement]) -> Problem:
    """The feasibility problem with the requirements in `kept` alone."""
    by_item: dict[int, list[int]] = {}
    for one in kept:
        by_item.setdefault(one.item, []).append(one.use)
    numbers: dict[int, int] = {}
    choices: list[Choice] = []
    items: list[Item] = []

    def renumbered(use: Use) -> Use:
        if use.choice not in numbers:
            numbers[use.choice] = len(choices)
            choices.append(problem.choices[use.choice])
        return Use(numbers[use.choice], use.formats)

    for index, uses in sorted(by_item.items()):
        item = problem.items[index]
        consumers = tuple([renumbered(item.consumers[use - 1]) for use in sorted(uses) if use])
        if not consumers:
            continue
        if 0 in uses:
            producer = renumbered(item.producer)
        else:
            formats = len(item.conversion)
            choices.append(Choice(item.name, (0,) * formats))
            producer = Use(len(choices) - 1, tuple(range(formats)))
        items.append(Item(item.name, producer, consumers, item.conversion, item.reuses_copies))
    return Problem(tuple(choices), tuple(items))


def soft_problem(
    problem: Problem, hard: Collection[Requirement], price: Callable[[Requirement], int]
) -> tuple[Problem, list[tuple[Requirement, int]]]:
    """The problem with soft constraints: every requirement outside `hard` may be dropped at a price.

    An adapter choice is inserted between the choice and the item. Its alternatives are the item's formats; a format
    other than the choice's costs the price. Returns the problem, and each requirement with its adapter choice.
    """
    choices = list(problem.choices)
    items: list[Item] = []
    adapters: list[tuple[Requirement, int]] = []

    def adapted(requirement: Requirement, use: Use, formats: int) -> Use:
        if requirement in hard:
            return use
        own, every = len(choices), tuple(range(formats))
        choices.append(Choice("", (0,) * formats))
        adapters.append((requirement, own))
        costs = price(requirement)
        conversion = tuple([tuple([costs if f != g else 0 for g in every]) for f in every])
        items.append(Item("", use, (Use(own, every),), conversion))
        return Use(own, every)

    for v, item in enumerate(problem.items):
        if not item.consumers or not any(None in row for row in item.conversion):
            items.append(item)
            continue
        formats = len(item.conversion)
        producer, *consumers = (adapted(Requirement(v, k), use, formats) for k, use in enumerate(item.uses))
        items.append(Item(item.name, producer, tuple(consumers), item.conversion, item.reuses_copies))
    return Problem(tuple(choices), tuple(items)), adapters


def smallest_conflict(
    problem: Problem, is_infeasible: IsInfeasible, correct: Correct, start: int
) -> tuple[Requirement, ...]:
    """A minimal conflict of an infeasible problem. The search begins at choice `start`.

    `is_infeasible` solves a feasibility problem. `correct(met)` is a set of requirements outside `met` whose removal
    leaves a solution, or None if unknown; with it the conflict is one of the fewest requirements, unless the proof
    takes too long."""
    suspects = _suspects(problem, is_infeasible, start)
    conflict = minimal(suspects, lambda some: is_infeasible(relaxed(problem, some)))
    if len(conflict) > MOST_PROVED:
        return tuple(conflict)
    every = requirements_of(problem)
    known = [
        frozenset((one,))
        for one in conflict
        if not is_infeasible(relaxed(problem, [other for other in every if other != one]))
    ]
    for _ in range(MOST_CORRECTIONS):
        fewest = _fewest_hitting(known, len(conflict) - 1)
        if fewest is None:
            break
        if is_infeasible(relaxed(problem, fewest)):
            return tuple(sorted(fewest))
        correction = correct(fewest)
        if not correction:
            break
        known.append(correction)
    return tuple(conflict)


def minimal(suspects: Sequence[T], is_conflict: Callable[[Sequence[T]], bool]) -> list[T]:
    """A conflict among the suspects from which none can be removed, sorted. Those at the end are removed first.

    `is_conflict` holds for all suspects, and for every set that contains one for which it holds.

    >>> minimal("abcd", lambda some: {"a", "c"} <= set(some) or {"b", "d"} <= set(some))
    ['a', 'c']
    """

    def explain(background: list[T], added: bool, candidates: Sequence[T]) -> list[T]:
        if added and is_conflict(background):
            return []
        if len(candidates) == 1:
            return list(candidates)
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        of_second = explain([*background, *first], True, second)
        of_first = explain([*background, *of_second], bool(of_second), first)
        return of_first + of_second

    return sorted(explain([], False, suspects))


def _fewest_hitting(sets: Sequence[frozenset[Requirement]], most: int) -> frozenset[Requirement] | None:
    """A smallest hitting set of at most `most` members; None: there is none."""
    best: frozenset[Requirement] | None = None
    smallest_first = [(each, sorted(each)) for each in sorted(sets, key=len)]

    def search(taken: frozenset[Requirement]) -> None:
        nonlocal best, most
        members = next((members for each, members in smallest_first if taken.isdisjoint(each)), None)
        if members is None:
            best, most = taken, len(taken) - 1
        elif len(taken) < most:
            for one in members:
                search(taken | {one})

    search(frozenset())
    return best


def _suspects(problem: Problem, is_infeasible: IsInfeasible, start: int) -> list[Requirement]:
    """Requirements that contain a conflict: those of the choices nearest to `start`, or all."""
    order = _by_distance(problem, start)
    size = 8
    while size < len(order):
        nearest = requirements_of(problem, set(order[:size]))
        if is_infeasible(relaxed(problem, nearest)):
            return nearest
        size *= 4
    return requirements_of(problem)


def _by_distance(problem: Problem, start: int) -> list[int]:
    """The choices connected to `start`, nearest first (breadth-first)."""
    items: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for item in problem.items:
        together = tuple(dict.fromkeys([use.choice for use in item.uses]))
        for choice in together:
            items[choice].append(together)
    order = [start]
    seen = {start}
    for choice in order:
        for together in items[choice]:
            fresh = [other for other in together if other not in seen]
            seen.update(fresh)
            order += fresh
    return order
