"""Operators that work along one or several axes, given by number: the numbers move with the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from relayout.memory_format import Extent
from relayout.rules.decompositions import normalise
from relayout.rules.reading import NoRuleError, Reading, normal_axis
from relayout.rules.registry import row
from relayout.rules.rule import Axes, Edit, Free, SpaceWriting, position

REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


def _along(
    node: Reading, axis: int, inputs: tuple[int, ...], results: tuple[int, ...], *, symmetric: bool = False
) -> Free:
    """All these operands lie alike, and the attribute `axis` follows. `symmetric`: the operator does not mind in which
    order the elements along the axis come."""
    extents = node.extents(inputs[0])
    axes = tuple(range(len(extents)))
    return Free(
        extents,
        tuple(axes if i in inputs and node.has(i) else None for i in range(len(node.node.inputs))),
        tuple(axes if i in results else None for i in range(len(node.node.outputs))),
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        splits=tuple(a for a in axes if a != axis and len({node.extents(i)[a] for i in inputs}) == 1),
        mixes=(axis,) if symmetric else (),
    )


def _without(axes: Axes, *working: int) -> Axes:
    return tuple(a for a in axes if a not in working)


@row("free", "Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Reading) -> Free:
    # Hardmax takes the first of several equal ones.
    return _along(node, node.axis(-1, node.rank()), (0,), (0,), symmetric=node.node.op_type != "Hardmax")


@row("free", "Softmax", "LogSoftmax", "Hardmax")
def flattening_softmax(node: Reading) -> Free:
    """Before opset 13 the axes from `axis` on are one: they stay the innermost ones, in any order."""
    extents = node.extents(0)
    rank = len(extents)
    first = node.axis(1, rank)
    inner = {a for a in range(first, rank) if extents[a] != 1}
    axes = tuple(range(rank))

    def split_at(order: Axes) -> int | None:
        """Where the inner axes begin in this order; None where an outer axis stands among them."""
        start = next((p for p, a in enumerate(order) if a in inner), rank)
        clean = all(a in inner or extents[a] == 1 for a in order[start:])
        return start if clean else None

    def edit(order: Axes) -> Edit:
        start = split_at(order)
        assert start is not None
        return Edit({"axis": min(start, rank - 1)} if inner else {"axis": first})

    # With every inner axis a unit axis each element is its own softmax: only the source's order says that plainly.
    allows = (lambda order: split_at(order) is not None) if inner else (lambda order: order == axes)
    # Hardmax breaks ties by the flat index, so the inner axes also keep their order.
    if node.node.op_type == "Hardmax":
        loose = allows
        allows = lambda order: loose(order) and [a for a in order if a in inner] == sorted(inner)  # noqa: E731
    return Free(extents, (axes,), (axes,), allows=allows, edit=edit)


@row("free", "Concat")
def concat(node: Reading) -> Free:
    extents = node.result_extents()
    axes = tuple(range(len(extents)))
    if any(node.rank(i) != len(extents) for i in range(len(node.node.inputs))):
        raise NoRuleError
    axis = node.axis(None, len(extents))
    return Free(
        extents,
        tuple(axes for _ in node.node.inputs),
        (axes,),
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        splits=_without(axes, axis),
        steps=_steps({axis: [node.extents(i)[axis] for i in range(len(node.node.inputs))]}),
    )


def _steps(numbers: Mapping[int, Sequence[Extent]]) -> dict[int, int]:
    """For each axis the greatest number that divides all these; axes where one is unknown are left out."""
    known = {axis: [n for n in all_of if isinstance(n, int)] for axis, all_of in numbers.items()}
    return {axis: gcd(*known[axis]) for axis in numbers if len(known[axis]) == len(numbers[axis])}


@row("free", "Split")
def split(node: Reading) -> Free:
    """The axis that is split is another one in the results. Where its factors have changed places, each part is
    gathered by its indices: that reads and writes what Split does."""
    extents = node.extents(0)
    rank = len(extents)
    axis = node.axis(0, rank)
    part = axis + 1
    axes = (*range(part), *range(part + 1, rank + 1))
    result = (*range(axis), *range(part, rank + 1))
    sizes = [node.result_extents(i)[axis] for i in range(len(node.node.outputs))]
    beside = {part: axis, axis: part}

    def adjacent(order: Axes) -> bool:
        return all((a == axis) == (b == part) for a, b in zip(("", *order), (*order, ""), strict=True))

    def edit_steps(order: Axes, strides: Mapping[int, int]) -> Edit:
        attributes: dict[str, int | tuple[int, ...]] = {"axis": position(order, axes, axis)}
        given = node.ints("split")
        if given is not None:
            attributes["split"] = tuple(size // strides[axis] for size in given)
        if node.has(1):
            laid = np.array([size // strides[axis] for size in node.integers(1)], np.int64)
            return Edit(attributes, {1: laid})
        return Edit(attributes)

    def write(writing: SpaceWriting) -> None:
        places = [place for place, a in enumerate(writing.axes) if a != part]
        at = [writing.axes[place] for place in places].index(axis)
        data = writing.read(0, [(place,) for place in places])
        parts = [(place,) for place, a in enumerate(writing.axes) if a != axis]
        index, start = writing.places(axis), 0
        for n, size in enumerate(sizes):
            assert isinstance(size, int)
            wanted = writing.constant("part", index[start : start + size])
            start += size
            if writing.node.outputs[n].uses() or writing.node.outputs[n].is_graph_output():
                writing.give(n, writing.emit_dims("Gather", [data, wanted], {"axis": at}, parts), parts)

    known = all(isinstance(size, int) for size in sizes)
    return Free(
        # A part is at most the whole, and has a place where only some of the parts have extent 1.
        (*extents[:part], extents[axis], *extents[part:]),
        tuple(axes if i == 0 else None for i in range(len(node.node.inputs))),
        tuple(result for _ in sizes),
        allows=adjacent,
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        splits=_without(axes, axis),
        scrambles=(axis,) if known else (),
        steps=_steps({axis: sizes, part: sizes}) if node.ints("split") or not node.has(1) or node.is_known(1) else {},
        edit_steps=edit_steps,
        beside=beside,
        writes=adjacent,
        write=write,
    )


@row("free", "LpNormalization")
def lp_normalization(node: Reading) -> Free:
    return _along(node, node.axis(-1, node.rank()), (0,), (0,), symmetric=True)


@row("free", "TopK")
def top_k(node: Reading) -> Free:
    return _along(node, node.axis(-1, node.rank()), (0,), (0, 1))


@row("free", "GatherElements", since=11)
def gather_elements(node: Reading) -> Free:
    return _elements(node, (0, 1))


@row("free", "ScatterElements", "Scatter", since=9)
def scatter_elements(node: Reading) -> Free:
    if node.string("reduction", "none") != "none":
        raise NoRuleError  # repeated indices are added in index order: rounding would depend on the layout
    return _elements(node, (0, 1, 2))


def _elements(node: Reading, inputs: tuple[int, ...]) -> Free:
    if any(node.rank(i) != node.rank(0) for i in inputs):
        raise NoRuleError
    return _along(node, node.axis(0, node.rank()), inputs, (0,))


@row("free", "CumSum", "CumProd", since=11)
def cumulative(node: Reading) -> Free:
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    given = node.constant(1)
    axis = normal_axis(int(given.reshape(-1)[0]), len(extents))

    def edit(order: Axes) -> Edit:
        return Edit(constants={1: np.full(given.shape, position(order, axes, axis), given.dtype)})

    return Free(extents, (axes, None), (axes,), edit=edit, splits=_without(axes, axis))


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
            raise NoRuleError
        axes = tuple(range(rank))
        as_input = False
        if node.ints("axes") is None:
            return _reduced(node, axes, as_input=False, name="")
    return _reduced(node, axes, as_input=as_input, name="axes")


def _reduced(node: Reading, reduced: tuple[int, ...], *, as_input: bool, name: str) -> Free:
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
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
    # Which element is the largest depends on where it lies; what they sum up to does not.
    splits = _without(axes, *reduced) if name == "axis" else axes
    return Free(extents, inputs, (result,), edit=edit, splits=splits)


def _padding_axes(node: Reading, rank: int) -> tuple[int, ...]:
    given = node.axes(3, rank) if node.opset >= 18 else None
    if given is None:
        return tuple(range(rank))
    if node.has(3):
        return tuple(normal_axis(a, rank) for a in node.integers(3))
    return given


@row("free", "Pad")
def pad(node: Reading) -> Free:
    """`pads` holds all begins and then all ends, for every axis in order or for those of input 3."""
    extents = node.result_extents()
    rank = len(extents)
    axes = tuple(range(rank))
    as_input = node.opset >= 11
    pads = node.integers(1) if as_input else node.ints("pads")
    named = as_input and node.has(3)
    covered = _padding_axes(node, rank)
    if pads is None or len(pads) != 2 * len(covered):
        raise NoRuleError
    begins, ends = dict(zip(covered, pads, strict=False)), dict(zip(covered, pads[len(covered) :], strict=True))

    def edit(order: Axes) -> Edit:
        return edit_steps(order, {})

    def edit_steps(order: Axes, strides: Mapping[int, int]) -> Edit:
        def along(numbers: Mapping[int, int]) -> tuple[int, ...]:
            # What stands apart after the rest of its axis is not padded itself.
            return tuple(
                numbers.get(a, 0) // strides.get(a, 1) if order.index(a) == place else 0
                for place, a in enumerate(order)
            )

        laid = along(begins) + along(ends)
        if not as_input:
            return Edit({"pads": laid})
        constants = {1: np.array(laid, np.int64)}
        if named:
            constants[3] = np.arange(len(order), dtype=np.int64)
        return Edit(constants=constants)

    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    still = tuple(a for a in axes if begins.get(a, 0) == ends.get(a, 0) == 0)
    steps = {}
    if node.string("mode", "constant") == "constant":
        own = node.extents(0)
        steps = _steps({a: (own[a], begins.get(a, 0), ends.get(a, 0)) for a in axes if a not in still})
    return Free(extents, inputs, (axes,), edit=edit, splits=still, steps=steps, edit_steps=edit_steps)


@row("free", "Slice")
def slice_(node: Reading) -> Free:
    """Starts, ends and steps stay; the axes that they speak of are named anew."""
    extents = node.extents(0)
    rank = len(extents)
    axes = tuple(range(rank))
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

    def edit(order: Axes) -> Edit:
        places = tuple(position(order, axes, a) for a in sliced)
        return Edit(constants={3: np.array(places, np.int64)}) if as_input else Edit({"axes": places})

    windows = _windows(node, sliced) if as_input else {}

    def edit_steps(order: Axes, strides: Mapping[int, int]) -> Edit:
        bounds = [windows.get(a, (0, 0)) for a in sliced]
        firsts, lasts = node.integers(1), node.integers(2)
        units = [strides.get(a, 1) for a in sliced]
        starts = [b[0] // unit if unit > 1 else n for unit, b, n in zip(units, bounds, firsts, strict=True)]
        ends = [b[1] // unit if unit > 1 else n for unit, b, n in zip(units, bounds, lasts, strict=True)]
        return Edit(constants={1: np.array(starts, np.int64), 2: np.array(ends, np.int64), **edit(order).constants})

    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    steps = _steps({a: (extents[a], *window) for a, window in windows.items()})
    return Free(
        extents, inputs, (axes,), edit=edit, splits=_without(axes, *sliced), steps=steps, edit_steps=edit_steps
    )


def _windows(node: Reading, sliced: Axes) -> dict[int, tuple[int, int]]:
    """Where each sliced axis is cut out, as numbers from its front; only axes of known extent in steps of one."""
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
    extents = node.result_extents()
    axes = tuple(range(len(extents)))
    repeats = node.integers(1)
    if len(repeats) != len(axes):
        raise NoRuleError
    edit = lambda order: Edit(constants={1: np.array([repeats[a] for a in order], np.int64)})  # noqa: E731
    still = tuple(a for a in axes if repeats[a] == 1)
    return Free(extents, (axes, None), (axes,), edit=edit, splits=still)


@row("free", "Expand", since=8)
def expand(node: Reading) -> Free:
    extents = node.result_extents()
    rank, own = len(extents), node.rank()
    wanted = node.integers(1)
    axes = tuple(range(rank))
    full = (1,) * (rank - len(wanted)) + wanted

    def edit(order: Axes) -> Edit:
        return Edit(constants={1: np.array([full[a] for a in order], np.int64)})

    kept = tuple(a for a in axes if full[a] == 1)
    return Free(extents, (axes[rank - own :], None), (axes,), edit=edit, broadcasts=axes, splits=kept)


@row("free", "Gather")
def gather(node: Reading) -> Free:
    """The index's axes stand, in their own order, where the gathered axis stood."""
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

    # A list of places takes some of the axis, and the axis stays what it is.
    beside = {axis: inner[0], inner[0]: axis} if many == 1 else {}
    splits = _without(outer, axis)
    return Free(extents, (outer, None), (result,), allows=allows, edit=edit, splits=splits, beside=beside)


@row("free", "LayerNormalization", since=17)
@row("free", "RMSNormalization", since=23)
def layer_normalization(node: Reading) -> Free:
    """The normalised axes are the innermost ones; scale and bias have just these, in the same order.

    In another order the mean, the variance and what follows are computed one by one: reads and writes of the whole
    tensor are 1 + 2 + 1 + 2 + 2 (+ 2 with a bias) in place of 2.
    """
    extents = node.extents(0)
    rank = len(extents)
    first = node.axis(-1, rank)
    axes = tuple(range(rank))
    inner = set(range(first, rank))
    results = [i for i, value in enumerate(node.node.outputs) if i == 0 or node.used(i)]

    def parameter(index: int) -> Axes | None:
        if not node.has(index):
            return None
        own = node.rank(index)
        return axes[rank - own :]

    def innermost(order: Axes) -> int:
        """Where the normalised axes begin if nothing else follows them."""
        return next((place for place, a in enumerate(order) if a in inner), rank)

    def allows(order: Axes) -> bool:
        return all(a in inner for a in order[innermost(order) :])

    inputs = (axes, *(parameter(i) for i in range(1, len(node.node.inputs))))
    known = all(isinstance(extents[a], int) for a in inner)
    decomposes = node.node.op_type == "LayerNormalization" and node.is_float() and results == [0] and known
    return Free(
        extents,
        inputs,
        tuple(axes for _ in node.node.outputs),
        allows=allows,
        edit=lambda order: Edit({"axis": innermost(order)}),
        splits=axes,
        broadcasts=axes,
        writes=(lambda _order: True) if decomposes else (lambda _order: False),
        write=(lambda writing: normalise(writing, inner)) if decomposes else None,
        extra=lambda _order: ((axes, 8 if node.has(2) else 6),),
    )


@row("free", "MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Reading) -> Free:
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    normalised = tuple(normal_axis(a, len(axes)) for a in node.ints("axes") or (0, 2, 3))

    def edit(order: Axes) -> Edit:
        return Edit({"axes": tuple(place for place, a in enumerate(order) if a in normalised)})

    return Free(extents, (axes,), (axes,), edit=edit, splits=axes)


@row("free", "ReverseSequence", since=10)
def reverse_sequence(node: Reading) -> Free:
    """Batch and time are the two outermost axes, either way round."""
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)

    def edit(order: Axes) -> Edit:
        return Edit({"batch_axis": order.index(batch), "time_axis": order.index(time)})

    return Free(
        extents, (axes, None), (axes,), allows=lambda order: {*order[:2]} == {batch, time}, edit=edit
    )


@row("free", "Trilu", since=14)
@row("free", "Det", since=11)
def matrices(node: Reading) -> Free:
    """A stack of matrices: the stack's axes go anywhere outside, the last two stay."""
    extents = node.extents(0)
    rank = len(extents)
    axes = tuple(range(rank))
    result = tuple(range(node.result_rank()))
    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    return Free(extents, inputs, (result,), allows=lambda order: order[-2:] == (rank - 2, rank - 1))


@row("free", "Compress", since=9)
def compress(node: Reading) -> Free:
    if node.attribute("axis") is None:
        raise NoRuleError  # flattens: the order of the result's elements is the order in memory
    return _along(node, node.axis(None, node.rank()), (0,), (0,))


@row("free", "OneHot", since=9)
def one_hot(node: Reading) -> Free:
    """The result has one axis more than the indices: the axis of the depth."""
    extents = node.result_extents()
    rank = len(extents)
    axis = node.axis(-1, rank)
    axes = tuple(range(rank))
    indices = tuple(a for a in axes if a != axis)
    edit = lambda order: Edit({"axis": position(order, axes, axis)})  # noqa: E731
    return Free(extents, (indices, None, None), (axes,), edit=edit, splits=indices)
