"""The search on the kernel is exact, and gives bounds after a deadline."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cheapest, problems, synthetic

from relayout.solve.deadline import UNLIMITED, Deadline, ExpiredError
from relayout.solve.encode import network_of
from relayout.solve.kernel_search import minimise
from relayout.solve.or_tools import Outcome
from relayout.solve.problem import Problem, cost_of
from relayout.solve.residual import Residual
from relayout.solve.solver import solve

NEVER = 1 << 62


def search(problem: Problem, deadline: Deadline, large_tables: int = 0) -> Outcome:
    """The search by dual ascent, or by linear relaxations for `large_tables` beyond all tables."""
    with patch("relayout.solve.kernel_search.LARGE_TABLES", large_tables):
        return minimise(problem, Residual(network_of(problem), deadline), deadline)


@settings(max_examples=300, deadline=None)
@given(problems(most=7), st.sampled_from([0, NEVER]))
def test_a_kernel_is_minimised_exactly(problem: Problem, large_tables: int) -> None:
    outcome = search(problem, UNLIMITED, large_tables)
    best = cheapest(problem)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if outcome.states is not None:
        alternatives = network_of(problem).alternatives
        assert cost_of(problem, [some[outcome.states[c]] for c, some in enumerate(alternatives)]) == best
        assert outcome.bound == outcome.cost == best


@pytest.mark.parametrize("large_tables", [0, NEVER])
@pytest.mark.parametrize("seed", range(4))
def test_on_scattered_networks_both_engines_agree(seed: int, large_tables: int) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(90, layouts=3, seed=seed))
    outcome = search(problem, UNLIMITED, large_tables)
    assert outcome.status == "optimal"
    assert outcome.cost == solve(problem, engine="cp-sat").cost


def test_cpsat_solves_the_rest_after_relaxation_and_fixing(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(150, seed=3))
    best = search(problem, UNLIMITED).cost
    monkeypatch.setattr("relayout.solve.kernel_search.LARGEST_TABLE", 4)
    monkeypatch.setattr("relayout.solve.kernel_search.ROUNDS", 1)
    monkeypatch.setattr("relayout.solve.kernel_search.round_values", lambda *_: None)
    monkeypatch.setattr("relayout.solve.kernel_search.dive", lambda *_: None)
    outcome = search(problem, UNLIMITED, NEVER)
    assert (outcome.status, outcome.cost, outcome.bound) == ("optimal", best, best)


class Few(Deadline):
    """So many looks at the clock, and the time is over: a limit that every machine meets at the same point."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def over(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def check(self) -> None:
        if self.over():
            raise ExpiredError


@pytest.mark.parametrize("large_tables", [0, NEVER])
def test_after_any_deadline_the_best_known_result_is_returned(large_tables: int) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(60, layouts=3, seed=16))
    best = search(problem, UNLIMITED).cost
    assert best is not None
    statuses = set()
    looks = 0
    while "optimal" not in statuses:
        outcome = search(problem, Few(looks), large_tables)
        statuses.add(outcome.status)
        assert outcome.bound is not None
        assert outcome.bound <= best
        if outcome.cost is not None:
            assert best <= outcome.cost
        # Closer together at the start, where the stages are shorter.
        looks += 7 + looks // 16
    assert statuses == {"unknown", "feasible", "optimal"}
