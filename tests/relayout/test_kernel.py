from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_problems import cheapest, problems, synthetic

from relayout.encoding import network_of
from relayout.kernel import Limits, minimise
from relayout.problem import Problem, cost_of
from relayout.solve import solve


def unlimited() -> None:
    return None


@settings(max_examples=300, deadline=None)
@given(problems(most=7))
def test_a_kernel_is_minimised_exactly(problem: Problem) -> None:
    outcome = minimise(problem, Limits(unlimited))
    best = cheapest(problem)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if outcome.states is not None:
        alternatives = network_of(problem).alternatives
        assert cost_of(problem, [some[outcome.states[c]] for c, some in enumerate(alternatives)]) == best
        assert outcome.bound == outcome.cost == best


@pytest.mark.parametrize("seed", range(4))
def test_on_scattered_networks_both_engines_agree(seed: int) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(90, layouts=3, seed=seed))
    outcome = minimise(problem, Limits(unlimited))
    assert outcome.status == "optimal"
    assert outcome.cost == solve(problem, engine="cp-sat").cost


def test_what_relaxing_and_thinning_out_do_not_finish_is_left_to_cpsat(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(150, seed=3))
    best = minimise(problem, Limits(unlimited)).cost
    monkeypatch.setattr("relayout.kernel.LARGE_CELLS", 4)
    monkeypatch.setattr("relayout.kernel._rounded", lambda *_: None)
    outcome = minimise(problem, Limits(unlimited))
    assert (outcome.status, outcome.cost, outcome.bound) == ("optimal", best, best)


def test_out_of_time_there_is_a_solution_and_a_bound_below_it() -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.scattered(300, seed=1))
    outcome = minimise(problem, Limits(lambda: 0.0))
    assert outcome.status == "feasible"
    assert outcome.bound is not None
    assert outcome.cost is not None
    assert 0 < outcome.bound <= outcome.cost
