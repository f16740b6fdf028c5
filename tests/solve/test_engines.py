"""Both engines and the greedy pass are run on their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_problems import cheapest, problems

from relayout.solve import engines, kernel_search
from relayout.solve.deadline import Deadline
from relayout.solve.engines import by_cpsat, by_reduction, free_choices, greedy, least_own_costs
from relayout.solve.or_tools import Outcome
from relayout.solve.problem import Choice, Item, Problem, Use, cost_of
from relayout.solve.residual import Residual

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


def rings(formats: int) -> Problem:
    """Four rings of four choices, in which each is read by the next two: every choice has three neighbours."""
    every = tuple(range(formats))
    conversion = tuple([tuple([0 if f == g else 7 for g in every]) for f in every])
    choices = [Choice(str(c), tuple([(3 * c + 5 * f) % 11 for f in every])) for c in range(16)]
    items = []
    for c in range(16):
        first = c - c % 4
        readers = [Use(first + (c + d) % 4, every) for d in (1, 2)]
        items.append(Item(str(c), Use(c, every), tuple(readers), conversion))
    return Problem(tuple(choices), tuple(items))


def test_items_with_two_consumers_of_many_formats_are_eliminated_without_set_variables() -> None:
    problem = rings(40)
    answer = by_reduction(problem, Deadline())
    assert (answer.status, answer.engine, answer.bound) == ("optimal", "elimination", 60)
    assert answer.assignment is not None
    assert cost_of(problem, answer.assignment) == 60


@pytest.mark.parametrize("is_first", [True, False])
@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_the_network_without_set_variables_has_the_same_optimum(problem: Problem, is_first: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_first:
            patch.setattr(engines, "MANY_FORMATS", 0)
        else:
            # All but chains are left to the search, and it gives up.
            patch.setattr(engines, "CELLS", 0)
            patch.setattr(engines, "ALL_SUMS", -1)
            patch.setattr(engines, "SOON_SUMS", -1)
            patch.setattr(engines, "SUMS_PER_CELL", 1e-9)
            patch.setattr(kernel_search, "minimise", lambda *_: Outcome("unknown", None, None))
        answer = by_reduction(problem, Deadline())
    best = cheapest(problem)
    assert answer.engine == "elimination"
    assert (answer.status, answer.bound) == (("infeasible", None) if best is None else ("optimal", best))
    if answer.assignment is not None:
        assert cost_of(problem, answer.assignment) == best


def test_the_search_takes_over_where_elimination_would_leave_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CELLS", 1 << 10)
    assert by_reduction(rings(12), Deadline()).engine == "elimination"
    monkeypatch.setattr(engines, "WIDE_LEFT", 0)
    answer = by_reduction(rings(12), Deadline())
    assert (answer.status, answer.engine, answer.bound) == ("optimal", "elimination+cp-sat", 60)


def test_the_search_comes_first_where_elimination_would_leave_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    search = kernel_search.minimise
    monkeypatch.setattr(kernel_search, "minimise", lambda *given: asked.append(given[-1]) or search(*given))
    monkeypatch.setattr(engines, "CELLS", 1 << 10)
    monkeypatch.setattr(engines, "LARGEST_TABLE", 1)
    monkeypatch.setattr(engines, "SUMS_PER_CELL", 1e-3)
    answer = by_reduction(rings(12), Deadline())
    assert (answer.status, answer.bound, len(asked)) == ("optimal", 60, 1)
    assert asked[0]
    # A table larger than that is not made: the search has no end but the time limit.
    monkeypatch.setattr(engines, "WIDE_TABLE", 1)
    answer = by_reduction(rings(12), Deadline())
    assert (answer.status, answer.bound, asked[1]) == ("optimal", 60, None)


def test_a_search_that_gives_up_is_finished_by_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MANY_FORMATS", 100)
    monkeypatch.setattr(engines, "SOON_SUMS", -1)
    asked: list[int | None] = []

    def gives_up(
        problem: Problem, kernel: Residual, deadline: Deadline, known: int | None, rounds: int | None
    ) -> Outcome:
        asked.append(rounds)
        return Outcome("feasible", None, 3)

    monkeypatch.setattr(kernel_search, "minimise", gives_up)
    monkeypatch.setattr(engines, "SUMS_PER_CELL", 1)
    answer = by_reduction(rings(40), Deadline())
    assert (answer.status, answer.engine, answer.bound) == ("optimal", "elimination", 60)
    assert len(asked) == 1
    assert asked[0]
    # The limit would end before the elimination: the search goes on.
    monkeypatch.setattr(engines, "SUMS_PER_SECOND", 1)
    answer = by_reduction(rings(40), Deadline(600))
    assert asked[1] is None
    assert (answer.status, answer.engine) == ("feasible", "elimination+cp-sat")


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
