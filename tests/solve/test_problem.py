"""The cost of a problem follows its definition, and invalid problems are errors."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from relayout.errors import InternalError
from relayout.solve.problem import Choice, Item, Problem, Use, conversions_of, cost_of, with_least_conversions

TWO = ((0, 3), (5, 0))


def chain(*consumers: Use) -> Problem:
    choices = (Choice("p", (1, 2)), Choice("a", (0, 7)), Choice("b", (0, 0)))
    return Problem(choices, (Item("v", Use(0, (0, 1)), consumers, TWO),))


def test_a_copy_is_priced_once_for_all_its_consumers() -> None:
    problem = chain(Use(1, (1, 1)), Use(2, (1, 1)), Use(2, (1, 0)))
    assert cost_of(problem, (0, 0, 0)) == 1 + 3
    assert list(conversions_of(problem, (0, 0, 0))) == [(0, 0, 1)]


def test_the_format_produced_costs_nothing() -> None:
    assert cost_of(chain(Use(1, (1, 1))), (1, 0, 0)) == 2


def test_the_price_depends_on_the_direction() -> None:
    assert cost_of(chain(Use(1, (0, 1))), (1, 0, 0)) == 2 + 5


def test_a_conversion_that_does_not_exist_has_no_cost() -> None:
    problem = Problem(
        (Choice("p", (0,)), Choice("a", (0,))), (Item("v", Use(0, (0,)), (Use(1, (1,)),), ((0, None), (0, 0))),)
    )
    assert cost_of(problem, (0, 0)) is None
    assert list(conversions_of(problem, (0, 0))) == [(0, 0, 1)]


@pytest.mark.parametrize("costs", [(), (1, -1)])
def test_a_choice_has_alternatives_that_cost_0_or_more(costs: tuple[int, ...]) -> None:
    with pytest.raises(InternalError, match="no alternatives or a negative cost"):
        Choice("c", costs)


@pytest.mark.parametrize(
    ("conversion", "fault"),
    [
        ((), "not square"),
        (((0, 1),), "not square"),
        (((0, 1), (1, 2)), "to itself"),
        (((0, None), (None, None)), "to itself"),
        (((0, -1), (1, 0)), "negative"),
    ],
)
def test_a_conversion_matrix_is_checked(conversion: tuple[tuple[int | None, ...], ...], fault: str) -> None:
    with pytest.raises(InternalError, match=fault):
        Item("v", Use(0, (0,)), (), conversion)


@pytest.mark.parametrize(
    ("use", "fault"),
    [
        (Use(3, (0,)), "does not exist"),
        (Use(-1, (0,)), "does not exist"),
        (Use(1, (0,)), "does not fit"),
        (Use(1, (0, 2)), "does not fit"),
        (Use(1, (0, -1)), "does not fit"),
    ],
)
def test_a_use_fits_its_choice_and_its_value(use: Use, fault: str) -> None:
    with pytest.raises(InternalError, match=fault):
        chain(use)


def test_conversions_of_converted_items_cost_no_less_than_the_least_conversions() -> None:
    problem = chain(Use(1, (1, 1)))
    assert with_least_conversions(problem) is problem
    rows = ((0, 8, 9, None), (8, 0, 2, None), (9, 2, 0, None), (1, None, None, 0))
    item = Item("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (2,))), rows)
    uneven = Problem(tuple(Choice(name, (0,)) for name in "pab"), (item,))
    least = with_least_conversions(uneven)
    assert least.items[0].conversion == ((0, 2, 2, None), (1, 0, 2, None), (1, 2, 0, None), (1, 2, 2, 0))
    # From 0 both cost 8 + 2 by way of 1, of which the bound is 2 + 2.
    assert (cost_of(uneven, (0, 0, 0)), cost_of(least, (0, 0, 0))) == (17, 4)
    alone = Problem(uneven.choices, (replace(item, consumers=item.consumers[1:]),))
    rows = ((0, 8, 9, None), (8, 0, 2, None), (9, 2, 0, None), (1, 9, 10, 0))
    assert with_least_conversions(alone).items[0].conversion == rows
