"""The layout problem as pure data: choices, items and conversion costs. It has no graph.

A **choice** is a node that takes one of its alternatives (implementations). An **item** is a tensor: it is produced by
one choice and read by several. Each alternative of its producer produces it in one of the item's formats, and each
alternative of a consumer requires it in one. A format that is required and not produced takes one conversion, which is
paid once for all consumers of that format:

    cost = sum over choices  costs[alternative]
         + sum over items   sum over {formats required} \\ {format produced} of conversion[produced][required]

Costs are non-negative integers, so that sums and comparisons are exact. The pairwise special case is PBQP ("Nearly
optimal register allocation with PBQP", Scholz & Eckstein 2002).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, product

from msgspec import Struct
from msgspec.structs import replace

from relayout.errors import InternalError

__all__ = ["Choice", "Item", "Problem", "Use", "conversions_of", "cost_of", "with_least_conversions"]

Row = tuple[int | None, ...]


class Choice(Struct, frozen=True):
    """A decision variable: `costs[a]` is the own cost of alternative `a`."""

    name: str
    costs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.costs or min(self.costs) < 0:
            raise InternalError(
                "a choice has no alternatives or a negative cost", where=self.name, found=str(self.costs)
            )


class Use(Struct, frozen=True):
    """One use of an item: alternative `a` of `choice` produces or requires it in format `formats[a]`."""

    choice: int
    formats: tuple[int, ...]


class Item(Struct, frozen=True):
    """An item with `len(conversion)` formats; `conversion[f][g]` is the cost of the conversion from `f` to `g`.

    The diagonal is 0; None: the conversion does not exist. One choice may use an item several times. Raises
    InternalError if the matrix is not square, its diagonal is not 0 or a cost is negative.
    """

    name: str
    producer: Use
    consumers: tuple[Use, ...]
    conversion: tuple[Row, ...]

    def __post_init__(self) -> None:
        fault = _fault_of(self.conversion)
        if fault:
            raise InternalError(fault, where=self.name, found=str(self.conversion))


class Problem(Struct, frozen=True):
    """Choices and the items between them. Raises InternalError if an index or a length does not fit."""

    choices: tuple[Choice, ...]
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        alternatives = [len(choice.costs) for choice in self.choices]
        for item in self.items:
            formats = len(item.conversion)
            for use in (item.producer, *item.consumers):
                if not 0 <= use.choice < len(alternatives):
                    raise InternalError(
                        "a use names a choice that does not exist",
                        where=item.name,
                        expected=f"0 to {len(alternatives) - 1}",
                        found=str(use.choice),
                    )
                if len(use.formats) != alternatives[use.choice] or max(use.formats) >= formats or min(use.formats) < 0:
                    raise InternalError(
                        "a use does not fit its choice and its item",
                        where=f"{item.name}, {self.choices[use.choice].name}",
                        expected=f"{alternatives[use.choice]} formats of 0 to {formats - 1}",
                        found=str(use.formats),
                    )


@lru_cache(maxsize=4096)
def _fault_of(conversion: tuple[Row, ...]) -> str:
    # Conversion matrices recur thousands of times in a network, so each distinct one is read once.
    if not conversion or any(len(row) != len(conversion) for row in conversion):
        return "the conversion matrix is not square"
    if any(conversion[f][f] != 0 for f in range(len(conversion))):
        return "the conversion of a format to itself is not free"
    if any(price is not None and price < 0 for row in conversion for price in row):
        return "a conversion has a negative cost"
    return ""


def conversions_of(problem: Problem, assignment: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (item, source format, target format) for every conversion of an assignment, in order.

    `assignment[c]` is the alternative of choice `c`. Conversions that are free or impossible are included.

    >>> use = Use(0, (0, 1)), Use(1, (0,))
    >>> problem = Problem((Choice("a", (0, 0)), Choice("b", (0,))), (Item("v", use[0], use[1:], ((0, 3), (5, 0))),))
    >>> list(conversions_of(problem, (1, 0))), cost_of(problem, (1, 0))
    ([(0, 1, 0)], 5)
    """
    for index, item in enumerate(problem.items):
        source = item.producer.formats[assignment[item.producer.choice]]
        wanted = {use.formats[assignment[use.choice]] for use in item.consumers}
        for target in sorted(wanted - {source}):
            yield index, source, target


def cost_of(problem: Problem, assignment: Sequence[int]) -> int | None:
    """The cost of an assignment by the definition at the top of this module; None: a conversion does not exist."""
    total = sum(choice.costs[alternative] for choice, alternative in zip(problem.choices, assignment, strict=True))
    for item, source, target in conversions_of(problem, assignment):
        price = problem.items[item].conversion[source][target]
        if price is None:
            return None
        total += price
    return total


def with_least_conversions(problem: Problem) -> Problem:
    """The problem in which a conversion costs no more than if it could be made of a converted item: a lower bound on
    such solutions. For a single consumer it costs the cheapest chain, for several as little as any into its format.
    The same problem where all of an item's conversions cost the same."""
    known: dict[tuple[int, bool], tuple[Row, ...]] = {}
    items = []
    for item in problem.items:
        # Items of equal tensors share their rows.
        key = id(item.conversion), len(item.consumers) == 1
        if key not in known:
            known[key] = (_chained if key[1] else _cheapest)(item.conversion)
        items.append(item if known[key] == item.conversion else replace(item, conversion=known[key]))
    return Problem(problem.choices, tuple(items)) if tuple(items) != problem.items else problem


def _chained(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    least = [list(row) for row in rows]
    if len(set(chain.from_iterable(rows)) - {0}) > 1:
        for between, source in product(range(len(rows)), least):
            first = source[between]
            for target, second in enumerate(least[between] if first is not None else ()):
                direct = source[target]
                if first is not None and second is not None and (direct is None or first + second < direct):
                    source[target] = first + second
    return tuple(map(tuple, least))


def _cheapest(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows that state only what is possible stay, and so does one from which nothing is."""
    found = [[cost for n, cost in enumerate(row) if n != own and cost is not None] for own, row in enumerate(rows)]
    if not any(map(any, found)):
        return rows
    others = ([cost for n, cost in enumerate(column) if n != own] for own, column in enumerate(zip(*rows, strict=True)))
    least = [min((cost for cost in each if cost is not None), default=None) for each in others]
    return tuple(
        [
            tuple([0 if n == own else cost for n, cost in enumerate(least)]) if found[own] else row
            for own, row in enumerate(rows)
        ]
    )
