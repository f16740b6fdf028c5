"""The requirements behind a conversion.

The producer and the consumers of a converted tensor may only propagate a format: an elementwise operator supports any
order. So the search follows the formats, upwards from the producer and downwards from the consumers, to the first
nodes, inputs or outputs that do not support every format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from relayout.formulate.def_use import TensorUse
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.report.explain.relaxed_problem import Relaxation
from relayout.report.schema import Part

NEAREST = 32
"""The maximum number of requirements traced on either side of a conversion."""


class Requirement(Struct, frozen=True):
    """A unit of relaxation: some uses by one choice."""

    choice: int
    part: Part
    uses: tuple[TensorUse, ...]


def requirements_behind(relaxation: Relaxation, plan: Plan, conversion: PlannedConversion) -> list[Requirement]:
    """The requirements behind one conversion, nearest first, from the producer's and the consumers' side by turns."""
    # A consumer of the produced format requires it as well.
    others = [use for use in relaxation.uses_with(conversion.producer) if plan.format_at(use) == conversion.source]
    starts = list(dict.fromkeys([conversion.producer, *others])), conversion.consumers
    sides = [_traced(relaxation, plan, each) for each in starts]
    found: dict[Requirement, None] = {}
    for distance in range(NEAREST):
        for side in sides:
            for use in side[distance : distance + 1]:
                found[_of_use(plan, use)] = None
                found[_of_choice(relaxation, plan, use)] = None
    return list(found)


def _of_use(plan: Plan, use: TensorUse) -> Requirement:
    planned = plan.nodes[use.choice]
    if planned.node is None:
        return Requirement(use.choice, "boundary", (use,))
    return Requirement(use.choice, "result" if planned.ports[use.port].is_result else "operand", (use,))


def _of_choice(relaxation: Relaxation, plan: Plan, use: TensorUse) -> Requirement:
    """All requirements of the node, or of the coupled inputs and outputs; if there is one use only, that of the use."""
    planned = plan.nodes[use.choice]
    every = (TensorUse(use.choice, port) for port in range(len(planned.ports)))
    uses = tuple(each for each in every if relaxation.item_of(each) is not None)
    if len(uses) < 2:
        return _of_use(plan, use)
    return Requirement(use.choice, "boundary" if planned.node is None else "node", uses)


def _traced(relaxation: Relaxation, plan: Plan, starts: Sequence[TensorUse]) -> list[TensorUse]:
    """The uses that require the format of `starts`, nearest first: these themselves, or those to which it propagates.

    If no use requires it, these are `starts`, whose operands must agree.
    """
    requiring: list[TensorUse] = []
    seen: set[TensorUse] = set()
    queue = deque(starts)
    while queue:
        use = queue.popleft()
        if use in seen:
            continue
        seen.add(use)
        if _requires_something(relaxation, plan, use):
            requiring.append(use)
        else:
            queue.extend(_passed_on(relaxation, plan, use))
    return requiring or list(starts)


def _requires_something(relaxation: Relaxation, plan: Plan, use: TensorUse) -> bool:
    """Whether the choice refuses some format at this use, or has different costs for them."""
    item = relaxation.item_of(use)
    if item is None:
        return True
    costs = {a.cost for a in plan.nodes[use.choice].alternatives}
    taken = {f for each in item.uses for f in each.formats}
    return len(set(relaxation.formats_at(use))) < len(taken) or len(costs) > 1


def _passed_on(relaxation: Relaxation, plan: Plan, use: TensorUse) -> Iterator[TensorUse]:
    """The uses across the node: its other operands, and their other uses in the same format."""
    for port in range(len(plan.nodes[use.choice].ports)):
        other = TensorUse(use.choice, port)
        if other == use or relaxation.item_of(other) is None:
            continue
        format_ = plan.format_at(other)
        for neighbour in relaxation.uses_with(other):
            if neighbour != other and plan.format_at(neighbour) == format_:
                yield neighbour
