"""The cheapest copies of one item: the cost of brute force, and copies that can be made in their order."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from relayout.solve.copies import FormatCopies, copies_between
from relayout.solve.problem import Choice, Item, Problem, Use, cost_of
from relayout.solve.solver import solve

Matrix = tuple[tuple[int | None, ...], ...]


def random_matrix(draw: Random, formats: int) -> Matrix:
    missing, most = draw.choice((0.0, 0.3, 0.7)), draw.choice((1, 3, 20))
    return tuple(
        tuple(0 if f == g else None if draw.random() < missing else draw.randint(0, most) for g in range(formats))
        for f in range(formats)
    )


def cheapest(conversion: Matrix, source: int, required: frozenset[int]) -> int | None:
    """The least cost of all required formats: every format that can be made next is tried."""

    @cache
    def least(made: frozenset[int]) -> int | None:
        if required <= made:
            return 0
        best = None
        for target in {*range(len(conversion))} - made:
            prices = [price for origin in made if (price := conversion[origin][target]) is not None]
            rest = least(made | {target}) if prices else None
            if rest is not None and (best is None or min(prices) + rest < best):
                best = min(prices) + rest
        return best

    return least(frozenset({source}))


@pytest.mark.parametrize("seed", range(150))
def test_the_cost_is_that_of_brute_force_and_the_copies_have_it(seed: int) -> None:
    draw = Random(seed)
    formats = draw.randint(1, 6)
    conversion = random_matrix(draw, formats)
    copies = FormatCopies(conversion)
    source = draw.randrange(formats)
    for required in range(1 << formats):
        wanted = frozenset(f for f in range(formats) if required >> f & 1)
        best = cheapest(conversion, source, wanted)
        assert copies.cost(source, required) == best
        edges = copies.edges(source, required)
        assert (edges is None) == (best is None)
        if edges is None:
            continue
        made = {source}
        for origin, target in edges:
            assert origin in made
            assert target not in made
            made.add(target)
        assert wanted <= made
        assert sum(conversion[origin][target] or 0 for origin, target in edges) == best


def test_a_copy_is_made_from_the_produced_format_where_that_costs_no_more() -> None:
    equal = ((0, 3, 3), (3, 0, 3), (3, 3, 0))
    assert copies_between(equal).edges(0, 0b110) == [(0, 1), (0, 2)]
    cheaper = ((0, 3, 3), (3, 0, 2), (3, 3, 0))
    assert copies_between(cheaper).edges(0, 0b110) == [(0, 1), (1, 2)]
    # One more conversion costs as much as it saves.
    assert copies_between(((0, 1, 3), (3, 0, 2), (3, 3, 0))).edges(0, 0b100) == [(0, 2)]


def test_only_an_item_that_reuses_copies_does() -> None:
    conversion = ((0, 1, 9), (9, 0, 1), (9, 9, 0))
    choices = (Choice("a", (0,)), Choice("b", (0,)))
    for reuses, cost in ((False, 9), (True, 2)):
        problem = Problem(choices, (Item("v", Use(0, (0,)), (Use(1, (2,)),), conversion, reuses),))
        assert solve(problem).cost == solve(problem, engine="cp-sat").cost == cost_of(problem, (0, 0)) == cost


def test_a_limit_on_conversions_that_the_cheapest_copies_exceed_is_met_by_direct_ones() -> None:
    conversion = ((0, 1, 9), (9, 0, 1), (9, 9, 0))
    problem = Problem(
        (Choice("a", (0,)), Choice("b", (0,))), (Item("v", Use(0, (0,)), (Use(1, (2,)),), conversion, True),)
    )
    assert (solve(problem, max_conversions=2).cost, solve(problem, max_conversions=2).is_direct) == (2, False)
    limited = solve(problem, max_conversions=1)
    assert (limited.status, limited.cost, limited.is_direct) == ("optimal", 9, True)
