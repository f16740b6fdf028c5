"""Primal heuristics give feasible assignments; recombination gives the best of what they have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import cheapest, problems

from relayout.solve import primal_heuristics
from relayout.solve.deadline import UNLIMITED
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network, vector
from relayout.solve.primal_heuristics import complete_greedily, dive, narrow, recombine, round_values
from relayout.solve.problem import Problem
from relayout.solve.residual import Residual

STATES = 40


def residual_of(network: Network) -> Residual:
    residual = Residual(network, UNLIMITED)
    residual.drop_states(FORBIDDEN - 1)
    return residual


@settings(max_examples=200, deadline=None)
@given(problems(most=7))
def test_an_assignment_is_feasible_and_never_cheaper_than_the_optimum(problem: Problem) -> None:
    residual = residual_of(network_of(problem))
    best = cheapest(problem)
    if residual.bound >= FORBIDDEN:
        assert best is None
        return
    equal = {x: [1 / len(residual.network.unary[x])] * len(residual.network.unary[x]) for x in residual.remaining}
    found = [
        complete_greedily(residual, UNLIMITED),
        narrow(residual, 2, UNLIMITED),
        recombine(residual, [], UNLIMITED),
        round_values(residual, equal, UNLIMITED),
        dive(residual, equal, UNLIMITED),
    ]
    prices = [residual.price(states) for states in found if states is not None]
    assert all(price >= (FORBIDDEN if best is None else best) for price in prices)


def chain(length: int, seed: int) -> Network:
    """A chain of variables with one cheap state each, at random, and equal costs of all differences."""
    draw = np.random.default_rng(seed)
    network = Network([])
    for _ in range(length):
        network.variable(vector(draw.integers(0, 50, STATES).tolist()))
    for x in range(length - 1):
        network.add((x, x + 1), vector((60 * (1 - np.eye(STATES, dtype=int))).tolist()))
    return network


@pytest.mark.parametrize("seed", range(5))
def test_narrowing_ends_with_an_exact_elimination_of_the_states_left(seed: int) -> None:
    residual = residual_of(chain(9, seed))
    few, all_states = (narrow(residual, number, UNLIMITED) for number in (8, STATES))
    assert few is not None
    assert all_states is not None
    assert residual.finish(STATES**3, STATES**4)
    assert residual_of(chain(9, seed)).price(all_states) == residual.bound <= residual_of(chain(9, seed)).price(few)


def test_recombination_takes_the_best_of_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primal_heuristics, "FEW_STATES", 0)
    network = chain(4, 0)
    for x in range(4, 8):
        network.variable(network.unary[x - 4])
    for scope in list(network.tables):
        network.add(tuple(x + 4 for x in scope), network.tables[scope])
    residual = residual_of(network)
    uniform = [residual.price(dict.fromkeys(range(8), state)) for state in range(STATES)]
    least = uniform.index(min(uniform))
    half = dict.fromkeys(range(8), least)
    left, right = ({**half, **{x + first: least - 1 for x in range(4)}} for first in (0, 4))
    assert residual.price(left) > residual.price(half)
    both = recombine(residual, [left, right], UNLIMITED)
    assert both is not None
    assert residual.price(both) <= residual.price(half)
