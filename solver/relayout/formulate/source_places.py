"""Extents that are computed while the model runs: conversions stay in place unless a move never costs more.

A solution is the cheapest for the sizes that are assumed. At other sizes it may cost more than the source: one
Transpose before two Slices replaces those behind them, and moves more where both parts are short. The tensors concerned
then stay as the source has them, and the problem is built and solved again. One problem cannot say this: its costs are
sums over single tensors, and at another size the costs of several tensors have to be compared with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from fractions import Fraction
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import InfeasibleError
from relayout.formulate.build import build
from relayout.formulate.formulation import Formulation
from relayout.formulate.plan import Plan, plan, plan_of
from relayout.model.tensor_sizes import DimSizes, OpenExtent
from relayout.solve.solver import Solution

__all__ = ["Answer", "dearer_at_no_size"]

_Key = tuple[OpenExtent, ...]


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
    in_place: frozenset[Tensor] = frozenset()
    answer: Answer | None = None
    while True:
        try:
            solution = solve(formulation)
        except InfeasibleError:
            if answer is None:
                raise
            return answer
        if solution.is_direct:
            formulation = formulation.with_direct_copies()
        planned = plan(formulation, solution)
        further = frozenset() if backend.devices() else _moved_for_worse(formulation, planned, sizes) - in_place
        answer = Answer(formulation, solution, planned, in_place)
        if not further:
            return answer
        in_place |= further
        kept = _in_source_places(formulation.requirements, in_place)
        formulation = build(kept, sizes, backend, formulation.scale.objective)


def _moved_for_worse(formulation: Formulation, planned: Plan, sizes: DimSizes) -> frozenset[Tensor]:
    """The tensors whose conversions may make the plan cost more bytes than the source at some sizes.

    Empty where the plan never costs more, where the source is not legal, and where a node of the source has another
    price in the plan.
    """
    source = formulation.source_assignment()
    if source is None or formulation.scale.objective.unit != "bytes":
        return frozenset()
    opened = _opened([each.tensor for each in formulation.def_use], sizes)
    if not any(opened.values()):
        return frozenset()
    before = plan_of(formulation, source)
    prices = [(old.chosen.cost, new.chosen.cost) for old, new in zip(before.nodes, planned.nodes, strict=True)]
    if any(old not in (0, new) for old, new in prices):
        return frozenset()
    more, tensors = _growth(before, planned, opened)
    left = _settled(more)
    if sum(_most(key, growth) for key, growth in left.items()) <= 0:
        return frozenset()
    dearer = {key for key, growth in left.items() if key and growth > 0}
    dearer = dearer or {key for key, growth in more.items() if key and growth}
    beside = frozenset(tensor for tensor, key in opened.items() if key in dearer)
    return beside.union(*(tensors[key] for key in dearer))


def _opened(tensors: Iterable[Tensor], sizes: DimSizes) -> dict[Tensor, _Key]:
    """The open extents of each tensor, computed once for all that share a shape."""
    known: dict[int, _Key] = {}
    found = {}
    for tensor in tensors:
        shape = tensor.base.shape
        if id(shape) not in known:
            known[id(shape)] = sizes.open_extents(shape)
        found[tensor] = known[id(shape)]
    return found


def _in_source_places(requirements: Requirements, tensors: Set[Tensor]) -> Requirements:
    """The requirements without the alternatives that have one of these tensors in another format than the source, or
    whose own cost grows with it."""
    return replace(requirements, choices=tuple([_kept(choice, tensors) for choice in requirements.choices]))


def _kept(choice: NodeAlternatives, tensors: Set[Tensor]) -> NodeAlternatives:
    places = [place for place, port in enumerate(choice.ports) if port.operand.tensor in tensors]
    stays = [
        n
        for n, each in enumerate(choice.alternatives)
        if not places
        or each.is_source
        or (not each.cost and all(choice.ports[p].is_source_format(each.formats[p]) for p in places))
    ]
    if len(stays) == len(choice.alternatives):
        return choice
    layouts = tuple([choice.layouts[n] for n in stays]) if choice.layouts else ()
    return replace(choice, alternatives=tuple([choice.alternatives[n] for n in stays]), layouts=layouts)


def _growth(
    before: Plan, after: Plan, opened: Mapping[Tensor, _Key]
) -> tuple[dict[_Key, Fraction], dict[_Key, set[Tensor]]]:
    """The bytes of the plan beyond the source's, by the open extents with which they grow: of one element in each. Also
    the tensors with open extents that are concerned."""
    old, new = ({(c.tensor, c.source, c.target): c for c in each.conversions} for each in (before, after))
    more: dict[_Key, Fraction] = {}
    concerned: dict[_Key, set[Tensor]] = {}

    def add(key: _Key, cost: int, tensors: Iterable[Tensor]) -> None:
        share = Fraction(cost, prod(max(extent.assumed, 1) for extent in key))
        more[key] = more.get(key, Fraction(0)) + share
        concerned.setdefault(key, set()).update(tensors)

    for use, conversion in new.items():
        if use not in old:
            add(opened[conversion.tensor], conversion.cost, [conversion.tensor])
    for use, conversion in old.items():
        if use not in new:
            add(opened[conversion.tensor], -conversion.cost, [conversion.tensor])
    for own, node in zip(before.nodes, after.nodes, strict=True):
        if node.chosen.cost != own.chosen.cost:
            tensors = [port.operand.tensor for port in node.ports if opened.get(port.operand.tensor)]
            add(_product(tensors, opened), node.chosen.cost, tensors)
    return more, concerned


def _settled(more: Mapping[_Key, Fraction]) -> dict[_Key, Fraction]:
    """The growth without what is saved in larger products: one of more extents is at least as large as the smaller
    product times the least sizes of the other extents."""
    left = dict(more)
    for key in sorted((key for key in left if left[key] > 0), key=len, reverse=True):
        for other in (other for other in left if left[other] < 0):
            if left[key] > 0 and Counter(key) <= Counter(other):
                least = prod(extent.low for extent in (Counter(other) - Counter(key)).elements())
                used = min(left[key], -left[other] * least)
                left[key] -= used
                left[other] += used / least
    return left


def _product(tensors: Iterable[Tensor], opened: Mapping[Tensor, _Key]) -> _Key:
    """The open extents of all these tensors."""
    return tuple(sorted({extent for tensor in tensors for extent in opened[tensor]}))


def _most(key: _Key, growth: Fraction) -> Fraction | float:
    """The most that this growth can be in bytes."""
    if growth <= 0:
        return growth * prod(extent.low for extent in key)
    highest = [extent.high for extent in key]
    return float("inf") if None in highest else growth * prod(high for high in highest if high is not None)
