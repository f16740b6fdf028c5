"""Extents that are computed while the model runs: conversions stay in place unless a move never costs more.

A solution is the cheapest for the sizes that are assumed. At other sizes it may cost more than the source: one
Transpose before two Slices replaces those behind them, and moves more where both parts are short. The tensors concerned
then stay as the source has them, and the problem is built and solved again. One problem cannot say this: its costs are
sums over single tensors, and at another size the costs of several tensors have to be compared with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from fractions import Fraction
from functools import reduce
from math import prod
from operator import or_

from msgspec import Struct
from msgspec.structs import replace

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.tensors import Tensor
from relayout.errors import InfeasibleError
from relayout.formulate.build import build
from relayout.formulate.formulation import Formulation
from relayout.formulate.plan import Plan, plan, plan_of
from relayout.model.tensor_sizes import DimSizes, OpenExtent
from relayout.solve.solver import Solution

_Product = tuple[OpenExtent, ...]
"""Extents that are computed while the model runs, one of each axis; empty for a known size."""


class Answer(Struct, frozen=True):
    """A problem, its solution and its plan. `in_place`: tensors whose every conversion is where the source has it."""

    formulation: Formulation
    solution: Solution
    plan: Plan
    in_place: frozenset[Tensor] = frozenset()


def dearer_at_no_size(
    formulation: Formulation, sizes: DimSizes, backend: Backend, solve: Callable[[Formulation], Solution]
) -> Answer:
    """The cheapest plan for the sizes assumed, among those that leave `Answer.in_place` as the source has it.

    It costs at no size more bytes than the source. Exceptions are a source that is not legal or whose nodes have a
    price that the plan changes, an objective other than bytes, several devices, and a limit on conversions that no
    such plan meets. `solve` gives a solution with an assignment, or raises InfeasibleError. It is called once, and
    again for each set of further tensors, so at most once more than there are tensors.
    """
    answer = _answer(formulation, solve)
    if backend.devices():
        return answer
    while further := _moved_for_worse(answer, sizes) - answer.in_place:
        in_place = answer.in_place | further
        requirements = answer.formulation.requirements
        kept = replace(requirements, choices=tuple([_kept(choice, in_place) for choice in requirements.choices]))
        try:
            answer = _answer(build(kept, sizes, backend, formulation.scale.objective), solve, in_place)
        except InfeasibleError:
            break
    return answer


def _answer(
    formulation: Formulation, solve: Callable[[Formulation], Solution], in_place: frozenset[Tensor] = frozenset()
) -> Answer:
    solution = solve(formulation)
    if solution.is_direct:
        formulation = formulation.with_direct_copies()
    return Answer(formulation, solution, plan(formulation, solution), in_place)


def _moved_for_worse(answer: Answer, sizes: DimSizes) -> frozenset[Tensor]:
    """The tensors whose conversions may make the plan cost more bytes than the source at some sizes.

    Empty where the plan never costs more, where the source is not legal, and where a node of the source has another
    price in the plan.
    """
    formulation = answer.formulation
    source = formulation.source_assignment()
    if source is None or formulation.scale.objective.unit != "bytes":
        return frozenset()
    opened = _opened([each.tensor for each in formulation.def_use], sizes)
    if not any(opened.values()):
        return frozenset()
    before = plan_of(formulation, source)
    prices = [(old.chosen.cost, new.chosen.cost) for old, new in zip(before.nodes, answer.plan.nodes, strict=True)]
    if any(old not in (0, new) for old, new in prices):
        return frozenset()
    differences = list(_differences(before, answer.plan, opened))
    growth: dict[_Product, Fraction] = {}
    for product, cost, _ in differences:
        growth[product] = growth.get(product, Fraction(0)) + Fraction(cost, prod(max(e.assumed, 1) for e in product))
    left = _settled(growth)
    if sum(_most(product, each) for product, each in left.items()) <= 0:
        return frozenset()
    dearer = {product for product, each in left.items() if product and each > 0}
    dearer = dearer or {product for product, each in growth.items() if product and each}
    concerned = [tensors for product, _, tensors in differences if product in dearer]
    return frozenset(tensor for tensor, product in opened.items() if product in dearer).union(*concerned)


def _opened(tensors: Iterable[Tensor], sizes: DimSizes) -> dict[Tensor, _Product]:
    """The open extents of each tensor, computed once for all that share a shape."""
    known: dict[int, _Product] = {}
    found = {}
    for tensor in tensors:
        shape = tensor.base.shape
        if id(shape) not in known:
            known[id(shape)] = sizes.open_extents(shape)
        found[tensor] = known[id(shape)]
    return found


def _kept(choice: NodeAlternatives, tensors: Set[Tensor]) -> NodeAlternatives:
    """The choice without the alternatives that have one of these tensors in another format than the source, or whose
    own cost grows with it."""
    places = [place for place, port in enumerate(choice.ports) if port.operand.tensor in tensors]
    stays = [
        each
        for each in choice.alternatives
        if not places
        or each.is_source
        or (not each.cost and all(choice.ports[p].is_source_format(each.formats[p]) for p in places))
    ]
    return choice if len(stays) == len(choice.alternatives) else replace(choice, alternatives=tuple(stays))


def _differences(
    before: Plan, after: Plan, opened: Mapping[Tensor, _Product]
) -> Iterator[tuple[_Product, int, Collection[Tensor]]]:
    """The bytes that a conversion or a node of one plan costs beyond the other plan's, with the open extents with which
    they grow, and the tensors that have these."""
    old, new = ({(c.tensor, c.source, c.target): c for c in each.conversions} for each in (before, after))
    for sign, own, other in ((1, new, old), (-1, old, new)):
        for place, conversion in own.items():
            if place not in other:
                yield opened[conversion.tensor], sign * conversion.cost, [conversion.tensor]
    for node, changed in zip(before.nodes, after.nodes, strict=True):
        if changed.chosen.cost != node.chosen.cost:
            tensors = [port.operand.tensor for port in changed.ports if opened.get(port.operand.tensor)]
            # A square image has the same open extent twice.
            together = reduce(or_, [Counter(opened[tensor]) for tensor in tensors], Counter[OpenExtent]())
            yield tuple(sorted(together.elements())), changed.chosen.cost, tensors


def _settled(growth: Mapping[_Product, Fraction]) -> dict[_Product, Fraction]:
    """The growth without what is saved in larger products: one of more extents is at least as large as the smaller
    product times the least sizes of the other extents."""
    left = dict(growth)
    for key in sorted((key for key in left if left[key] > 0), key=len, reverse=True):
        for other in (other for other in left if left[other] < 0):
            if left[key] > 0 and Counter(key) <= Counter(other):
                least = prod(extent.low for extent in (Counter(other) - Counter(key)).elements())
                used = min(left[key], -left[other] * least)
                left[key] -= used
                left[other] += used / least
    return left


def _most(product: _Product, growth: Fraction) -> Fraction | float:
    """The most that this growth can be in bytes."""
    if growth <= 0:
        return growth * prod(extent.low for extent in product)
    highest = [extent.high for extent in product]
    return float("inf") if None in highest else growth * prod(high for high in highest if high is not None)
