"""Dual ascent: shifts that change no assignment's cost, and a bound that is never above the optimum."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from random_problems import cheapest, problems, synthetic

from relayout.solve.deadline import UNLIMITED, Deadline, ExpiredError
from relayout.solve.dual_ascent import ascend
from relayout.solve.eliminate import eliminate
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network, vector
from relayout.solve.problem import Problem
from relayout.solve.reparametrize import apply_shifts, assignment_cost
from relayout.solve.residual import Residual


def bound_of(problem: Problem, rounds: int) -> int:
    residual = Residual(network_of(problem), UNLIMITED)
    residual.drop_states(FORBIDDEN - 1)
    if residual.bound < FORBIDDEN:
        residual.reparametrize(ascend(residual.network, residual.remaining, rounds))
    return residual.bound


@settings(max_examples=300, deadline=None)
@given(problems(most=7))
def test_the_bound_rises_with_the_rounds_and_never_exceeds_the_optimum(problem: Problem) -> None:
    best = cheapest(problem)
    bounds = [bound_of(problem, rounds) for rounds in (0, 1, 2, 4)]
    assert bounds == sorted(bounds)
    assert best is None or bounds[-1] <= best


@settings(max_examples=100, deadline=None)
@given(problems(most=7))
def test_no_assignment_changes_its_cost(problem: Problem) -> None:
    residual = Residual(network_of(problem), UNLIMITED)
    residual.drop_states(FORBIDDEN - 1)
    if residual.bound >= FORBIDDEN:
        return
    before = residual.network.copy()
    residual.reparametrize(ascend(residual.network, residual.remaining, 3))
    for state in range(3):
        states = {x: min(state, len(residual.network.unary[x]) - 1) for x in residual.remaining}
        cost = assignment_cost(before, residual.remaining, states)
        assert min(residual.price(states), FORBIDDEN) == min(cost, FORBIDDEN)


def test_on_a_chain_one_round_reaches_the_optimum() -> None:
    draw = Random(7)
    network = Network([])
    for _ in range(6):
        network.variable(vector([draw.randrange(9) for _ in range(3)]))
    for x in range(5):
        network.add((x, x + 1), vector([[draw.randrange(9) for _ in range(3)] for _ in range(3)]))
    _, optimum = eliminate(network.copy(), set(range(6)), 9)
    shifts = ascend(network, set(range(6)), 1).shifts
    assert apply_shifts(network, set(range(6)), shifts) == optimum


def test_a_deadline_stops_it_between_two_passes() -> None:
    class Over(Deadline):
        def check(self) -> None:
            raise ExpiredError

    generators = synthetic()
    residual = Residual(network_of(generators.problem_of(generators.scattered(30, layouts=3, seed=1))), UNLIMITED)
    with pytest.raises(ExpiredError):
        ascend(residual.network, residual.remaining, 1, Over())
