"""Conflicts are minimal unsatisfiable subsets, compared with brute force."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cheapest, problems, random_problem

from relayout.solve.conflict import Requirement, feasibility_problem, relaxed, requirements_of, soft_problem
from relayout.solve.problem import Choice, Item, Problem, Use, cost_of
from relayout.solve.solver import solve

NO_CONVERSION = ((0, None), (None, 0))


def without(questions: Problem, lifted: set[Requirement]) -> Problem:
    """A feasibility problem, some requirements lifted."""
    return relaxed(questions, [one for one in requirements_of(questions) if one not in lifted])


def least_conflict(problem: Problem, most: int | None, *, size: int) -> int:
    """How many requirements the smallest conflict has, by trying all sets of up to `size`."""
    questions = feasibility_problem(problem, counted=most is not None)
    for count in range(size):
        for some in combinations(requirements_of(questions), count):
            cost = cheapest(relaxed(questions, some))
            if cost is None or (most is not None and cost > most):
                return count
    return size


@settings(max_examples=400, deadline=None)
@given(problems())
def test_a_conflict_cannot_be_met_and_without_any_of_it_can(problem: Problem) -> None:
    solution = solve(problem)
    if solution.status != "infeasible":
        assert (solution.conflict, solution.relaxation) == ((), ())
        return
    assert solution.conflict
    questions = feasibility_problem(problem, counted=False)
    assert cheapest(relaxed(questions, solution.conflict)) is None
    for one in solution.conflict:
        assert cheapest(relaxed(questions, [other for other in solution.conflict if other != one])) is not None


@pytest.mark.parametrize("seed", range(60))
def test_no_conflict_is_smaller(seed: int) -> None:
    draw = Random(seed)
    problem = random_problem(draw, most=4)
    while cheapest(problem) is not None:
        problem = random_problem(draw, most=4)
    solution = solve(problem)
    assert len(solution.conflict) == least_conflict(problem, None, size=len(solution.conflict))


@settings(max_examples=300, deadline=None)
@given(problems(most=5))
def test_the_dropped_requirements_suffice_and_fewer_do_not(problem: Problem) -> None:
    solution = solve(problem)
    if solution.status != "infeasible":
        return
    lifted = {one.requirement for one in solution.relaxation}
    assert lifted
    questions = feasibility_problem(problem, counted=False)
    assert cheapest(without(questions, lifted)) is not None
    for fewer in combinations(requirements_of(questions), len(lifted) - 1):
        assert cheapest(without(questions, set(fewer))) is None


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(0, 2))
def test_a_limit_on_conversions_has_its_conflict_and_the_least_limit_that_can_be_kept(
    problem: Problem, most: int
) -> None:
    solution = solve(problem, max_conversions=most)
    fewest = cheapest(feasibility_problem(problem, counted=True))
    assert solution.over_limit == (fewest is not None and fewest > most)
    if not solution.over_limit:
        assert solution.fewest_conversions is None
        return
    assert solution.fewest_conversions == fewest
    questions = feasibility_problem(problem, counted=True)

    def kept(requirements: list[Requirement]) -> bool:
        cost = cheapest(relaxed(questions, requirements))
        return cost is not None and cost <= most

    conflict = list(solution.conflict)
    assert not kept(conflict)
    assert all(kept([other for other in conflict if other != one]) for one in conflict)


@pytest.mark.parametrize("seed", range(20))
def test_no_conflict_with_a_limit_is_smaller(seed: int) -> None:
    draw = Random(seed)
    while True:
        problem = random_problem(draw, most=3)
        questions = feasibility_problem(problem, counted=True)
        fewest = cheapest(questions)
        # Few enough to try all sets of them.
        if fewest and len(requirements_of(questions)) <= 10:
            break
    solution = solve(problem, max_conversions=fewest - 1)
    assert len(solution.conflict) == least_conflict(problem, fewest - 1, size=len(solution.conflict))


@settings(max_examples=200, deadline=None)
@given(problems(most=4), st.integers(0, 2**32))
def test_a_soft_problem_costs_what_its_dropped_requirements_cost(problem: Problem, seed: int) -> None:
    draw = Random(seed)
    questions = feasibility_problem(problem, counted=False)
    every = requirements_of(questions)
    hard = {one for one in every if draw.random() < 0.5}
    # The oracle tries all subsets of the others.
    hard |= set([one for one in every if one not in hard][8:])
    soft, adapters = soft_problem(questions, hard, lambda _: 1)
    assert not hard & {requirement for requirement, _ in adapters}
    least = next(
        (
            count
            for count in range(len(every) + 1)
            for some in combinations([one for one in every if one not in hard], count)
            if cheapest(without(questions, set(some))) is not None
        ),
        None,
    )
    assert solve(soft).cost == least


def test_a_dropped_requirement_of_a_choice_accepts_any_format() -> None:
    choices = (Choice("p", (0,)), Choice("a", (0,)), Choice("b", (0,)))
    problem = Problem(choices, (Item("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (0,))), NO_CONVERSION),))
    producer, first, second = requirements_of(problem)
    assert cheapest(problem) is None
    for kept in ((first,), (producer, second), (second,)):
        assert cost_of(relaxed(problem, kept), (0,) * len(relaxed(problem, kept).choices)) in (0, None)
        assert cheapest(relaxed(problem, kept)) == 0
    assert cheapest(relaxed(problem, (producer, first))) is None
    assert cheapest(relaxed(problem, (first, second))) is None
