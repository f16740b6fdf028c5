"""The layout problem as pure data: choices, items and conversion costs. It has no graph.

A **choice** is a node that takes one of its alternatives (implementations). An **item** is a tensor: it is produced by
one choice and read by several. Each alternative of its producer produces it in one of the item's formats, and each
alternative of a consumer requires it in one. A format that is required and not produced takes one conversion, which is
paid once for all consumers of that format:

    cost = sum over choices  costs[alternative]
         + sum over items   sum over {formats required} \\ {format produced} of conversion[produced][required]

In an item with `reuses_copies`, a format may also be converted from a copy that was made before, required or not. Its
term is the cost of the cheapest such copies (`relayout.solve.copies`).

Costs are non-negative integers, so that sums and comparisons are exact. The pairwise special case is PBQP ("Nearly
optimal register allocation with PBQP", Scholz & Eckstein 2002).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from relayout.errors import InternalError
from relayout.solve.copies import copies_between

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

    The diagonal is 0; None: the conversion does not exist. One choice may use an item several times. `reuses_copies`:
    a copy may be made from another copy. Raises InternalError if the matrix is not square, its diagonal is not 0 or a
    cost is negative.
    """

    name: str
    producer: Use
    consumers: tuple[Use, ...]
    conversion: tuple[Row, ...]
    reuses_copies: bool = False

    def __post_init__(self) -> None:
        fault = _fault_of(self.conversion)
        if fault:
            raise InternalError(fault, where=self.name, found=str(self.conversion))

    @property
    def uses(self) -> tuple[Use, ...]:
        return (self.producer, *self.consumers)

    def copies(self, source: int, required: Set[int]) -> Sequence[tuple[int, int]]:
        """The cheapest conversions (from, to) to all formats required, in an order in which they can be made. Where one
        cannot be made, all are from `source`."""
        targets = sorted(required - {source})
        if self.reuses_copies and targets:
            edges = copies_between(self.conversion).edges(source, sum(1 << target for target in targets))
            if edges is not None:
                return edges
        return [(source, target) for target in targets]

    def cost_of(self, source: int, required: Set[int]) -> int | None:
        """The cost of all formats required; None: one of them cannot be made."""
        total = 0
        for origin, target in self.copies(source, required):
            price = self.conversion[origin][target]
            if price is None:
                return None
            total += price
        return total


class Problem(Struct, frozen=True):
    """Choices and the items between them. Raises InternalError if an index or a length does not fit."""

    choices: tuple[Choice, ...]
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        alternatives = [len(choice.costs) for choice in self.choices]
        for item in self.items:
            formats = len(item.conversion)
            for use in item.uses:
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

    @property
    def reuses_copies(self) -> bool:
        """Whether a copy may be made from another copy."""
        return any(item.reuses_copies for item in self.items)

    def with_direct_copies(self) -> Problem:
        """The same, with every copy made from the format produced."""
        return Problem(self.choices, tuple([replace(item, reuses_copies=False) for item in self.items]))


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
        for origin, target in item.copies(source, wanted):
            yield index, origin, target


def cost_of(problem: Problem, assignment: Sequence[int]) -> int | None:
    """The cost of an assignment by the definition at the top of this module; None: a conversion does not exist."""
    total = sum(choice.costs[alternative] for choice, alternative in zip(problem.choices, assignment, strict=True))
    for item, source, target in conversions_of(problem, assignment):
        price = problem.items[item].conversion[source][target]
        if price is None:
            return None
        total += price
    return total


def leaves_copies_out(problem: Problem) -> bool:
    """Whether a copy might cost less from another copy in an item that reuses none."""
    # Items of equal tensors share their rows.
    rows = {id(item.conversion): item.conversion for item in problem.items if not item.reuses_copies}
    columns = (column for each in rows.values() for column in zip(*each, strict=True))
    return any(len({price for price in column if price}) > 1 for column in columns)
