"""The residual network keeps the optimum, and its states are mapped back to the original network."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_problems import cheapest, problems, synthetic

from relayout.solve.deadline import UNLIMITED, Deadline, ExpiredError
from relayout.solve.eliminate import elimination_size
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN
from relayout.solve.or_tools import relax, solve_kernel
from relayout.solve.problem import Problem, cost_of
from relayout.solve.residual import Residual


def kernel() -> tuple[Problem, Residual]:
    """A problem whose elimination leaves a kernel."""
    generators = synthetic()
    problem: Problem = generators.problem_of(generators.scattered(60, layouts=3, seed=1))
    residual = Residual(network_of(problem, set_states=16), UNLIMITED)
    residual.eliminate(32)
    assert residual.remaining
    return problem, residual


@pytest.mark.parametrize("widest", [0, 1 << 20])
@settings(max_examples=100, deadline=None)
@given(problem=problems(reuses=True))
def test_full_elimination_gives_the_optimum_and_an_assignment_of_it(problem: Problem, widest: int) -> None:
    network = network_of(problem, widest=widest)
    alternatives = network.alternatives
    residual = Residual(network, UNLIMITED)
    assert residual.finish(1 << 30, 1 << 40)
    best = cheapest(problem)
    assert residual.bound == (FORBIDDEN if best is None else best)
    if best is not None:
        states = residual.back_substituted({})
        assert cost_of(problem, [some[states[c]] for c, some in enumerate(alternatives)]) == best


def test_reparametrization_and_fixing_keep_the_optimum_and_its_states() -> None:
    problem, residual = kernel()
    alternatives = residual.network.alternatives
    before = solve_kernel(residual.network, residual.remaining, None)
    assert before.cost is not None
    optimum = before.cost + residual.bound
    relaxation = relax(residual.network, residual.remaining)
    assert relaxation is not None
    residual.reparametrize(relaxation)
    assert residual.bound <= optimum
    count = residual.states()
    residual.drop_states(optimum - residual.bound)
    assert residual.states() < count
    after = solve_kernel(residual.network, residual.remaining, None)
    assert after.states is not None
    assert residual.price(after.states) == optimum
    original = residual.back_substituted(after.states)
    assert cost_of(problem, [some[original[c]] for c, some in enumerate(alternatives)]) == optimum
    assert residual.renumbered(original) == after.states


def test_no_state_is_left_below_the_optimum() -> None:
    _, residual = kernel()
    relaxation = relax(residual.network, residual.remaining)
    assert relaxation is not None
    residual.reparametrize(relaxation)
    residual.drop_states(-1)
    assert residual.bound == FORBIDDEN


def test_an_elimination_that_would_be_too_large_is_not_begun() -> None:
    _, residual = kernel()
    network, remaining, bound = residual.network.copy(), set(residual.remaining), residual.bound
    largest, _, total = elimination_size(residual.network, residual.remaining)
    assert not residual.finish(largest - 1, total)
    assert not residual.finish(largest, total - 1)
    assert (residual.remaining, residual.bound) == (remaining, bound)
    assert residual.network.tables.keys() == network.tables.keys()
    assert residual.finish(largest, total)
    assert not residual.remaining


def test_fixing_stops_at_the_deadline() -> None:
    residual = Residual(kernel()[1].network, Deadline(0.0))
    with pytest.raises(ExpiredError):
        residual.drop_states(0)
