"""The cost of a problem follows its definition, and invalid problems are errors."""

from __future__ import annotations

import pytest

from relayout.errors import InternalError
from relayout.solve.problem import Choice, Item, Problem, Use, conversions_of, cost_of

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
