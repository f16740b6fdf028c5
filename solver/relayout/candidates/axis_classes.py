"""Equivalence classes of axes: by the iteration space that operands share, or as views of one tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache

import onnx_ir as ir

from relayout.ops import Free, extents_of, rows

__all__ = [
    "Joined",
    "OperandAxis",
    "joined",
    "kept_by",
    "kept_whole",
    "long_axes",
    "repeated_by",
    "same_axes_operators",
]

OperandAxis = tuple[int, int]
"""An operand among all of a node, and one of its axes."""
Joined = tuple[Sequence[OperandAxis], Sequence[OperandAxis]]
"""The operands' axes that are one axis of an iteration space, and those among them that pass their names on."""


def joined(members: Iterable[tuple[int, Sequence[int | None], Collection[int]]], rank: int) -> Sequence[Joined]:
    """The axes of a space of `rank` axes that several operands have: axis i of each member, an operand with its index,
    is axis `axes[i]` of the space; None: it is none of them. The third entry has axes that receive names but do not
    pass theirs on."""
    every: list[tuple[list[OperandAxis], list[OperandAxis]]] = [([], []) for _ in range(rank)]
    for n, axes, receiving in members:
        for index, axis in enumerate(axes):
            if axis is not None:
                every[axis][0].append((n, index))
                if index not in receiving:
                    every[axis][1].append((n, index))
    return [each for each in every if len(each[0]) > 1]


@cache
def same_axes_operators() -> frozenset[str]:
    """The operators whose results of the same rank have the axes of their first input."""
    return frozenset(row.operator for row in rows() if row.kind == "free") | {"Bernoulli", "Dropout", "ScatterND"}


def long_axes(rule: Free, members: Sequence[tuple[ir.Value, Sequence[int]]]) -> frozenset[int]:
    """The axes of the rule that are longer than 1 in some member: SpaceToDepth makes channels of an axis of extent 1,
    and a broadcast repeats it."""
    found = {axis for axis, extent in enumerate(rule.extents) if extent != 1}
    for value, axes in members:
        extents = value.shape.dims if value.shape is not None else ()
        found.update([axis for extent, axis in zip(extents, axes, strict=False) if extent != 1])
    return frozenset(found)


def repeated_by(long: Collection[int], value: ir.Value, axes: Sequence[int]) -> frozenset[int]:
    """The axes of extent 1 that are longer elsewhere. Their names are not evidence for the other operands."""
    extents = value.shape.dims if value.shape is not None else ()
    pairs = enumerate(zip(extents, axes, strict=False))
    return frozenset([index for index, (extent, axis) in pairs if extent == 1 and axis in long])


def kept_by(node: ir.Node, rule: Free, value: ir.Value, axes: Sequence[int]) -> Sequence[int | None]:
    """The axes without those that the node reduces to extent 1: the result's consumers may name these freely."""
    shape = value.shape if value in node.outputs else None
    if shape is None:
        return axes
    return [None if one == 1 and rule.extents[a] != 1 else a for a, one in zip(axes, shape.dims, strict=True)]


def kept_whole(source: ir.Value, result: ir.Value) -> list[int | None] | None:
    """The axes that a result shares with the source; None where the ranks differ."""
    before, after = extents_of(source) or (), extents_of(result) or ()
    if len(before) != len(after):
        return None
    pairs = enumerate(zip(before, after, strict=True))
    return [axis if (one == 1) == (other == 1) else None for axis, (one, other) in pairs]
