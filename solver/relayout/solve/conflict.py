"""Why a problem has no solution: the smallest set of requirements that cannot be met together, and what would do.

A **requirement** is one use of one item: the format in which a choice wants an operand, or gives a result, as its
alternatives say. Lifted, an operand is as good in any format, and a result comes in whichever suits.

A set of which none can be spared is found by QuickXplain (Junker 2004), a deletion filter that halves. That no other
set is smaller follows from correction sets, of which each conflict has a member: the smallest set that hits all that
are known is a conflict, or shows another one ("Smallest MUS extraction with minimal hitting set dualization",
Ignatiev et al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from relayout.solve.network import Conversion
from relayout.solve.problem import Choice, Item, Problem, Use

__all__ = ["Lifted", "Requirement", "questions_of", "relaxed", "requirements_of", "smallest_conflict", "softened"]

# Proving that no conflict is smaller takes some solves of the whole problem: not beyond so many.
MOST_PROVED = 24
MOST_CORRECTIONS = 100


class Requirement(NamedTuple):
    """Use `use` of item `item`: 0 is its producer's, `k` its consumer `k - 1`'s."""

    item: int
    use: int


class Lifted(NamedTuple):
    """A requirement that is given up, and the format that its operand has then."""

    requirement: Requirement
    format: int


Unmet = Callable[[Problem], bool]
Correct = Callable[[Collection[Requirement]], "frozenset[Requirement] | None"]


def questions_of(problem: Problem, *, counted: bool) -> Problem:
    """The problem with nothing to pay, or with 1 to pay for a conversion that is not free.

    Of items whose conversions then all are free nobody asks anything any more.
    """
    known: dict[Conversion, tuple[Conversion, bool]] = {}
    items: list[Item] = []
    for item in problem.items:
        if item.conversion not in known:
            asked = tuple([tuple([_asked(price, counted=counted) for price in row]) for row in item.conversion])
            known[item.conversion] = asked, any(price != 0 for row in asked for price in row)
        conversion, matters = known[item.conversion]
        items.append(Item(item.name, item.producer, item.consumers if matters else (), conversion))
    return Problem(tuple([Choice(choice.name, (0,) * len(choice.costs)) for choice in problem.choices]), tuple(items))


def _asked(price: int | None, *, counted: bool) -> int | None:
    return None if price is None else int(counted and price > 0)


def requirements_of(problem: Problem, choices: Collection[int] | None = None) -> list[Requirement]:
    """The requirements of items that are read at all, all or those of some choices."""
    return [
        Requirement(v, k)
        for v, item in enumerate(problem.items)
        if item.consumers
        for k, use in enumerate((item.producer, *item.consumers))
        if choices is None or use.choice in choices
    ]


def relaxed(problem: Problem, kept: Iterable[Requirement]) -> Problem:
    """The question whether the requirements in `kept` can be met, whatever becomes of all the others."""
    by_item: dict[int, list[int]] = {}
    for one in kept:
        by_item.setdefault(one.item, []).append(one.use)
    place: dict[int, int] = {}
    choices: list[Choice] = []
    items: list[Item] = []

    def placed(use: Use) -> Use:
        if use.choice not in place:
            place[use.choice] = len(choices)
            choices.append(problem.choices[use.choice])
        return Use(place[use.choice], use.formats)

    for index, uses in sorted(by_item.items()):
        item = problem.items[index]
        consumers = tuple([placed(item.consumers[use - 1]) for use in sorted(uses) if use])
        if not consumers:
            continue
        if 0 in uses:
            producer = placed(item.producer)
        else:
            formats = len(item.conversion)
            choices.append(Choice(item.name, (0,) * formats))
            producer = Use(len(choices) - 1, tuple(range(formats)))
        items.append(Item(item.name, producer, consumers, item.conversion))
    return Problem(tuple(choices), tuple(items))


def softened(
    problem: Problem, hard: Collection[Requirement], price: Callable[[Requirement], int]
) -> tuple[Problem, list[tuple[Requirement, int]]]:
    """The problem in which every requirement but those in `hard` may be lifted at a price, where it can matter.

    Between the choice and the item stands another choice, whose alternatives are the item's formats: it has the
    item in one, and where its own choice asks for another one it pays. Returns those choices with their requirements.
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
        apart = tuple([tuple([costs if f != g else 0 for g in every]) for f in every])
        items.append(Item("", use, (Use(own, every),), apart))
        return Use(own, every)

    for v, item in enumerate(problem.items):
        if not item.consumers or not any(None in row for row in item.conversion):
            items.append(item)
            continue
        formats = len(item.conversion)
        producer, *consumers = (
            adapted(Requirement(v, k), use, formats) for k, use in enumerate((item.producer, *item.consumers))
        )
        items.append(Item(item.name, producer, tuple(consumers), item.conversion))
    return Problem(tuple(choices), tuple(items)), adapters


def smallest_conflict(problem: Problem, unmet: Unmet, correct: Correct, start: int) -> tuple[Requirement, ...]:
    """A conflict of a problem that has one, looked for near choice `start`; no requirement of it can be left out.

    `unmet` says whether a question has no answer, `correct` a set of requirements without which the problem has one
    that meets the requirements given, or None where it does not know. With it the conflict is one of the fewest
    requirements, where that is soon shown.
    """
    conflict = _minimal(problem, unmet, _suspects(problem, unmet, start))
    if len(conflict) > MOST_PROVED:
        return tuple(conflict)
    every = requirements_of(problem)
    known = [
        frozenset((one,))
        for one in conflict
        if not unmet(relaxed(problem, [other for other in every if other != one]))
    ]
    for _ in range(MOST_CORRECTIONS):
        fewest = _fewest_hitting(known, len(conflict) - 1)
        if fewest is None:
            break
        if unmet(relaxed(problem, fewest)):
            return tuple(sorted(fewest))
        correction = correct(fewest)
        if not correction:
            break
        known.append(correction)
    return tuple(conflict)


def _minimal(problem: Problem, unmet: Unmet, suspects: Sequence[Requirement]) -> list[Requirement]:
    def explain(background: list[Requirement], added: bool, candidates: Sequence[Requirement]) -> list[Requirement]:
        if added and unmet(relaxed(problem, background)):
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
    """A smallest set with a member of each of the sets, if `most` members are enough."""
    best: frozenset[Requirement] | None = None

    def search(taken: frozenset[Requirement]) -> None:
        nonlocal best, most
        missed = sorted([sorted(each) for each in sets if not each & taken], key=len)
        if not missed:
            best, most = taken, len(taken) - 1
            return
        if len(taken) < most:
            for one in missed[0]:
                search(taken | {one})

    search(frozenset())
    return best


def _suspects(problem: Problem, unmet: Unmet, start: int) -> list[Requirement]:
    """Requirements that hold a conflict: those of the nearest choices to `start` that do, or all."""
    order = _by_distance(problem, start)
    size = 8
    while size < len(order):
        nearest = requirements_of(problem, set(order[:size]))
        if unmet(relaxed(problem, nearest)):
            return nearest
        size *= 4
    return requirements_of(problem)


def _by_distance(problem: Problem, start: int) -> list[int]:
    """The choices connected with `start`, nearest first."""
    items: list[list[tuple[int, ...]]] = [[] for _ in problem.choices]
    for item in problem.items:
        together = tuple(dict.fromkeys([item.producer.choice, *[use.choice for use in item.consumers]]))
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
