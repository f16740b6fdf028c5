"""Transfers between devices are chosen and planned at the least cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import product
from random import Random

import pytest

from relayout.formulate.transfers import State, Transfer, TransferChoices
from relayout.solve.problem import Choice, Problem
from relayout.solve.solver import solve

PLACES = ("left", "right", "middle")


def cheapest(
    given: State,
    wanted: set[tuple[str, int]],
    conversions: Mapping[str, Sequence[Sequence[int | None]]],
    transfers: Mapping[tuple[str, str], Sequence[int]],
) -> int | None:
    """The least cost of having a tensor in all these devices and formats, by trying every sequence of steps; None where
    that cannot be."""
    devices = {*given.devices, *(device for device, _ in wanted)}
    start = frozenset((device, given.format) for device in given.devices)
    costs = {start: 0}
    queue = [(0, 0, start)]
    number = 0
    while queue:
        cost, _, have = heappop(queue)
        if cost > costs[have]:
            continue
        if wanted <= have:
            return cost
        steps = [((p, g), cost) for p, f in have for g, cost in enumerate(conversions[p][f]) if cost is not None]
        leaving = [(p, f) for p, f in have if p in given.devices and not (given.is_memory and f == given.format)]
        steps += [((q, f), transfers[p, q][f]) for p, f in leaving for q in devices - {*given.devices}]
        for state, price in steps:
            more = have | {state}
            if more != have and cost + price < costs.get(more, 1 << 60):
                costs[more] = cost + price
                number += 1
                heappush(queue, (cost + price, number, more))
    return None


class Network:
    """Nodes that may run at several devices and in several formats, and one tensor that the first of them gives.

    `left_out`: each may be at all devices at once, and the first is no node but the memory that lies there. `reuses`:
    prices differ by format, some conversions do not exist, and a copy may be made from a copy.
    """

    def __init__(self, seed: int, *, left_out: bool = False, reuses: bool = False) -> None:
        random = Random(seed)
        self.formats = random.randint(1, 3)
        devices = PLACES[: random.randint(2, 3)]
        changes = {device: random.randint(0, 9) for device in devices}
        carries = {(p, q): random.randint(0, 12) for p in devices for q in devices}
        region_ports = [[p] for p in devices] + [list(devices)] * left_out
        everything = [State(tuple(at), f, bool(left_out)) for at in region_ports for f in range(self.formats)]
        self.states = [
            tuple(random.sample(everything, random.randint(1, min(3, len(everything)))))
            for _ in range(random.randint(2, 4))
        ]
        self.costs = [tuple(random.randint(0, 5) for _ in states) for states in self.states]
        readers = tuple((1 + i, states) for i, states in enumerate(self.states[1:]))
        numbers = range(self.formats)
        self.conversions = {
            device: tuple(tuple(0 if f == g else change for g in numbers) for f in numbers)
            for device, change in changes.items()
        }
        self.carries = {pair: (cost,) * self.formats for pair, cost in carries.items()}
        if reuses:
            prices = (None, 0, 1, 2, 4, 9, 20)
            self.conversions = {
                device: tuple(tuple(0 if f == g else random.choice(prices) for g in numbers) for f in numbers)
                for device in devices
            }
            self.carries = {pair: tuple(random.randint(0, 12) for _ in numbers) for pair in carries}
        reusing = frozenset(devices if reuses else ())
        ends = (0, self.states[0]), readers
        self.transfers = TransferChoices("x", self.formats, *ends, self.conversions, self.carries, reusing)

    def problem(self) -> Problem:
        choices = [Choice(f"node {i}", costs) for i, costs in enumerate(self.costs)]
        items = tuple(self.transfers.items(len(choices)))
        return Problem((*choices, *self.transfers.choices()), items)

    def least(self) -> int | None:
        totals = []
        for picked in product(*(range(len(states)) for states in self.states)):
            own = sum(costs[a] for costs, a in zip(self.costs, picked, strict=True))
            given, *readers = [states[a] for states, a in zip(self.states, picked, strict=True)]
            wanted = {(device, state.format) for state in readers for device in state.devices}
            spent = cheapest(given, wanted, self.conversions, self.carries)
            totals += [own + spent] if spent is not None else []
        return min(totals, default=None)


def networks(count: int, step: int = 1) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "network",
        [
            Network(seed, left_out=left_out, reuses=reuses)
            for reuses in (False, True)
            for left_out in (False, True)
            for seed in range(0, count, step)
        ],
    )


@networks(150)
def test_the_optimum_over_devices_and_formats_is_that_of_brute_force(network: Network) -> None:
    solution = solve(network.problem())
    least = network.least()
    assert (solution.status, solution.cost) == (("optimal", least) if least is not None else ("infeasible", None))


@networks(150, 10)
def test_cp_sat_agrees(network: Network) -> None:
    assert solve(network.problem(), engine="cp-sat").cost == network.least()


@networks(150)
def test_the_plan_for_an_assignment_costs_the_same_as_in_the_problem(network: Network) -> None:
    problem = network.problem()
    solution = solve(problem)
    if solution.assignment is None:
        assert network.least() is None
        return
    given, *readers = [states[a] for states, a in zip(network.states, solution.assignment, strict=False)]
    used = {device for reader in readers for device in reader.devices}
    by_device = {q: frozenset(r.format for r in readers if q in r.devices) for q in used}
    plan = network.transfers.plan(given, by_device)
    assert plan is not None
    spent = network.transfers.cost(given, by_device, plan)
    own = sum(costs[a] for costs, a in zip(network.costs, solution.assignment, strict=False))
    assert spent is not None
    assert own + spent == solution.cost
    chosen = network.transfers.chosen(given, by_device)
    assert chosen is not None
    completed = (*solution.assignment[: len(network.states)], *chosen)
    assert solve(problem, hint=completed).cost == solution.cost


@pytest.mark.parametrize("made", [0, 1])
def test_of_two_transfers_at_the_same_cost_the_one_in_the_producers_format_is_taken(made: int) -> None:
    stated = ((0, (State(("left",), made),)), ((1, (State(("right",), 1 - made),)),))
    conversions = dict.fromkeys(("left", "right"), ((0, 1), (1, 0)))
    costs = {("left", "right"): (1, 1), ("right", "left"): (1, 1)}
    choices = TransferChoices("x", 2, *stated, conversions, costs)
    plan = choices.plan(State(("left",), made), {"right": frozenset([1 - made])})
    assert plan == {"right": Transfer("left", (made,))}
