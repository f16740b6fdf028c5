"""Elimination and back-substitution are compared with brute force."""

from __future__ import annotations

from itertools import combinations, product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.solve import eliminate as eliminate_module
from relayout.solve.eliminate import back_substitute, eliminate, greedy_states, infeasible_scope
from relayout.solve.network import FORBIDDEN, Network, vector


def random_network(draw: Random, most: int = 7) -> Network:
    """Variables of up to 3 states and random tables over up to 3 of them, a few entries forbidden."""
    forbidden = draw.choice((0.0, 0.1, 0.4))
    network = Network([])
    size = draw.randint(1, most)
    for _ in range(size):
        network.variable(vector([draw.randint(0, 9) for _ in range(draw.randint(1, 3))]))
    for scope in [scope for k in (2, 3) for scope in combinations(range(size), k)]:
        if draw.random() < (0.5 if len(scope) == 2 else 0.1):
            shape = [len(network.unary[x]) for x in scope]
            cells = [FORBIDDEN if draw.random() < forbidden else draw.randint(0, 9) for _ in range(int(np.prod(shape)))]
            network.add(scope, vector(cells).reshape(shape))
    return network


def cost(network: Network, states: tuple[int, ...]) -> int:
    total = sum(int(unary[state]) for unary, state in zip(network.unary, states, strict=True))
    return total + sum(int(table[tuple(states[x] for x in scope)]) for scope, table in network.tables.items())


def least(network: Network) -> int:
    return min(cost(network, states) for states in product(*[range(len(unary)) for unary in network.unary]))


networks = st.integers(0, 2**32).map(lambda seed: random_network(Random(seed)))


@settings(max_examples=400, deadline=None)
@given(networks)
def test_elimination_finds_the_least_cost_and_back_substitution_its_assignment(network: Network) -> None:
    best = least(network)
    work, remaining = network.copy(), set(range(len(network.unary)))
    eliminated, constant = eliminate(work, remaining, 1 << 20)
    assert not remaining
    assert not work.tables
    assert min(best, FORBIDDEN) == constant
    states = [0] * len(network.unary)
    back_substitute(eliminated, states)
    if best < FORBIDDEN:
        assert cost(network, tuple(states)) == best


@pytest.mark.parametrize("seed", range(20))
def test_a_table_made_in_parts_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (1, 4, eliminate_module.MOST_AT_ONCE):
        monkeypatch.setattr(eliminate_module, "MOST_AT_ONCE", most)
        network = random_network(Random(seed))
        eliminated, constant = eliminate(network, set(range(len(network.unary))), 1 << 20)
        found.append((constant, [[table.tolist() for _, table in each.tables] for each in eliminated]))
    assert found[0] == found[1] == found[2]


@settings(max_examples=200, deadline=None)
@given(networks)
def test_kernel_and_constant_together_cost_the_same_as_the_network(network: Network) -> None:
    work, remaining = network.copy(), set(range(len(network.unary)))
    _, constant = eliminate(work, remaining, 0)
    kernel = sorted(remaining)
    rest = min(
        sum(int(work.unary[x][states[x]]) for x in kernel)
        + sum(int(table[tuple(states[x] for x in scope)]) for scope, table in work.tables.items())
        for states in (
            dict(zip(kernel, some, strict=True)) for some in product(*[range(len(work.unary[x])) for x in kernel])
        )
    )
    assert min(constant + rest, FORBIDDEN) == min(least(network), FORBIDDEN)


@settings(max_examples=200, deadline=None)
@given(networks)
def test_greedy_states_are_feasible(network: Network) -> None:
    states = greedy_states(network.copy(), set(range(len(network.unary))), 0)
    if states is not None:
        assert cost(network, tuple(states[x] for x in range(len(network.unary)))) < FORBIDDEN


@settings(max_examples=300, deadline=None)
@given(networks)
def test_infeasibility_is_found_exactly_if_no_assignment_is_allowed(network: Network) -> None:
    work, remaining = network.copy(), set(range(len(network.unary)))
    eliminated, constant = eliminate(work, remaining, 1 << 20)
    assert bool(infeasible_scope(work, eliminated)) == (constant >= FORBIDDEN)


def test_of_equal_states_the_first_is_taken() -> None:
    network = Network([])
    for _ in range(3):
        network.variable(vector([2, 1, 1]))
    for scope in ((0, 1), (1, 2)):
        network.add(scope, vector([[0] * 3] * 3))
    states = [0] * 3
    eliminated, _ = eliminate(network, {0, 1, 2}, 1 << 20)
    back_substitute(eliminated, states)
    assert states == [1, 1, 1]
