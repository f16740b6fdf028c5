"""Concat, Pad, Slice, Tile, Expand, ConstantOfShape and Gather: their numbers per axis are permuted with the axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.memory_format import Extent
from relayout.ops.axis_ops import common_multiples, without
from relayout.ops.node_reader import NoRuleError, Reading, normal_axis
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Edit, Free, free, outer_position, position


@row("free", "Concat")
def concat(node: Reading) -> Free:
    extents, axes = node.result_space()
    if any(node.rank(i) != len(extents) for i in range(len(node.node.inputs))):
        raise NoRuleError
    axis = node.axis(None, len(extents))
    return free(
        extents,
        tuple(axes for _ in node.node.inputs),
        (axes,),
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        tileable=without(axes, axis),
        tile_multiple=common_multiples({axis: [node.extents(i)[axis] for i in range(len(node.node.inputs))]}),
        edit_tiled=lambda order, strides: Edit({"axis": outer_position(order, strides, axes, axis)}),
    )


@row("free", "Pad")
def pad(node: Reading) -> Free:
    """`pads` has all begins and then all ends, for every axis in order or for the axes of input 3."""
    extents, axes = node.result_space()
    rank = len(axes)
    as_input = node.opset >= 11
    named = as_input and node.has(3)
    covered = tuple(normal_axis(a, rank) for a in node.integers(3)) if named and node.opset >= 18 else axes
    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    if as_input and not node.is_known(1):
        if node.extents(1) != (2 * len(covered),):
            raise NoRuleError

        def edit_at_run_time(order: Axes) -> Edit:
            if named:
                return Edit(constants={3: np.array([position(order, axes, a) for a in covered], np.int64)})
            return Edit(reordered={1: (*order, *(rank + a for a in order))})

        return free(extents, inputs, (axes,), edit=edit_at_run_time)
    pads = node.integers(1) if as_input else node.ints("pads")
    if pads is None or len(pads) != 2 * len(covered):
        raise NoRuleError
    begins, ends = dict(zip(covered, pads, strict=False)), dict(zip(covered, pads[len(covered) :], strict=True))

    def edit_steps(order: Axes, strides: Axes) -> Edit:
        def along(numbers: Mapping[int, int]) -> tuple[int, ...]:
            # The inner tiles of an axis are not padded themselves.
            steps = zip(order, strides, strict=True)
            return tuple(numbers.get(a, 0) // stride if stride else 0 for a, stride in steps)

        reordered = along(begins) + along(ends)
        if not as_input:
            return Edit({"pads": reordered})
        constants = {1: np.array(reordered, np.int64)}
        if named:
            constants[3] = np.arange(len(order), dtype=np.int64)
        return Edit(constants=constants)

    still = tuple(a for a in axes if begins.get(a, 0) == ends.get(a, 0) == 0)
    steps = {}
    if node.string("mode", "constant") == "constant":
        own = node.extents(0)
        steps = common_multiples({a: (own[a], begins.get(a, 0), ends.get(a, 0)) for a in axes if a not in still})
    edit = lambda order: edit_steps(order, (1,) * len(order))  # noqa: E731
    return free(extents, inputs, (axes,), edit=edit, tileable=still, tile_multiple=steps, edit_tiled=edit_steps)


@row("free", "Slice")
def slice_(node: Reading) -> Free:
    """Starts, ends and steps stay; their axes are renumbered."""
    extents, axes = node.space()
    rank = len(axes)
    as_input = node.opset >= 10
    if as_input:
        count = node.extents(1)[0]
        given = node.integers(3) if node.has(3) else None
    else:
        starts = node.ints("starts") or ()
        count, given = len(starts), node.ints("axes")
    if not isinstance(count, int) or (given is not None and len(given) != count) or count > rank:
        raise NoRuleError
    sliced = tuple(normal_axis(a, rank) for a in given) if given is not None else tuple(range(count))

    kind = node.integer_type(1) if as_input else None

    def edit(order: Axes) -> Edit:
        places = tuple(position(order, axes, a) for a in sliced)
        return Edit({"axes": places}) if kind is None else Edit(constants={3: np.array(places, kind)})

    windows = _windows(node, sliced) if as_input else {}
    firsts, lasts = (node.integers(1), node.integers(2)) if windows else ((), ())

    def edit_steps(order: Axes, strides: Axes) -> Edit:
        places = [outer_position(order, strides, axes, a) for a in sliced]
        units = [strides[place] for place in places]
        bounds = [windows.get(a, (0, 0)) for a in sliced]
        starts = [b[0] // unit if unit > 1 else n for unit, b, n in zip(units, bounds, firsts, strict=True)]
        ends = [b[1] // unit if unit > 1 else n for unit, b, n in zip(units, bounds, lasts, strict=True)]
        return Edit(constants={i: np.array(n, kind) for i, n in ((1, starts), (2, ends), (3, places))})

    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    steps = common_multiples({a: (extents[a], *window) for a, window in windows.items()})
    return free(
        extents, inputs, (axes,), edit=edit, tileable=without(axes, *sliced), tile_multiple=steps, edit_tiled=edit_steps
    )


def _windows(node: Reading, sliced: Axes) -> dict[int, tuple[int, int]]:
    """The begin and end of each sliced axis, counted from its front; only axes of known extent with steps of 1."""
    if not node.is_known(1) or not node.is_known(2) or (node.has(4) and not node.is_known(4)):
        return {}
    strides = node.integers(4) if node.has(4) else (1,) * len(sliced)
    found = {}
    for axis, start, end, stride in zip(sliced, node.integers(1), node.integers(2), strides, strict=True):
        extent = node.extents(0)[axis]
        if isinstance(extent, int) and stride == 1:
            first, last, _ = slice(start, end).indices(extent)
            found[axis] = (first, max(first, last))
    return found


@row("free", "Tile")
def tile(node: Reading) -> Free:
    extents, axes = node.result_space()
    if not node.is_known(1):
        return free(extents, (axes, None), (axes,), edit=_reordering(node, 1, len(axes)))
    repeats = node.integers(1)
    if len(repeats) != len(axes):
        raise NoRuleError
    edit = lambda order: Edit(constants={1: np.array([repeats[a] for a in order], np.int64)})  # noqa: E731
    still = tuple(a for a in axes if repeats[a] == 1)
    return free(extents, (axes, None), (axes,), edit=edit, tileable=still)


@row("free", "Expand", since=8)
def expand(node: Reading) -> Free:
    extents, axes = node.result_space()
    rank, own = len(axes), node.rank()
    if not node.is_known(1):
        return free(extents, (axes[rank - own :], None), (axes,), edit=_reordering(node, 1, rank), broadcasts=axes)
    wanted = node.integers(1)
    full = (1,) * (rank - len(wanted)) + wanted

    def edit(order: Axes) -> Edit:
        return Edit(constants={1: np.array([full[a] for a in order], np.int64)})

    kept = tuple(a for a in axes if full[a] == 1)
    return free(extents, (axes[rank - own :], None), (axes,), edit=edit, broadcasts=axes, tileable=kept)


@row("free", "ConstantOfShape", since=9)
def constant_of_shape(node: Reading) -> Free:
    """All elements are equal, so a shape in another order gives the same tensor in another layout. One whose shape is
    known is a constant."""
    extents, axes = node.result_space()
    if node.is_known(0):
        raise NoRuleError
    return free(extents, (None,), (axes,), edit=_reordering(node, 0, len(axes)))


def _reordering(node: Reading, index: int, rank: int) -> Callable[[Axes], Edit]:
    """The edit of a vector that is computed while the model runs, with a number for each axis."""
    if node.extents(index) != (rank,):
        raise NoRuleError
    return lambda order: Edit(reordered={index: order})


@row("free", "Gather")
def gather(node: Reading) -> Free:
    """The index's axes replace the gathered axis, in their own order."""
    if node.node.outputs[0].dtype == ir.DataType.STRING:
        raise NoRuleError  # onnxruntime 1.31 takes one string of each block where the axis is not the last one
    data, index = node.extents(0), node.extents(1)
    rank, many = len(data), len(index)
    axis = node.axis(0, rank)
    inner = tuple(range(axis + 1, axis + 1 + many))
    outer = (*range(axis + 1), *range(axis + 1 + many, rank + many))
    extents: tuple[Extent, ...] = (*data[: axis + 1], *index, *data[axis + 1 :])
    result = tuple(a for a in range(rank + many) if a != axis)

    def allows(order: Axes) -> bool:
        at = order.index(axis)
        return order[at + 1 : at + 1 + many] == inner

    def edit(order: Axes) -> Edit:
        return Edit({"axis": position(order, outer, axis)})

    # A list of indices selects from the axis, which stays the same axis.
    beside = {axis: inner[0], inner[0]: axis} if many == 1 else {}
    splits = without(outer, axis)
    return free(
        extents,
        (outer, None),
        (result,),
        allows=allows,
        edit=edit,
        tileable=splits,
        companion=beside,
        insertion_rule=_BeforeIndex(axis, inner),
    )


class _BeforeIndex(Struct, frozen=True):
    """Inserts the gathered axis, which the result lacks, before the index's axes."""

    axis: int
    inner: Axes

    def __call__(self, order: Axes, further: int) -> int | None:
        return next((p for p, a in enumerate(order) if a in self.inner), None) if further == self.axis else None
