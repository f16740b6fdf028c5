"""The cost network of a problem has the problem's optimum in every encoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cheapest, problems, synthetic

from relayout.errors import InputError
from relayout.solve.eliminate import eliminate
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN
from relayout.solve.problem import Choice, Item, Problem, Use

FREE = tuple(tuple(abs(a - b) for b in range(3)) for a in range(3))


@settings(max_examples=500, deadline=None)
@given(problems(), st.sampled_from([0, 1, 2, 4, 6, 128]))
def test_the_least_sum_of_the_tables_is_the_optimum_in_every_encoding(problem: Problem, set_states: int) -> None:
    network = network_of(problem, set_states=set_states)
    remaining = set(range(len(network.unary)))
    _, least = eliminate(network, remaining, 1 << 20)
    assert not remaining
    assert (None if least >= FORBIDDEN else least) == cheapest(problem)


def test_of_alternatives_with_the_same_formats_the_first_of_the_cheapest_stays() -> None:
    choices = (Choice("p", (4, 2, 2, 9)), Choice("c", (0, 0, 0)))
    value = Item("v", Use(0, (0, 0, 0, 1)), (Use(1, (0, 1, 2)),), FREE)
    assert network_of(Problem(choices, (value,))).alternatives == [(1, 3), (0, 1, 2)]


def test_a_choice_without_items_takes_its_cheapest_alternative() -> None:
    assert network_of(Problem((Choice("c", (3, 1, 1)),), ())).alternatives == [(1,)]


def fan(consumers: int, values: int) -> Problem:
    choices = [Choice(f"c{c}", (0, 0, 0)) for c in range(consumers + values)]
    uses = tuple(Use(c, (0, 1, 2)) for c in range(consumers))
    return Problem(
        tuple(choices), tuple(Item(f"v{v}", Use(consumers + v, (0, 1, 2)), uses, FREE) for v in range(values))
    )


def test_items_with_the_same_consumers_share_a_set_variable() -> None:
    assert len(network_of(fan(5, 1)).unary) == 6 + 1
    assert len(network_of(fan(5, 4)).unary) == 9 + 1


def test_a_network_in_which_every_layer_reads_all_earlier_ones_is_a_chain() -> None:
    generators = synthetic()
    network = network_of(generators.problem_of(generators.dense(300)))
    assert max(len(others) for others in network.neighbours) <= 6
    remaining = set(range(len(network.unary)))
    eliminate(network, remaining, 0)
    assert not remaining


def test_many_formats_are_split_over_several_variables() -> None:
    formats = tuple(range(10))
    price = tuple(tuple(3 if a != b else 0 for b in formats) for a in formats)
    choices = tuple(Choice(f"c{c}", (0,) * 10) for c in range(5))
    value = Item("v", Use(0, formats), tuple(Use(c, formats) for c in range(1, 5)), price)
    network = network_of(Problem(choices, (value,)))
    assert [len(unary) for unary in network.unary[5:]] == [32, 32]


def test_costs_that_int64_could_not_add_are_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        network_of(Problem((Choice("a", (1 << 59,)), Choice("b", (1 << 59,))), ()))
    price = ((0, 1 << 59), (0, 0))
    two = (Item("v", Use(0, (0, 1)), (Use(1, (0, 1)),), price),) * 2
    with pytest.raises(InputError, match="too large"):
        network_of(Problem((Choice("a", (0, 0)), Choice("b", (0, 0))), two))
