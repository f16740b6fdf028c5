from __future__ import annotations

from hypothesis import given, settings
from random_problems import cheapest, problems

from relayout.conflict import relaxed
from relayout.problem import Choice, Problem, Use, Value
from relayout.solve import solve


@settings(max_examples=500, deadline=None)
@given(problems())
def test_a_conflict_cannot_be_met_and_without_any_of_it_can(problem: Problem) -> None:
    solution = solve(problem)
    if solution.status != "infeasible":
        assert solution.conflict == ()
        return
    conflict = solution.conflict
    assert conflict
    assert solve(relaxed(problem, sorted(conflict))).status == "infeasible"
    for choice in conflict:
        assert solve(relaxed(problem, [other for other in conflict if other != choice])).status == "optimal"


def test_of_a_long_chain_only_the_two_that_contradict_each_other_are_named() -> None:
    length = 60
    choices = tuple(Choice(f"c{c}", (0,) if c in (20, 40) else (0, 0)) for c in range(length))
    no_way = ((0, None), (None, 0))

    def use(choice: int) -> Use:
        return Use(choice, {20: (0,), 40: (1,)}.get(choice, (0, 1)))

    values = tuple(Value(f"v{c}", use(c), (use(c + 1),), no_way) for c in range(length - 1))
    solution = solve(Problem(choices, values))
    assert solution.conflict == tuple(range(20, 41))


def test_a_choice_outside_wants_nothing_and_produces_what_suits() -> None:
    choices = (Choice("p", (3,)), Choice("a", (5,)), Choice("b", (7,)))
    values = (Value("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (0,))), ((0, None), (None, 0))),)
    problem = Problem(choices, values)
    assert cheapest(problem) is None
    for kept in ((1,), (0, 2), (2,)):
        assert cheapest(relaxed(problem, kept)) == 0
    assert cheapest(relaxed(problem, (0, 1))) is None
    assert cheapest(relaxed(problem, (1, 2))) is None
