"""Axes of values that are one axis: by the space that a node's operands share, or as views of one tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import onnx_ir as ir

from relayout.ops import Free, extents_of, rows

__all__ = ["Place", "Ties", "alike", "hand_over", "kept_by", "kept_whole", "repeated_by", "tie"]

Place = tuple[ir.Value, int]
"""An axis of a value."""

# The axes of values that are one axis of a space, until one of them has a name and hands it to all.
_Tied = list[Place]
# For each value and each space that it is in: what each of its axes is tied to there.
Ties = dict[ir.Value, list[list[_Tied | None]]]


def tie(
    ties: Ties, members: Sequence[tuple[ir.Value, Sequence[int | None]]], rank: int, silent: Collection[Place] = ()
) -> None:
    """Axis i of each member is axis `axes[i]` of a space of `rank` axes; None: it is tied to nothing. What is `silent`
    takes the names of the others and gives them none."""
    tied: list[_Tied] = [[] for _ in range(rank)]
    for value, axes in members:
        own: list[_Tied | None] = []
        for place, axis in enumerate(axes):
            if axis is None:
                own.append(None)
                continue
            tied[axis].append((value, place))
            own.append(tied[axis] if (value, place) not in silent else None)
        ties.setdefault(value, []).append(own)


def hand_over(tied: list[Place] | None) -> list[Place]:
    """The axes of one class, for once: all of them have its name then."""
    found = list(tied) if tied else []
    if tied:
        tied.clear()
    return found


@cache
def alike() -> frozenset[str]:
    """The operators whose results have the axes of their first input, those that have as many."""
    return frozenset(row.operator for row in rows() if row.kind == "free") | {"Bernoulli", "Dropout", "ScatterND"}


def repeated_by(rule: Free, value: ir.Value, axes: Sequence[int]) -> list[Place]:
    """The axes of extent 1 that are read as if they were longer: what those are called says nothing of the others."""
    extents = value.shape if value.shape is not None else ()
    pairs = enumerate(zip(extents, axes, strict=False))
    return [(value, place) for place, (extent, axis) in pairs if extent == 1 and rule.extents[axis] != 1]


def kept_by(node: ir.Node, rule: Free, value: ir.Value, axes: Sequence[int]) -> list[int | None]:
    """The axes without those of a result that are reduced to extent 1: what reads these may call them anything."""
    extents = value.shape if value in node.outputs else None
    if extents is None:
        return list(axes)
    return [None if one == 1 and rule.extents[a] != 1 else a for a, one in zip(axes, extents, strict=True)]


def kept_whole(source: ir.Value, result: ir.Value) -> list[int | None] | None:
    """The axes of a result that are those of what is read; None where it has another number of them."""
    before, after = extents_of(source) or (), extents_of(result) or ()
    if len(before) != len(after):
        return None
    pairs = enumerate(zip(before, after, strict=True))
    return [axis if (one == 1) == (other == 1) else None for axis, (one, other) in pairs]
