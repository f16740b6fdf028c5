"""The models for CP-SAT and the linear relaxation are compared with brute force and elimination."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cheapest, paid_conversions, problems

from relayout.solve.eliminate import eliminate
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network, vector
from relayout.solve.or_tools import relax, solve_kernel, solve_whole
from relayout.solve.problem import Problem, cost_of
from relayout.solve.reparametrize import apply_shifts, assignment_cost


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_whole_problem_costs_what_brute_force_says(problem: Problem) -> None:
    outcome = solve_whole(problem)
    best = cheapest(problem)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if outcome.states is not None:
        assert cost_of(problem, list(outcome.states.values())) == best == outcome.bound


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 3))
def test_at_most_so_many_conversions_are_made(problem: Problem, most: int) -> None:
    outcome = solve_whole(problem, max_conversions=most)
    best = cheapest(problem, most)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if outcome.states is not None:
        assignment = tuple(outcome.states.values())
        assert cost_of(problem, assignment) == best
        assert paid_conversions(problem, assignment) <= most


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0, 4, 128]))
def test_a_kernel_costs_what_elimination_says(problem: Problem, set_states: int) -> None:
    network = network_of(problem, set_states=set_states)
    remaining = set(range(len(network.unary)))
    outcome = solve_kernel(network, remaining, None)
    _, least = eliminate(network.copy(), set(remaining), 1 << 20)
    assert outcome.status == ("infeasible" if least >= FORBIDDEN else "optimal")
    if outcome.states is not None:
        assert assignment_cost(network, remaining, outcome.states) == least == outcome.bound


@pytest.mark.parametrize("odd", [False, True])
def test_costs_whose_sum_leaves_int64_are_bounded(odd: bool) -> None:
    network = Network([])
    first, second = (network.variable(vector([0] * 40)) for _ in range(2))
    network.add((first, second), np.arange(1600).reshape(40, 40) * (1 << 52) + (1 << 54) + odd)
    outcome = solve_kernel(network, {first, second}, None)
    least = (1 << 54) + odd
    assert outcome.bound is not None
    assert outcome.cost is not None
    assert least - 1 <= outcome.bound <= least <= outcome.cost
    assert (outcome.status == "optimal") == (outcome.bound == outcome.cost)


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0, 4, 128]))
def test_the_relaxation_never_promises_more_than_the_optimum(problem: Problem, set_states: int) -> None:
    network = network_of(problem, set_states=set_states)
    remaining = set(range(len(network.unary)))
    _, least = eliminate(network.copy(), set(remaining), 1 << 20)
    relaxation = relax(network, remaining)
    if relaxation is not None:
        assert apply_shifts(network, remaining, relaxation.shifts) <= least
        assert all(abs(sum(values) - 1) < 1e-6 for values in relaxation.values.values())


def test_costs_too_large_for_doubles_are_not_relaxed() -> None:
    from relayout.solve.problem import Choice, Item, Use

    dear = ((0, 1 << 55), (1 << 55, 0))
    choices = (Choice("a", (1, 0)), Choice("b", (0, 3)), Choice("c", (1 << 54, (1 << 54) + 1)))
    values = tuple(Item(f"v{a}{b}", Use(a, (0, 1)), (Use(b, (0, 1)),), dear) for a, b in ((0, 1), (1, 2)))
    problem = Problem(choices, values)
    assert relax(network_of(problem), {0, 1, 2}) is None
    outcome = solve_whole(problem)
    assert outcome.states is not None
    assert cost_of(problem, list(outcome.states.values())) == cheapest(problem) == (1 << 54) + 1
