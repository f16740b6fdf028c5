"""Reductions and normalizations: the reduced axes may be at any position, and their numbers are rewritten."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from relayout.ops.axis_ops import along, without
from relayout.ops.decompositions import normalise
from relayout.ops.node_reader import Reading, normal_axis
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Decomposition, Edit, Free, free

REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


@row("free", "LpNormalization")
def lp_normalization(node: Reading) -> Free:
    return along(node, node.axis(-1, node.rank()), (0,), (0,), symmetric=True)


@row("free", "ArgMax", "ArgMin")
def arg(node: Reading) -> Free:
    rank = node.rank()
    return _reduced(node, (node.axis(0, rank),), as_input=False, name="axis")


@row("free", *REDUCTIONS.split())
def reduce(node: Reading) -> Free:
    rank = node.rank()
    as_input = node.ints("axes") is None and node.has(1)
    axes = node.axes(1, rank)
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            # The operator's function is applied to each element: the square for a sum of squares.
            every = tuple(range(rank))
            return free(node.extents(0), (every, *(None for _ in node.node.inputs[1:])), (every,), tileable=every)
        axes = tuple(range(rank))
        as_input = False
        if node.ints("axes") is None:
            return _reduced(node, axes, as_input=False, name="")
    return _reduced(node, axes, as_input=as_input, name="axes")


def _reduced(node: Reading, reduced: tuple[int, ...], *, as_input: bool, name: str) -> Free:
    extents, axes = node.space()
    keeps = bool(node.integer("keepdims", 1))
    result = axes if keeps else tuple(a for a in axes if a not in reduced)

    def edit(order: Axes) -> Edit:
        places = tuple(place for place, a in enumerate(order) if a in reduced)
        if as_input:
            return Edit(constants={1: np.array(places, np.int64)})
        if name == "axis":
            return Edit({name: places[0]})
        return Edit({name: places} if name else {})

    inputs: tuple[Axes | None, ...] = (axes, *(None for _ in node.node.inputs[1:]))
    # The index of the largest element depends on the order of the elements; a sum does not.
    splits = without(axes, *reduced) if name == "axis" else axes
    return free(extents, inputs, (result,), edit=edit, tileable=splits)


@row("free", "LayerNormalization", "SimplifiedLayerNormalization")
@row("free", "RMSNormalization", since=23)
def layer_normalization(node: Reading) -> Free:
    """The normalised axes are innermost; scale and bias have only these, in the same order.

    onnxruntime has the first before ONNX, which has it since opset 17, and RMSNormalization under the second name.

    In another order the node is decomposed: it reads and writes the whole tensor 1 + 2 + 1 + 2 + 2 times (+ 2 with a
    bias, + 2 without a sum of squares) in place of 2.
    """
    extents, axes = node.space()
    rank = len(axes)
    first = node.axis(-1, rank)
    inner = set(range(first, rank))

    def parameter(index: int) -> Axes | None:
        if not node.has(index):
            return None
        own = node.rank(index)
        return axes[rank - own :]

    def innermost(order: Axes) -> int:
        """The position of the first normalised axis in this order; the rank if there is none."""
        return next((place for place, a in enumerate(order) if a in inner), rank)

    def allows(order: Axes) -> bool:
        return all(a in inner for a in order[innermost(order) :])

    inputs = (axes, *(parameter(i) for i in range(1, len(node.node.inputs))))
    known = all(isinstance(extents[a], int) for a in inner)
    passes = 8 if node.has(2) else 6
    decomposes = node.node.op_type == "LayerNormalization" and node.is_float() and known
    return free(
        extents,
        inputs,
        tuple(axes for _ in node.node.outputs),
        allows=allows,
        edit=lambda order: Edit({"axis": innermost(order)}),
        tileable=axes,
        broadcasts=axes,
        decompositions=(_written(inner, passes), _written(inner, passes + 2, plainly=True)) if decomposes else (),
    )


def _written(inner: Collection[int], passes: int, *, plainly: bool = False) -> Decomposition:
    return Decomposition(
        partial(normalise, working=inner, plainly=plainly), extra=lambda order: ((tuple(range(len(order))), passes),)
    )


@row("free", "MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Reading) -> Free:
    extents, axes = node.space()
    normalised = tuple(normal_axis(a, len(axes)) for a in node.ints("axes") or (0, 2, 3))

    def edit(order: Axes) -> Edit:
        return Edit({"axes": tuple(place for place, a in enumerate(order) if a in normalised)})

    return free(extents, (axes,), (axes,), edit=edit, tileable=axes)
