"""Operators that work along one or several axes, given by number: the numbers move with the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from relayout.layout.memory_format import Extent
from relayout.ops.decompositions import exponentiate
from relayout.ops.node_reader import NoRuleError, Reading, normal_axis
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Decomposition, Edit, Free, free, position


def along(
    node: Reading, axis: int, inputs: tuple[int, ...], results: tuple[int, ...], *, symmetric: bool = False
) -> Free:
    """A rule under which all these operands have one layout and the attribute `axis` is renumbered. `symmetric`: the
    order of the elements along the axis does not matter."""
    extents, axes = node.space(inputs[0])
    return free(
        extents,
        tuple(axes if i in inputs and node.has(i) else None for i in range(len(node.node.inputs))),
        tuple(axes if i in results else None for i in range(len(node.node.outputs))),
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        tileable=tuple(a for a in axes if a != axis and len({node.extents(i)[a] for i in inputs}) == 1),
        permutable_within=(axis,) if symmetric else (),
    )


def without(axes: Axes, *working: int) -> Axes:
    return tuple(a for a in axes if a not in working)


def common_multiples(numbers: Mapping[int, Sequence[Extent]]) -> dict[int, int]:
    """The greatest common divisor of the numbers of each axis; axes with an unknown number are not included."""
    known = {axis: [n for n in all_of if isinstance(n, int)] for axis, all_of in numbers.items()}
    return {axis: gcd(*known[axis]) for axis in numbers if len(known[axis]) == len(numbers[axis])}


@row("free", "Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Reading) -> Free:
    # Hardmax takes the first of several equal ones.
    return along(node, node.axis(-1, node.rank()), (0,), (0,), symmetric=node.node.op_type != "Hardmax")


@row("free", "Softmax", "LogSoftmax", "Hardmax")
def flattening_softmax(node: Reading) -> Free:
    """Before opset 13 the axes from `axis` on count as one: they stay innermost, or the node is decomposed."""
    extents, axes = node.space()
    rank = len(axes)
    first = node.axis(1, rank)
    inner = {a for a in range(first, rank) if extents[a] != 1}

    def split_at(order: Axes) -> int | None:
        """The position where the inner axes begin in this order; None where an outer axis is among them."""
        start = next((p for p, a in enumerate(order) if a in inner), rank)
        clean = all(a in inner or extents[a] == 1 for a in order[start:])
        return start if clean else None

    def edit(order: Axes) -> Edit:
        start = split_at(order)
        assert start is not None
        return Edit({"axis": min(start, rank - 1)} if inner else {"axis": first})

    # If all inner axes are unit axes, each element is its own softmax; only the source's order expresses that.
    allows = (lambda order: split_at(order) is not None) if inner else (lambda order: order == axes)
    # Hardmax breaks ties by the flat index, so the inner axes also keep their order.
    if node.node.op_type == "Hardmax":
        loose = allows
        allows = lambda order: loose(order) and [a for a in order if a in inner] == sorted(inner)  # noqa: E731
    writes_out = node.node.op_type != "Hardmax" and bool(inner) and node.is_float()
    return free(
        extents,
        (axes,),
        (axes,),
        allows=allows,
        edit=edit,
        decompositions=(Decomposition(lambda writing: exponentiate(writing, inner), extra=lambda _order: ((axes, 6),)),)
        if writes_out
        else (),
    )


@row("free", "TopK")
def top_k(node: Reading) -> Free:
    return along(node, node.axis(-1, node.rank()), (0,), (0, 1))


@row("free", "GatherElements", since=11)
@row("free", "ScatterElements", "Scatter", since=9)
def elements(node: Reading) -> Free:
    """Repeated indices meet along the axis only, and keep their order there: a sum is rounded alike in every layout."""
    inputs = tuple(range(len(node.node.inputs)))
    if any(node.rank(i) != node.rank(0) for i in inputs):
        raise NoRuleError
    return along(node, node.axis(0, node.rank()), inputs, (0,))


@row("free", "CumSum", "CumProd", since=11)
def cumulative(node: Reading) -> Free:
    extents, axes = node.space()
    axis, given = normal_axis(int(node.scalar(1)), len(extents)), node.constant(1)

    def edit(order: Axes) -> Edit:
        return Edit(constants={1: np.full(given.shape, position(order, axes, axis), given.dtype)})

    return free(extents, (axes, None), (axes,), edit=edit, tileable=without(axes, axis))


@row("free", "ReverseSequence", since=10)
def reverse_sequence(node: Reading) -> Free:
    """Batch and time are the two outermost axes, in either order."""
    extents, axes = node.space()
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)

    def edit(order: Axes) -> Edit:
        return Edit({"batch_axis": order.index(batch), "time_axis": order.index(time)})

    return free(extents, (axes, None), (axes,), allows=lambda order: {*order[:2]} == {batch, time}, edit=edit)


@row("free", "Trilu", since=14)
@row("free", "Det", since=11)
def matrices(node: Reading) -> Free:
    """A stack of matrices: the stack's axes are in any order outside, the last two stay innermost."""
    extents, axes = node.space()
    rank = len(axes)
    result = tuple(range(len(node.result_extents())))
    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    return free(extents, inputs, (result,), allows=lambda order: order[-2:] == (rank - 2, rank - 1))


@row("free", "Compress", since=9)
def compress(node: Reading) -> Free:
    if node.attribute("axis") is None:
        raise NoRuleError  # flattens: the order of the result's elements is the order in memory
    return along(node, node.axis(None, node.rank()), (0,), (0,))


@row("free", "OneHot", since=9)
def one_hot(node: Reading) -> Free:
    """The result has one more axis than the indices: the depth axis."""
    extents, axes = node.result_space()
    axis = node.axis(-1, len(axes))
    indices = tuple(a for a in axes if a != axis)
    edit = lambda order: Edit({"axis": position(order, axes, axis)})  # noqa: E731
    return free(extents, (indices, None, None), (axes,), edit=edit, tileable=indices)
