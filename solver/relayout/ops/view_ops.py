"""View ops: the result is a view of the input's memory, and the node disappears."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form
from relayout.ops.axis_ops import without
from relayout.ops.node_reader import NoRuleError, Reading, extents_of, normal_axis
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Edit, Free, Relabel, free


@row("relabel", "Transpose")
def transpose(node: Reading) -> Relabel:
    rank = node.rank()
    perm = node.ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise NoRuleError
    return Relabel(tuple((Atom(axis),) for axis in perm))


@row("relabel", "Identity")
def identity(node: Reading) -> Relabel:
    return Relabel(tuple((Atom(axis),) for axis in range(node.rank())))


@row("relabel", "Dropout")
def dropout(node: Reading) -> Relabel:
    """In inference Dropout is the identity; with a mask that is read or in training it is not."""
    if node.used(1) or (node.opset >= 12 and node.has(2) and node.constant(2).any()):
        raise NoRuleError
    return Relabel(tuple((Atom(axis),) for axis in range(node.rank())))


@row("relabel", "Squeeze")
def squeeze(node: Reading) -> Relabel | Free:
    extents = node.extents(0)
    rank = len(extents)
    axes = node.axes(1, rank)
    if axes is None:
        if not all(isinstance(e, int) for e in extents):
            raise NoRuleError
        axes = tuple(a for a in range(rank) if extents[a] == 1)
    if any(isinstance(extents[a], int) and extents[a] != 1 for a in axes):
        raise NoRuleError
    if all(extents[a] == 1 for a in axes):
        return Relabel(tuple((Atom(a),) for a in range(rank) if a not in axes))
    return _squeezed(node, axes)


def _squeezed(node: Reading, squeezed: Axes) -> Free:
    """If an extent is known only at run time the operator stays; its axes may be in any order."""
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    result = without(axes, *squeezed)
    as_input = node.ints("axes") is None

    def edit(order: Axes) -> Edit:
        places = tuple(place for place, axis in enumerate(order) if axis in squeezed)
        return Edit(constants={1: np.array(places, np.int64)}) if as_input else Edit({"axes": places})

    return free(extents, (axes, *(None for _ in node.node.inputs[1:])), (result,), edit=edit, tileable=result)


@row("relabel", "Unsqueeze")
def unsqueeze(node: Reading) -> Relabel:
    rank = node.rank()
    given = node.ints("axes")
    if given is None:
        given = node.integers(1)
    total = rank + len(given)
    axes = {normal_axis(a, total) for a in given}
    if len(axes) != len(given):
        raise NoRuleError
    kept = iter(range(rank))
    return Relabel(tuple(() if a in axes else (Atom(next(kept)),) for a in range(total)))


@row("relabel", "Reshape", "Flatten")
def reshape(node: Reading) -> Relabel:
    """Axes map one to one, are inserted or removed with extent 1, and merge or split where the factors nest.

    A model may declare a result of another rank than the target has: then what it computes is not what it says.
    """
    target = extents_of(wanted) if node.has(1) and (wanted := node.node.inputs[1]) is not None else None
    if target is not None and None not in target and target != (len(node.result_extents()),):
        raise NoRuleError
    atoms = factor(node.extents(0), node.result_extents())
    if atoms is None:
        raise NoRuleError
    return Relabel(atoms)


def blocks(node: Reading, axis_names: str) -> Relabel | None:
    """The view that SpaceToDepth or DepthToSpace computes, for data with these axis names: blocks of space become
    channels, or the reverse. None where a split extent is unknown or not divisible by the block size."""
    extents, size = node.extents(0), node.integer("blocksize")
    if len(axis_names) != 4 or size < 1:
        return None
    batch, channel, row, column = (axis_names.index(letter) for letter in "NCHW")
    channels, rows, columns = (extents[axis] for axis in (channel, row, column))
    if not (isinstance(channels, int) and isinstance(rows, int) and isinstance(columns, int)):
        return None
    found: dict[int, MemoryFormat] = {batch: (Atom(batch),)}
    # The blocks are the outermost factors of the channels, or in mode CRD the innermost.
    are_outermost = node.string("mode", "DCR") == "DCR"
    if node.node.op_type == "SpaceToDepth":
        if rows % size or columns % size:
            return None
        block = Atom(row, 1, size), Atom(column, 1, size)
        found[channel] = (*block, Atom(channel)) if are_outermost else (Atom(channel), *block)
        found[row], found[column] = (Atom(row, size),), (Atom(column, size),)
    else:
        depth = channels // size**2
        if channels != depth * size**2:
            return None
        stays, step = (1, depth) if are_outermost else (size**2, 1)
        found[channel] = (Atom(channel, stays, stays * depth),)
        found[row] = (Atom(row), Atom(channel, step * size, step * size**2))
        found[column] = (Atom(column), Atom(channel, step, step * size))
    if not channels * rows * columns:
        return None
    return Relabel(tuple(normal_form(found[axis], extents) for axis in range(4)))


class _Part(Struct):
    """The unmatched rest of an axis: its extent and its stride."""

    axis: int
    extent: Extent
    inner: int = 1


def factor(source: tuple[Extent, ...], target: tuple[Extent, ...]) -> tuple[MemoryFormat, ...] | None:
    """The target's axes as factors of the source's, or None where they may not nest.

    Both are matched from the innermost axis outwards; an axis is split where one of the other side ends. A symbolic
    extent only matches the same symbol. The outermost rests of both sides need not match, since the totals are equal.
    """
    if 0 in source or 0 in target:
        return None
    left = [_Part(axis, extent) for axis, extent in enumerate(source) if extent != 1]
    right = [_Part(axis, extent) for axis, extent in enumerate(target) if extent != 1]
    found: list[list[Atom]] = [[] for _ in target]
    while left and right:
        if not _take(left, right, found):
            return None
    if left or right:
        return None
    return tuple(tuple(reversed(atoms)) for atoms in found)


def _take(left: list[_Part], right: list[_Part], found: list[list[Atom]]) -> bool:
    """Match the innermost parts of both sides; False where they may not nest."""
    part, goal = left[-1], right[-1]
    if not isinstance(part.extent, int) or not isinstance(goal.extent, int):
        same = part.extent == goal.extent and part.extent is not None
        if same or (len(left) == 1 and len(right) == 1):
            found[goal.axis].append(Atom(part.axis, part.inner))
            left.pop()
            right.pop()
        elif isinstance(goal.extent, int) and len(left) == 1 and _unknown(right) <= 1:
            # If an unknown axis alone is the rest of the target, it is divided by each known axis.
            found[goal.axis].append(Atom(part.axis, part.inner, part.inner * goal.extent))
            left[-1] = _Part(part.axis, None, part.inner * goal.extent)
            right.pop()
        elif isinstance(part.extent, int) and len(right) == 1:
            # An unknown axis of the target matches the whole rest of the source.
            found[goal.axis].append(Atom(part.axis, part.inner))
            left.pop()
        else:
            return False
        return True
    if part.extent == goal.extent:
        found[goal.axis].append(Atom(part.axis, part.inner))
        left.pop()
        right.pop()
    elif part.extent % goal.extent == 0:
        found[goal.axis].append(Atom(part.axis, part.inner, part.inner * goal.extent))
        left[-1] = _Part(part.axis, part.extent // goal.extent, part.inner * goal.extent)
        right.pop()
    elif goal.extent % part.extent == 0:
        found[goal.axis].append(Atom(part.axis, part.inner))
        right[-1] = _Part(goal.axis, goal.extent // part.extent)
        left.pop()
    else:
        return False
    return True


def _unknown(parts: list[_Part]) -> int:
    return sum(not isinstance(part.extent, int) for part in parts)
