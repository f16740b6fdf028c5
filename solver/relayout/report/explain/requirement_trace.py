"""The requirements behind a conversion.

A conversion stands between two formats, and whoever gives or reads its tensor may only pass on what others ask: an
element-wise operator takes any order. So the requirements are looked for along the formats, from the conversion's giver
back and from its readers on, up to the first nodes, inputs or outputs that do not take every format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relayout.formulate.formulation import PlannedConversion, TensorUse
from relayout.layout.memory_format import MemoryFormat
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
    uses: tuple[TensorUse, ...]


def behind(lifting: Lifting, assignment: Sequence[int], made: PlannedConversion) -> list[Requirement]:
    """The requirements behind one conversion, those of its giver's side and of its readers' by turns, nearest first."""
    # What reads the tensor as it is given holds it there as well.
    others = [t for t in lifting.used_with(made.producer) if _format(lifting, assignment, t) == made.source]
    starts = list(dict.fromkeys([made.producer, *others])), made.wanted_by
    sides = [_along(lifting, assignment, each) for each in starts]
    found: dict[Requirement, None] = {}
    for distance in range(NEAREST):
        for side in sides:
            for use in side[distance : distance + 1]:
                found[_one(lifting, use)] = None
                found[_whole(lifting, use)] = None
    return list(found)


def _one(lifting: Lifting, use: TensorUse) -> Requirement:
    choice = lifting.formulation.requirements.choices[use.choice]
    if choice.node is None:
        return Requirement(use.choice, "boundary", (use,))
    return Requirement(use.choice, "result" if choice.ports[use.port].is_result else "operand", (use,))


def _whole(lifting: Lifting, use: TensorUse) -> Requirement:
    """All that the node or the tie requires; the same as one touch where it has no other."""
    choice = lifting.formulation.requirements.choices[use.choice]
    uses = [TensorUse(use.choice, port) for port in range(len(choice.ports))]
    uses = [each for each in uses if lifting.use_of(each) is not None]
    if len(uses) < 2:
        return _one(lifting, use)
    return Requirement(use.choice, "boundary" if choice.node is None else "node", tuple(uses))


def _along(lifting: Lifting, assignment: Sequence[int], starts: Sequence[TensorUse]) -> list[TensorUse]:
    """Where the format that is held at these is asked for, nearest first: at themselves, or where it was passed on to.

    If all only pass it on, they are what holds it: their operands must lie alike.
    """
    firm: list[TensorUse] = []
    seen: set[TensorUse] = set()
    queue = deque(starts)
    while queue:
        use = queue.popleft()
        if use in seen:
            continue
        seen.add(use)
        if _is_firm(lifting, use):
            firm.append(use)
        else:
            queue.extend(_passed_on(lifting, assignment, use))
    return firm or list(starts)


def _is_firm(lifting: Lifting, use: TensorUse) -> bool:
    """Whether the choice itself asks something here: it does not take every format, or not at the same cost."""
    value, own = lifting.value_of(use), lifting.use_of(use)
    if value is None or own is None:
        return True
    choice = lifting.formulation.requirements.choices[use.choice]
    return len(set(own.formats)) < len(value.conversion) or len({a.cost for a in choice.alternatives}) > 1


def _passed_on(lifting: Lifting, assignment: Sequence[int], use: TensorUse) -> Iterator[TensorUse]:
    """Across the node to its other operands, and to who gives or reads them in the format that they have there."""
    choice = lifting.formulation.requirements.choices[use.choice]
    for port in range(len(choice.ports)):
        other = TensorUse(use.choice, port)
        if other == use or lifting.value_of(other) is None:
            continue
        format_ = _format(lifting, assignment, other)
        for neighbour in lifting.used_with(other):
            if neighbour != other and _format(lifting, assignment, neighbour) == format_:
                yield neighbour


def _format(lifting: Lifting, assignment: Sequence[int], use: TensorUse) -> MemoryFormat:
    choice = lifting.formulation.requirements.choices[use.choice]
    return choice.alternatives[assignment[use.choice]].formats[use.port]
