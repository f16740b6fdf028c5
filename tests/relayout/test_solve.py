from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.errors import UsageError
from relayout.problem import Choice, Problem, Use, Value, cost_of
from relayout.solve import solve


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> Problem:
    """Small problems of every kind: shared values, a value used twice, forbidden conversions, several outputs."""
    prices = st.one_of(st.integers(0, 6), st.none()) if draw(st.booleans()) else st.integers(0, 6)
    alternatives = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most))
    choices = [
        Choice(f"c{i}", tuple(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))))
        for i, n in enumerate(alternatives)
    ]
    values = []
    for v in range(draw(st.integers(0, most))):
        formats = draw(st.integers(1, 3))

        def use(formats: int = formats) -> Use:
            choice = draw(st.integers(0, len(choices) - 1))
            size = alternatives[choice]
            return Use(choice, tuple(draw(st.lists(st.integers(0, formats - 1), min_size=size, max_size=size))))

        conversion = tuple(tuple(0 if f == g else draw(prices) for g in range(formats)) for f in range(formats))
        consumers = tuple(use() for _ in range(draw(st.integers(0, 4))))
        values.append(Value(f"v{v}", use(), consumers, conversion))
    return Problem(tuple(choices), tuple(values))


def cheapest(problem: Problem) -> int | None:
    costs = [cost_of(problem, a) for a in product(*[range(len(choice.costs)) for choice in problem.choices])]
    return min([cost for cost in costs if cost is not None], default=None)


@settings(max_examples=1500, deadline=None)
@given(problems())
def test_the_cost_is_that_of_brute_force(problem: Problem) -> None:
    solution = solve(problem)
    assert solution.cost == cheapest(problem)
    assert solution.status == ("infeasible" if solution.cost is None else "optimal")
    assert solution.bound == solution.cost


def test_an_engine_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such engine"):
        solve(Problem((), ()), engine="simplex")
