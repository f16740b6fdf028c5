"""Reparametrization changes the cost of no assignment."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network, vector
from relayout.solve.problem import Problem
from relayout.solve.reparametrize import apply_shifts, assignment_cost, implications, restrict, states_within


def assignments(network: Network) -> list[dict[int, int]]:
    sizes = [range(len(unary)) for unary in network.unary]
    return [dict(enumerate(states)) for states in product(*sizes)]


def everything(network: Network) -> set[int]:
    return set(range(len(network.unary)))


@settings(max_examples=200, deadline=None)
@given(problems(most=4), st.integers(0, 2**32))
def test_shifting_changes_the_cost_of_no_assignment(problem: Problem, seed: int) -> None:
    draw = Random(seed)
    network = network_of(problem, set_states=4)
    before = [assignment_cost(network, everything(network), states) for states in assignments(network)]
    shifts = {
        scope: [vector([draw.randint(-9, 9) for _ in range(size)]) for size in table.shape]
        for scope, table in network.tables.items()
    }
    paid = apply_shifts(network, everything(network), shifts)
    after = [assignment_cost(network, everything(network), states) for states in assignments(network)]
    if paid < FORBIDDEN:
        assert [min(cost, FORBIDDEN) for cost in before] == [
            FORBIDDEN if cost >= FORBIDDEN else cost + paid for cost in after
        ]
        assert all(table.min() == 0 for table in network.tables.values())


@settings(max_examples=200, deadline=None)
@given(problems(most=4), st.integers(0, 12))
def test_cheap_assignments_survive_reduced_cost_fixing_at_the_same_cost(problem: Problem, most: int) -> None:
    network = network_of(problem, set_states=4)
    if (
        apply_shifts(network, everything(network), {scope: [vector([0])] * len(scope) for scope in network.tables})
        >= FORBIDDEN
    ):
        return
    cheap = {
        tuple(states.values()): cost
        for states in assignments(network)
        if (cost := assignment_cost(network, everything(network), states)) <= most
    }
    left = states_within(network, everything(network), most)
    if not all(left.values()):
        assert not cheap
        return
    thin = restrict(network, left, most)
    still = {
        tuple(left[x][state] for x, state in states.items()): cost
        for states in assignments(thin)
        if (cost := assignment_cost(thin, everything(thin), states)) <= most
    }
    assert still == cheap


def test_a_table_that_only_forbids_is_implications() -> None:
    table = vector([[0, FORBIDDEN, 0], [0, FORBIDDEN, 0], [0, 0, 0]])
    assert implications(table) == [(0, [0, 1], [0, 2]), (1, [1], [2])]


def test_if_one_axis_has_two_states_one_direction_suffices() -> None:
    assert implications(vector([[FORBIDDEN, 0], [0, 0]])) == [(0, [0], [1])]
    assert implications(vector([[FORBIDDEN, 0, 0], [0, 0, 0]])) == [(1, [0], [1])]


def test_a_table_with_costs_is_no_implication() -> None:
    assert implications(vector([[0, 1], [FORBIDDEN, 0]])) is None
    assert implications(np.zeros((2, 2, 2), dtype=np.int64)) is None
