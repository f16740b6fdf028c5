"""`solve` finds the optimum of brute force with both engines, under limits too."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cheapest, paid_conversions, problems, random_problem, synthetic

from relayout.errors import InputError, UsageError
from relayout.solve.problem import Choice, Item, Problem, Use, cost_of
from relayout.solve.solver import solve


@settings(max_examples=1000, deadline=None)
@given(problems(reuses=True))
def test_the_cost_is_that_of_brute_force(problem: Problem) -> None:
    solution = solve(problem)
    assert solution.cost == solution.bound == cheapest(problem)
    assert solution.status == ("infeasible" if solution.cost is None else "optimal")
    if solution.assignment is not None:
        assert cost_of(problem, solution.assignment) == solution.cost


@settings(max_examples=300, deadline=None)
@given(problems(most=4, most_formats=6, reuses=True))
def test_the_cost_is_that_of_brute_force_with_many_formats(problem: Problem) -> None:
    assert solve(problem).cost == cheapest(problem)


@pytest.mark.parametrize("is_finished", [False, True])
@settings(max_examples=100, deadline=None)
@given(problem=problems(most=7, reuses=True))
def test_the_cost_is_that_of_brute_force_where_a_kernel_is_left(is_finished: bool, problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relayout.solve.engines.CELLS", 0)
        patch.setattr("relayout.solve.engines.LARGEST_TABLE", 1 << 24 if is_finished else -1)
        solution = solve(problem)
    assert solution.cost == cheapest(problem)
    assert solution.status == ("infeasible" if solution.cost is None else "optimal")
    assert not is_finished or solution.engine == "elimination"


@pytest.mark.parametrize("kind", ["blocks", "dense", "exchange", "scattered"])
@pytest.mark.parametrize("layouts", [2, 4])
def test_both_engines_agree_on_networks_of_middle_size(kind: str, layouts: int) -> None:
    generators = synthetic()
    problem = generators.problem_of(generators.KINDS[kind](90, layouts=layouts, seed=5))
    whole = solve(problem, engine="cp-sat")
    assert (whole.status, whole.engine) == ("optimal", "cp-sat")
    assert solve(problem).cost == whole.cost


@pytest.mark.parametrize("seed", range(20))
def test_both_engines_agree_on_random_problems_too_large_to_try_out(seed: int) -> None:
    problem = random_problem(Random(seed), most=25, most_formats=4, reuses=seed % 2 == 0)
    solution, whole = solve(problem), solve(problem, engine="cp-sat")
    assert (solution.status, solution.cost) == (whole.status, whole.cost)


def test_networks_of_blocks_are_finished_by_elimination() -> None:
    generators = synthetic()
    solution = solve(generators.problem_of(generators.blocks(2000, seed=2)))
    assert (solution.status, solution.engine, solution.kernel_choices) == ("optimal", "elimination", 0)
    assert solution.choices > 1000


def test_a_residual_chain_whose_first_skip_is_the_input_needs_two_conversions() -> None:
    blocks = 1000
    layouts = ((0, 1), (1, 0))
    choices = [Choice("input", (0,))]
    uses: dict[int, list[Use]] = {0: []}
    source, formats = 0, (0,)
    produced = {0: formats}
    for _ in range(blocks):
        conv, add = len(choices), len(choices) + 1
        choices += [Choice("conv", (0,)), Choice("add", (0, 0))]
        uses[source] += [Use(conv, (1,)), Use(add, (0, 1))]
        uses[conv], uses[add] = [Use(add, (0, 1))], []
        produced[conv], produced[add] = (1,), (0, 1)
        source = add
    choices.append(Choice("output", (0,)))
    uses[source].append(Use(len(choices) - 1, (0,)))
    values = tuple(Item(f"v{c}", Use(c, produced[c]), tuple(some), layouts) for c, some in uses.items())
    assert solve(Problem(tuple(choices), values)).cost == 2


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 3), st.sampled_from(["auto", "cp-sat"]))
def test_a_limit_on_conversions_holds_at_the_least_cost(problem: Problem, most: int, engine: str) -> None:
    solution = solve(problem, engine=engine, max_conversions=most)
    assert solution.cost == cheapest(problem, most)
    if solution.assignment is not None:
        assert paid_conversions(problem, solution.assignment) <= most


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 3))
def test_under_a_limit_the_answer_is_never_worse_than_a_hint_that_meets_it(problem: Problem, most: int) -> None:
    best = solve(problem, max_conversions=most)
    if best.assignment is not None:
        hinted = solve(problem, time_limit=0.0, hint=best.assignment, max_conversions=most)
        assert hinted.cost == best.cost


@settings(max_examples=100, deadline=None)
@given(problems(most=7, reuses=True), st.integers(0, 2) | st.none())
def test_the_listener_is_told_the_costs_of_solutions_alone(problem: Problem, most: int | None) -> None:
    told: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relayout.solve.engines.CELLS", 0)
        patch.setattr("relayout.solve.engines.LARGEST_TABLE", -1)
        solution = solve(problem, max_conversions=most, improved=lambda cost, bound: told.append((cost, bound)))
    if solution.cost is None:
        assert not told
    assert all(bound <= solution.cost <= cost for cost, bound in told if solution.cost is not None)


def test_the_engine_that_is_asked_for_answers_under_a_limit_too() -> None:
    assert solve(hard(), engine="cp-sat", max_conversions=1000, time_limit=1.0).engine == "cp-sat"


def hard() -> Problem:
    generators = synthetic()
    problem: Problem = generators.problem_of(generators.scattered(300, seed=1))
    return problem


def test_out_of_time_the_answer_is_feasible_with_a_bound() -> None:
    solution = solve(hard(), time_limit=0.0)
    assert solution.status == "feasible"
    assert solution.bound is not None
    assert solution.cost is not None
    assert solution.bound < solution.cost


def test_the_answer_is_never_worse_than_the_hint() -> None:
    problem = hard()
    best = solve(problem)
    assert best.status == "optimal"
    hinted = solve(problem, time_limit=0.0, hint=best.assignment)
    assert (hinted.cost, hinted.assignment) == (best.cost, best.assignment)
    assert solve(problem, engine="cp-sat", time_limit=0.0, hint=best.assignment).cost == best.cost


def test_a_hint_that_is_not_allowed_is_ignored() -> None:
    choices = (Choice("a", (0, 5)), Choice("b", (0,)))
    problem = Problem(choices, (Item("v", Use(0, (0, 1)), (Use(1, (1,)),), ((0, None), (None, 0))),))
    assert solve(problem, hint=(0, 0)).assignment == (1, 0)


@pytest.mark.parametrize("engine", ["auto", "cp-sat"])
@pytest.mark.parametrize("hint", [(0, 1), (1, 0)])
def test_of_equal_solutions_the_hint_is_taken(hint: tuple[int, int], engine: str) -> None:
    choices = (Choice("a", (0, 1)), Choice("b", (1, 2)))
    problem = Problem(choices, (Item("v", Use(0, (0, 1)), (Use(1, (1, 0)),), ((0, 1), (1, 0))),))
    solution = solve(problem, engine=engine, hint=hint)
    assert (solution.status, solution.assignment, solution.cost) == ("optimal", hint, 2)


def test_a_hint_over_the_limit_takes_no_place() -> None:
    choices = (Choice("a", (0, 1)), Choice("b", (0,)))
    problem = Problem(choices, (Item("v", Use(0, (0, 1)), (Use(1, (1,)),), ((0, 1), (1, 0))),))
    solution = solve(problem, hint=(0, 0), max_conversions=0)
    assert (solution.status, solution.assignment) == ("optimal", (1, 0))


def test_of_equal_alternatives_the_first_is_taken() -> None:
    choices = tuple(Choice(f"c{c}", (1, 1, 1)) for c in range(4))
    same = tuple(tuple(0 if a == b else 9 for b in range(3)) for a in range(3))
    values = tuple(Item(f"v{c}", Use(c, (0, 1, 2)), (Use(c + 1, (0, 1, 2)),), same) for c in range(3))
    assert solve(Problem(choices, values)).assignment == (0, 0, 0, 0)


def test_the_same_problem_has_the_same_solution_whatever_the_hash_seed() -> None:
    script = (
        "from random_problems import synthetic; from relayout.solve.solver import solve; s = synthetic();"
        "print([solve(s.problem_of(make(150, seed=3))).assignment for make in s.KINDS.values()])"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_costs_just_below_the_limit_are_exact() -> None:
    huge = (1 << 58) + 1
    choices = (Choice("a", (huge, huge - 1)), Choice("b", (3, 1)))
    values = (Item("v", Use(0, (0, 1)), (Use(1, (0, 1)),), ((0, huge), (huge, 0))),)
    for engine in ("auto", "cp-sat"):
        solution = solve(Problem(choices, values), engine=engine)
        assert (solution.status, solution.cost) == ("optimal", huge - 1 + 1)
    with pytest.raises(InputError, match="too large"):
        solve(Problem((Choice("a", (1 << 60,)),), ()))
    with pytest.raises(InputError, match="too large"):
        solve(Problem((Choice("a", (1 << 60,)),), ()), engine="cp-sat")


def test_nothing_to_choose_costs_nothing() -> None:
    solution = solve(Problem((), ()))
    assert (solution.status, solution.assignment, solution.cost, solution.bound) == ("optimal", (), 0, 0)


def test_an_engine_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        solve(Problem((), ()), engine="simplex")
