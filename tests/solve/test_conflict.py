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

NO_WAY = ((0, None), (None, 0))


def without(problem: Problem, lifted: set[Requirement]) -> Problem:
    """The problem's question, some requirements lifted."""
    questions = feasibility_problem(problem, counted=False)
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
def test_what_is_lifted_is_enough_and_less_is_not(problem: Problem) -> None:
    solution = solve(problem)
    if solution.status != "infeasible":
        return
    lifted = {one.requirement for one in solution.relaxation}
    assert lifted
    assert cheapest(without(problem, lifted)) is not None
    for fewer in combinations(requirements_of(feasibility_problem(problem, counted=False)), len(lifted) - 1):
        assert cheapest(without(problem, set(fewer))) is None


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
def test_a_softened_problem_costs_what_lifting_costs(problem: Problem, seed: int) -> None:
    draw = Random(seed)
    every = requirements_of(feasibility_problem(problem, counted=False))
    hard = {one for one in every if draw.random() < 0.5}
    soft, adapters = soft_problem(feasibility_problem(problem, counted=False), hard, lambda _: 1)
    assert not hard & {requirement for requirement, _ in adapters}
    least = next(
        (
            count
            for count in range(len(every) + 1)
            for some in combinations([one for one in every if one not in hard], count)
            if cheapest(without(problem, set(some))) is not None
        ),
        None,
    )
    assert solve(soft).cost == least


def chain(length: int, pinned: dict[int, int]) -> Problem:
    """Choices that each pass their format on; some have only one, and nothing is converted."""
    choices = tuple(Choice(f"c{c}", (0,) if c in pinned else (0, 0)) for c in range(length))

    def use(choice: int) -> Use:
        return Use(choice, (pinned[choice],) if choice in pinned else (0, 1))

    return Problem(choices, tuple(Item(f"v{c}", use(c), (use(c + 1),), NO_WAY) for c in range(length - 1)))


def test_of_a_long_chain_only_what_lies_between_the_two_that_contradict_each_other_is_named() -> None:
    solution = solve(chain(60, {20: 0, 40: 1}))
    assert solution.conflict == tuple(Requirement(v, k) for v in range(20, 40) for k in (0, 1))


def test_what_pins_an_operand_is_lifted_before_what_passes_it_on() -> None:
    (lifted,) = solve(chain(30, {10: 0, 20: 1})).relaxation
    assert lifted.requirement in (Requirement(10, 0), Requirement(19, 1))


def test_of_equally_few_to_lift_those_are_that_make_for_the_cheapest_solution() -> None:
    for costs, lifted in (((9, 0), Requirement(0, 0)), ((0, 9), Requirement(0, 1))):
        choices = (Choice("gives 0", (0,)), Choice("wants 1", (0,)), Choice("wants either", costs))
        value = Item("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (0, 1))), NO_WAY)
        assert [one.requirement for one in solve(Problem(choices, (value,))).relaxation] == [lifted]


def test_two_separate_contradictions_need_two_to_be_lifted() -> None:
    one, other = chain(4, {0: 0, 3: 1}), chain(4, {0: 1, 3: 0})
    moved = tuple(
        Item(
            value.name,
            Use(value.producer.choice + 4, value.producer.formats),
            tuple(Use(use.choice + 4, use.formats) for use in value.consumers),
            value.conversion,
        )
        for value in other.items
    )
    solution = solve(Problem((*one.choices, *other.choices), (*one.items, *moved)))
    assert len(solution.relaxation) == 2
    assert len(solution.conflict) == 6


def test_the_format_that_a_lifted_operand_has_then_is_told() -> None:
    (lifted,) = solve(chain(2, {0: 0, 1: 1})).relaxation
    assert lifted.format == (1 if lifted.requirement.use == 0 else 0)


def test_a_choice_outside_wants_nothing_and_produces_what_suits() -> None:
    choices = (Choice("p", (0,)), Choice("a", (0,)), Choice("b", (0,)))
    problem = Problem(choices, (Item("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (0,))), NO_WAY),))
    producer, first, second = requirements_of(problem)
    assert cheapest(problem) is None
    for kept in ((first,), (producer, second), (second,)):
        assert cost_of(relaxed(problem, kept), (0,) * len(relaxed(problem, kept).choices)) in (0, None)
        assert cheapest(relaxed(problem, kept)) == 0
    assert cheapest(relaxed(problem, (producer, first))) is None
    assert cheapest(relaxed(problem, (first, second))) is None


def test_out_of_time_nothing_is_claimed_to_be_infeasible_that_was_not_proved_so() -> None:
    solution = solve(chain(60, {20: 0, 40: 1}), time_limit=0.0)
    assert (solution.status, solution.assignment, solution.conflict) == ("unknown", None, ())
