"""Both engines and the greedy pass are run on their own."""

from __future__ import annotations

from hypothesis import given, settings
from random_problems import cheapest, problems

from relayout.solve.deadline import Deadline
from relayout.solve.engines import by_cpsat, by_reduction, free_choices, greedy, least_own_costs
from relayout.solve.problem import Choice, Item, Problem, Use, cost_of

TWO = ((0, 3), (5, 0))
PROBLEM = Problem(
    (Choice("a", (0, 1)), Choice("b", (0,))),
    (Item("v", Use(0, (0, 1)), (Use(1, (1,)),), TWO),),
)


def test_both_engines_find_the_optimum() -> None:
    reduced, whole = by_reduction(PROBLEM, Deadline()), by_cpsat(PROBLEM, Deadline(), None, None)
    assert (reduced.status, reduced.assignment, reduced.bound, reduced.engine) == ("optimal", (1, 0), 1, "elimination")
    assert (whole.status, whole.assignment, whole.bound, whole.engine) == ("optimal", (1, 0), 1, "cp-sat")
    assert free_choices(PROBLEM) == 1


def test_after_the_deadline_the_answer_is_greedy() -> None:
    answer = by_reduction(PROBLEM, Deadline(0.0))
    assert (answer.status, answer.assignment) == ("feasible", (0, 0))
    assert answer.bound == least_own_costs(PROBLEM) == 0


@settings(max_examples=200, deadline=None)
@given(problems())
def test_a_greedy_assignment_is_feasible_and_never_cheaper_than_the_optimum(problem: Problem) -> None:
    assignment, best = greedy(problem), cheapest(problem)
    if assignment is not None:
        cost = cost_of(problem, assignment)
        assert cost is not None
        assert best is not None
        assert least_own_costs(problem) <= best <= cost


def test_an_infeasible_problem_has_a_seed_in_its_contradiction() -> None:
    item = Item("v", Use(1, (0,)), (Use(2, (1,)),), ((0, None), (None, 0)))
    problem = Problem((Choice("free", (0,)), Choice("a", (0,)), Choice("b", (0,))), (item,))
    answer = by_reduction(problem, Deadline())
    assert (answer.status, answer.assignment) == ("infeasible", None)
    assert answer.seed in (1, 2)
    assert greedy(problem) is None
