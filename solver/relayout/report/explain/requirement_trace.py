"""The requirements behind a conversion.

A conversion stands between two formats, and whoever gives or reads its tensor may only pass on what others ask: an
element-wise operator takes any order. So the requirements are looked for along the formats, from the conversion's giver
back and from its readers on, up to the first nodes, inputs or outputs that do not take every format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relayout.formulate.formulation import Made, Touch
from relayout.layout.memory_format import Order
from relayout.report.explain.relaxed_problem import Lifting
from relayout.report.schema import Part

__all__ = ["Requirement", "behind"]

NEAREST = 32
"""Of the requirements behind one conversion, on either side, so many that are nearest."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What can be lifted: some touches of one choice."""

    choice: int
    lifts: Part
    touches: tuple[Touch, ...]


def behind(lifting: Lifting, assignment: Sequence[int], made: Made) -> list[Requirement]:
    """The requirements behind one conversion, those of its giver's side and of its readers' by turns, nearest first."""
    # What reads the tensor as it is given holds it there as well.
    others = [t for t in lifting.touched_with(made.producer) if _format(lifting, assignment, t) == made.source]
    starts = list(dict.fromkeys([made.producer, *others])), made.wanted_by
    sides = [_along(lifting, assignment, each) for each in starts]
    found: dict[Requirement, None] = {}
    for device in range(NEAREST):
        for side in sides:
            for touch in side[device : device + 1]:
                found[_one(lifting, touch)] = None
                found[_whole(lifting, touch)] = None
    return list(found)


def _one(lifting: Lifting, touch: Touch) -> Requirement:
    choice = lifting.formulation.requirements.choices[touch.choice]
    if choice.node is None:
        return Requirement(touch.choice, "boundary", (touch,))
    return Requirement(touch.choice, "result" if choice.ports[touch.port].is_result else "operand", (touch,))


def _whole(lifting: Lifting, touch: Touch) -> Requirement:
    """All that the node or the tie requires; the same as one touch where it has no other."""
    choice = lifting.formulation.requirements.choices[touch.choice]
    touches = [Touch(touch.choice, port) for port in range(len(choice.ports))]
    touches = [each for each in touches if lifting.use_of(each) is not None]
    if len(touches) < 2:
        return _one(lifting, touch)
    return Requirement(touch.choice, "boundary" if choice.node is None else "node", tuple(touches))


def _along(lifting: Lifting, assignment: Sequence[int], starts: Sequence[Touch]) -> list[Touch]:
    """Where the format that is held at these is asked for, nearest first: at themselves, or where it was passed on to.

    If all only pass it on, they are what holds it: their operands must lie alike.
    """
    firm: list[Touch] = []
    seen: set[Touch] = set()
    queue = deque(starts)
    while queue:
        touch = queue.popleft()
        if touch in seen:
            continue
        seen.add(touch)
        if _is_firm(lifting, touch):
            firm.append(touch)
        else:
            queue.extend(_passed_on(lifting, assignment, touch))
    return firm or list(starts)


def _is_firm(lifting: Lifting, touch: Touch) -> bool:
    """Whether the choice itself asks something here: it does not take every format, or not at the same cost."""
    value, use = lifting.value_of(touch), lifting.use_of(touch)
    if value is None or use is None:
        return True
    choice = lifting.formulation.requirements.choices[touch.choice]
    return len(set(use.formats)) < len(value.conversion) or len({a.cost for a in choice.alternatives}) > 1


def _passed_on(lifting: Lifting, assignment: Sequence[int], touch: Touch) -> Iterator[Touch]:
    """Across the node to its other operands, and to who gives or reads them in the format that they have there."""
    choice = lifting.formulation.requirements.choices[touch.choice]
    for port in range(len(choice.ports)):
        other = Touch(touch.choice, port)
        if other == touch or lifting.value_of(other) is None:
            continue
        format_ = _format(lifting, assignment, other)
        for neighbour in lifting.touched_with(other):
            if neighbour != other and _format(lifting, assignment, neighbour) == format_:
                yield neighbour


def _format(lifting: Lifting, assignment: Sequence[int], touch: Touch) -> Order:
    choice = lifting.formulation.requirements.choices[touch.choice]
    return choice.alternatives[assignment[touch.choice]].formats[touch.port]
