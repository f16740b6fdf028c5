from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import product
from random import Random

import pytest

from relayout.arrivals import Arrivals
from relayout.problem import Choice, Problem
from relayout.solve import solve

PLACES = ("left", "right", "middle")


def cheapest(
    made: tuple[str, int],
    wanted: set[tuple[str, int]],
    changes: Mapping[str, int],
    carries: Mapping[tuple[str, str], int],
) -> int:
    """The least cost of having a tensor in all these places and formats, by trying every sequence of steps."""
    formats = {f for _, f in (made, *wanted)}
    places = {place for place, _ in (made, *wanted)}
    start = frozenset([made])
    costs = {start: 0}
    queue = [(0, 0, start)]
    number = 0
    while queue:
        cost, _, have = heappop(queue)
        if cost > costs[have]:
            continue
        if wanted <= have:
            return cost
        steps = [((place, g), changes[place]) for place, _ in have for g in formats]
        steps += [((q, f), carries[made[0], q]) for place, f in have if place == made[0] for q in places - {made[0]}]
        for state, price in steps:
            more = have | {state}
            if more != have and cost + price < costs.get(more, 1 << 60):
                costs[more] = cost + price
                number += 1
                heappush(queue, (cost + price, number, more))
    raise AssertionError("nothing is out of reach")


class Network:
    """Nodes that may run at several places and in several formats, and one tensor that the first of them gives."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.formats = random.randint(1, 3)
        places = PLACES[: random.randint(2, 3)]
        self.changes = {place: random.randint(0, 9) for place in places}
        self.carries = {(p, q): random.randint(0, 12) for p in places for q in places}
        everything = [(place, f) for place in places for f in range(self.formats)]
        self.states = [
            tuple(random.sample(everything, random.randint(1, min(3, len(everything)))))
            for _ in range(random.randint(2, 4))
        ]
        self.costs = [tuple(random.randint(0, 5) for _ in states) for states in self.states]
        readers = tuple((1 + i, states) for i, states in enumerate(self.states[1:]))
        self.arrivals = Arrivals("x", self.formats, (0, self.states[0]), readers, self.change, self.carry)

    def change(self, place: str, source: int, target: int) -> int | None:
        return 0 if source == target else self.changes[place]

    def carry(self, source: str, target: str, _format: int) -> int:
        return self.carries[source, target]

    def problem(self) -> Problem:
        choices = [Choice(f"node {i}", costs) for i, costs in enumerate(self.costs)]
        values = tuple(self.arrivals.values(len(choices)))
        return Problem((*choices, *self.arrivals.choices()), values)

    def least(self) -> int:
        totals = []
        for picked in product(*(range(len(states)) for states in self.states)):
            own = sum(costs[a] for costs, a in zip(self.costs, picked, strict=True))
            made, *wanted = [states[a] for states, a in zip(self.states, picked, strict=True)]
            totals.append(own + cheapest(made, {*wanted}, self.changes, self.carries))
        return min(totals)


@pytest.mark.parametrize("seed", range(150))
def test_the_optimum_over_places_and_formats_is_that_of_trying_everything(seed: int) -> None:
    network = Network(seed)
    solution = solve(network.problem())
    assert (solution.status, solution.cost) == ("optimal", network.least())


@pytest.mark.parametrize("seed", range(0, 150, 10))
def test_cp_sat_agrees(seed: int) -> None:
    network = Network(seed)
    assert solve(network.problem(), engine="cp-sat").cost == network.least()


@pytest.mark.parametrize("seed", range(150))
def test_the_plan_for_an_assignment_costs_what_the_problem_says(seed: int) -> None:
    network = Network(seed)
    problem = network.problem()
    solution = solve(problem)
    assert solution.assignment is not None
    made, *wanted = [states[a] for states, a in zip(network.states, solution.assignment, strict=False)]
    by_place = {q: frozenset(f for place, f in wanted if place == q) for q, _ in wanted}
    plan = network.arrivals.plan(*made, by_place)
    spent = network.arrivals.cost(*made, by_place, plan)
    own = sum(costs[a] for costs, a in zip(network.costs, solution.assignment, strict=False))
    assert spent is not None
    assert own + spent == solution.cost
    completed = (*solution.assignment[: len(network.states)], *network.arrivals.completed(*made, by_place))
    assert solve(problem, hint=completed).cost == solution.cost


@pytest.mark.parametrize("made", [0, 1])
def test_of_two_ways_at_the_same_cost_it_crosses_as_it_is_made(made: int) -> None:
    stated = ((0, (("left", made),)), ((1, (("right", 1 - made),)),))
    arrivals = Arrivals("x", 2, *stated, lambda _place, f, g: int(f != g), lambda _from, _to, _format: 1)
    assert arrivals.plan("left", made, {"right": frozenset([1 - made])}) == {"right": (made,)}
