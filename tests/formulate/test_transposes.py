"""The Transpose between two formats, found by the places of their factors, is that found from the atoms."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise, permutations
from math import prod

import pytest
from graphs import Net, assert_same_numbers

from relayout import Backend, legalize
from relayout.backend import TensorType
from relayout.candidates.backend_conversions import Transposition, transposition
from relayout.formulate.transposes import Transposes, cheapest_steps
from relayout.layout.conversion import moves
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form, order_of

EXTENTS: dict[tuple[Extent, ...], tuple[Extent, ...]] = {
    (4, 6, 8): (4, 6, 8),
    (1, 12, 5, 16): (1, 12, 5, 16),
    ("n", 8, 6): (3, 8, 6),
    ("n", 8, None, 4): (1, 8, 64, 4),
    (0, 4, 6): (0, 4, 6),
}


def formats_of(rng: random.Random, extents: tuple[Extent, ...]) -> MemoryFormat:
    """The axes in a random order, some of known extent split into two or three factors."""
    atoms: list[Atom] = []
    for axis, extent in enumerate(extents):
        known = extent if isinstance(extent, int) else 1
        inner = [d for d in range(2, known) if known % d == 0]
        ends = sorted(set(rng.choices(inner, k=rng.randint(0, 2)))) if inner else []
        ends = [end for n, end in enumerate(ends) if n == 0 or end % ends[n - 1] == 0]
        if extent != 1:
            atoms += [Atom(axis, low, high) for low, high in zip([1, *ends], [*ends, 0], strict=True)]
    return normal_form(tuple(rng.sample(atoms, len(atoms))), extents)


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_the_transpose_by_places_is_that_by_atoms(extents: tuple[Extent, ...]) -> None:
    rng, sizes = random.Random(7), EXTENTS[extents]
    transposes, compared = Transposes(extents, sizes), 0
    formats = [formats_of(rng, extents) for _ in range(60)]
    cut = [transposes.cut(each) for each in formats]
    for source, given in zip(formats, cut, strict=True):
        for target, wanted in zip(formats, cut, strict=True):
            found = transposes.between(given, wanted)
            if source == target or not found:
                continue
            steps = moves(source, target, extents)
            assert [kind for kind, _, _ in steps] == ["transpose"] * len(found)
            for (_, before, after), turn in zip(steps, found, strict=True):
                expected = transposition(extents, sizes, before, after)
                assert expected == (turn if len(turn.perm) <= MAX_RANK else None)
            compared += 1
    assert compared > 200


def test_factors_that_do_not_nest_take_two_transposes_and_zeros_other_operators() -> None:
    transposes = Transposes((4, 12), (4, 12))
    by_four, by_six = (Atom(1, 4), Atom(0), Atom(1, 1, 4)), (Atom(1, 6), Atom(0), Atom(1, 1, 6))
    padded, whole = (Atom(0), Atom(1, 1, 16)), order_of((1, 0))
    for source, target in ((padded, whole), (whole, padded)):
        assert transposes.between(transposes.cut(source), transposes.cut(target)) == ()
    (one,) = transposes.between(transposes.cut(whole), transposes.cut(by_four))
    assert (one.shape, one.perm) == ((3, 4, 4), (0, 2, 1))
    two = transposes.between(transposes.cut(by_four), transposes.cut(by_six))
    assert [(turn.shape, turn.perm) for turn in two] == [((3, 4, 4), (1, 0, 2)), ((4, 2, 6), (1, 0, 2))]


@cache
def turn_between(order: tuple[int, ...], further: tuple[int, ...], shape: tuple[int, ...]) -> Transposition:
    found = transposition(shape, shape, order_of(order), order_of(further))
    assert found is not None
    return found


def cheapest_by_relaxation(turn: Transposition, shape: tuple[int, ...], price: Callable[[Transposition], int]) -> int:
    """The cost of the cheapest sequence of steps, by going over all orders again and again."""
    orders = list(permutations(range(len(shape))))
    cost = {order: price(turn_between(orders[0], order, shape)) if order == turn.perm else 0 for order in orders}
    cost = {order: 0 if order == orders[0] else cost[order] or 10**9 for order in orders}
    for _ in orders:
        for order in orders:
            exchanged = [
                (*order[:a], *order[b:c], *order[a:b], *order[c:]) for a, b, c in combinations(range(len(order) + 1), 3)
            ]
            in_rows = [each for each in orders if each[-1] == order[-1] and each != order]
            for further in (*exchanged, *in_rows):
                cost[further] = min(cost[further], cost[order] + price(turn_between(order, further, shape)))
    return cost[turn.perm]


@pytest.mark.parametrize("seed", range(8))
def test_the_cheapest_steps_are_those_found_by_going_over_all_orders(seed: int) -> None:
    rng, shape, prices = random.Random(seed), (3, 5, 7, 2)[: 3 + seed % 2], dict[Transposition, int]()

    def price(step: Transposition) -> int:
        return prices.setdefault(step, rng.choice((2, 2, 40)))

    in_steps = 0
    for perm in permutations(range(len(shape))):
        turn = turn_between(tuple(range(len(shape))), perm, shape) if perm != tuple(range(len(shape))) else None
        if turn is None or len(turn.perm) < len(shape):
            continue
        prices[turn] = 40
        found = cheapest_steps(turn, [True] * len(shape), price)
        assert found.cost == cheapest_by_relaxation(turn, shape, price)
        way = [tuple(range(len(shape))), *found.orders, turn.perm]
        assert found.cost == sum(price(turn_between(*ends, shape)) for ends in pairwise(way))
        in_steps += bool(found.orders)
    assert in_steps


class Neighbours(Backend):
    """Only the exchange of two neighbouring axes has a fast path."""

    name = "neighbours"

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        moved = [place for place, axis in enumerate(target.names) if str(place) != axis]
        is_fast = len(moved) == 2 and moved[1] == moved[0] + 1
        return (1 if is_fast else 20) * (tensor.nbytes or 0)


@pytest.mark.parametrize(("perm", "steps"), [((2, 1, 0), 2), ((1, 2, 0), 1), ((3, 1, 2, 0), 2), ((3, 2, 1, 0), 3)])
def test_a_dear_transpose_is_made_in_steps_through_formats_that_no_node_takes(
    perm: tuple[int, ...], steps: int
) -> None:
    net, nbytes = Net(), 4 * prod((3, 4, 5, 2)[: len(perm)])
    net.output(net.node("Relu", net.transpose(net.input("x", (3, 4, 5, 2)[: len(perm)]), *perm)))
    legal, report = legalize(net.model(), Neighbours(), check=True)
    assert report.cost == report.bound == steps * nbytes
    assert report.after.transposes == steps
    assert report.verification is not None
    assert report.verification.passed
    assert_same_numbers(net.model(), legal)
    again, _ = legalize(legal, Neighbours())
    assert again.SerializeToString() == legal.SerializeToString()


@pytest.mark.parametrize(("shape", "steps"), [(("n", 4, 5, 2), 3), (("n", 4, "t", 2), 5)])
def test_steps_fuse_no_dims_of_unknown_extents(shape: tuple[int | str, ...], steps: int) -> None:
    net = Net()
    net.output(net.node("Relu", net.transpose(net.input("x", shape), 3, 2, 1, 0)))
    legal, report = legalize(net.model(), Neighbours(), check=True)
    assert report.after.transposes == steps
    assert_same_numbers(net.model(), legal)
    again, _ = legalize(legal, Neighbours())
    assert again.SerializeToString() == legal.SerializeToString()
