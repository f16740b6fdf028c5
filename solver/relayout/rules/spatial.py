"""Operators whose axes have names: batch, channels and spatial axes.

A source node of domain `relayout` names its axes by `data_layout` and `kernel_layout`; a standard one has ONNX's names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from relayout.rules.decompositions import channelwise, instance_normalise, is_channelwise, reduce_spatial
from relayout.rules.reading import NoRuleError, Reading
from relayout.rules.registry import row
from relayout.rules.relabels import blocks
from relayout.rules.rule import Axes, Edit, Fixed, Free, Shared, SpaceWriting, position

SPATIAL = {0: "", 1: "W", 2: "HW", 3: "DHW"}


def operand_by_operand(rule: Free) -> Fixed:
    """The same operator with letters for each operand, which may then lie in pieces that one space has no order for."""
    native = native_letters(len(rule.letters))

    def letters(operands: Sequence[Axes | None]) -> tuple[str | None, ...]:
        whole = (axes if axes is not None and len(axes) == len(native) else None for axes in operands)
        return tuple("".join(rule.letters[a] for a in axes) if axes is not None else None for axes in whole)

    inputs, outputs = letters(rule.inputs), letters(rule.outputs)
    return Fixed(
        inputs,
        outputs,
        tuple(native if names is not None else None for names in inputs),
        tuple(native if names is not None else None for names in outputs),
    )


def native_letters(rank: int) -> str:
    """ONNX's names for the axes of a data tensor: NC, NCW, NCHW, NCDHW."""
    if rank - 2 not in SPATIAL:
        raise NoRuleError
    return "NC" + SPATIAL[rank - 2]


def _letters(node: Reading, rank: int, attribute: str = "data_layout", native: str = "") -> str:
    native = native or native_letters(rank)
    given = node.string(attribute) if node.node.domain == "relayout" else ""
    if given and sorted(given) != sorted(native):
        raise NoRuleError
    return given or native


def _named(
    node: Reading,
    alike: tuple[int, ...],
    allows_native: str,
    *,
    results: int = 1,
    write: Callable[[SpaceWriting, int, Axes], None] | None = None,
    passes: int = 0,
) -> Free:
    """Data operands that lie alike; `allows_native` says which orders ONNX's own operator takes.

    "exact": its own order. "channel": channels second, the rest anywhere. "leading": batch and channels outermost, the
    spatial axes in any order. `write` writes the operator in any order, given the channel axis and the spatial ones,
    and reads and writes the data `passes` times more than the operator does.
    """
    extents = node.extents(0)
    rank = len(extents)
    axes = tuple(range(rank))
    letters = _letters(node, rank)
    native = tuple(letters.index(letter) for letter in native_letters(rank))
    channel = letters.index("C")
    spatial = tuple(a for a in axes if letters[a] not in "NC")

    def allows(order: Axes) -> bool:
        if allows_native == "channel":
            return order[1] == channel
        if allows_native == "leading":
            return {*order[:2]} == {*native[:2]}
        return order == native

    def operand(index: int) -> Axes | None:
        return axes if index in alike and node.has(index) else None

    return Free(
        extents,
        tuple(operand(i) for i in range(len(node.node.inputs))),
        tuple(axes if i < results else None for i in range(len(node.node.outputs))),
        allows=allows,
        letters=letters,
        writes=(lambda order: len(order) == rank) if write is not None else (lambda _order: False),
        write=(lambda writing: write(writing, channel, spatial)) if write is not None else None,
        extra=lambda _order: ((axes, passes),) if passes else (),
    )


@row("fixed", "BatchNormalization")
def batch_normalization(node: Reading) -> Free:
    """With known parameters a multiplication and an addition: one more pass over the data, read and written."""
    if node.rank() < 2:
        raise NoRuleError
    known = is_channelwise(node.node) and node.is_float() and not any(node.used(i) for i in range(1, 5))
    known = known and isinstance(node.extents(0)[_letters(node, node.rank()).index("C")], int)
    write = (lambda writing, channel, _spatial: channelwise(writing, channel)) if known else None
    return _named(node, (0,), "channel", write=write, passes=2)


@row("fixed", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Reading) -> Free:
    """A reduction over the spatial axes reads and writes just as much."""
    operator = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(node.node.op_type)
    if operator is None or not node.is_float():
        return _named(node, (0,), "leading")
    return _named(
        node, (0,), "leading", write=lambda writing, _channel, spatial: reduce_spatial(writing, operator, spatial)
    )


@row("fixed", "InstanceNormalization", "GroupNormalization")
def instance_normalization(node: Reading) -> Free:
    """Written out, it reads and writes the data 10 times in place of 2."""
    known = all(isinstance(extent, int) for extent in node.extents(0)[2:])
    plain = node.node.op_type == "InstanceNormalization" and node.node.domain == "" and known and node.is_float()
    if not plain or not all(_is_vector(node, index) for index in (1, 2)):
        return _named(node, (0,), "exact")
    rule = _named(node, (0,), "exact", write=instance_normalise, passes=8)
    channel = rule.letters.index("C")
    return replace(rule, inputs=(rule.inputs[0], (channel,), (channel,)))


def _is_vector(node: Reading, index: int) -> bool:
    return node.has(index) and node.rank(index) == 1


@row("fixed", "LRN", "AveragePool", "LpPool")
def exact(node: Reading) -> Free:
    return _named(node, (0,), "exact")


@row("relabel", "SpaceToDepth", "DepthToSpace")
def blocks_of_space(node: Reading) -> Free:
    """The operator changes the extents but not the axes, and its orders are all that matters where it is kept."""
    rule = _named(node, (0,), "exact")
    return replace(rule, left_out=blocks(node, rule.letters))


@row("fixed", "MaxPool")
def max_pool(node: Reading) -> Free:
    # The function around a re-laid-out MaxPool computes ONNX's own flat indices, so they mean the same in any layout.
    return _named(node, (0,), "exact", results=2)


@row("fixed", "MaxUnpool", since=9)
def max_unpool(node: Reading) -> Free:
    return _named(node, (0, 1), "exact")


@row("free", "Resize", since=10)
@row("free", "Upsample", since=7)
def resize(node: Reading) -> Free:
    """Nearest goes in any order; linear and cubic where onnxruntime has kernels: resized axes innermost, in order.

    ONNX does not name these axes: what is resized are rows and columns, so the axes are ONNX's own, N, C, H, W, unless
    axis 1 is resized and the last one is not. Names that hung on the operators around could ask two things at once.
    """
    extents, result = node.extents(0), node.result_extents()
    rank = len(extents)
    axes = tuple(range(rank))
    if node.node.domain == "relayout":
        return _named(node, (0,), "exact")  # the function's sizes are in ONNX's own order
    operator, opset = node.node.op_type, node.opset
    if operator == "Upsample" and opset >= 10:
        raise NoRuleError
    mode = node.string("mode", "nearest")
    per_axis: dict[int, str] = {}
    if operator == "Upsample" and opset < 9:
        if node.attribute("scales") is None:
            raise NoRuleError
    elif operator == "Upsample" or opset == 10:
        per_axis = {1: "scales"}
    else:
        per_axis = {index: name for index, name in ((1, "roi"), (2, "scales"), (3, "sizes")) if node.has(index)}
    try:
        arrays = {index: node.constant(index) for index in per_axis}
    except NoRuleError:
        # Sizes that are computed at run time: as it is, or inside a function.
        return _named(node, (0,), "exact")
    named = node.ints("axes")
    covered = tuple(a % rank for a in named) if named is not None else axes
    if node.string("keep_aspect_ratio_policy", "stretch") != "stretch" or node.string(
        "coordinate_transformation_mode"
    ) == "tf_crop_and_resize":
        return _named(node, (0,), "exact")
    if operator == "Upsample" and opset < 9:
        factors: Sequence[float] = node.node.attributes["scales"].as_floats()
    else:
        given = next((arrays[index] for index, name in per_axis.items() if name == "scales"), np.zeros(0))
        factors = given.tolist() if given.size == len(covered) else ()
    scaled = {a: factor != 1 for a, factor in zip(covered, factors, strict=False)}
    moved = {a for a in axes if scaled.get(a, isinstance(extents[a], int) and extents[a] != result[a])}
    # A scale that rounds to the same extent changes nothing that would name the axis.
    letters = _resized_letters({a for a in moved if not isinstance(extents[a], int) or extents[a] != result[a]}, rank)
    # Of an axis of unknown extent it is not known that it stays.
    moving = moved | {a for a in axes if a not in scaled and not isinstance(extents[a], int)}
    if rank == 4 and moving <= {letters.index("H"), letters.index("W")}:
        moving = {letters.index("H"), letters.index("W")}

    def allows(order: Axes) -> bool:
        if order == axes or mode == "nearest":
            return True
        if rank != 4 or len(moving) != 2:
            return False
        still = [a for a in order if a not in moving]
        spatial = [a for a in order if a in moving]
        if spatial != sorted(moving) or len(still) != 2:
            return False
        # onnxruntime: outermost two still, or (linear only) the outermost and the innermost one.
        return {*order[:2]} == {*still} or (mode == "linear" and {order[0], order[3]} == {*still})

    def edit(order: Axes) -> Edit:
        if operator == "Upsample" and opset < 9:
            scales = node.node.attributes["scales"].as_floats()
            return Edit({"scales": tuple(scales[a] for a in order)})
        sequence = sorted(range(len(covered)), key=lambda i: order.index(covered[i]))
        attributes = {"axes": tuple(position(order, axes, covered[i]) for i in sequence)} if named is not None else {}
        constants = {}
        for index, array in arrays.items():
            if array.size == len(covered):
                constants[index] = array[sequence]
            elif array.size == 2 * len(covered):
                constants[index] = array.reshape(2, -1)[:, sequence].reshape(-1)
        return Edit(attributes, constants)

    inputs = (axes, *(None for _ in node.node.inputs[1:]))
    return Free(extents, inputs, (axes,), allows=allows, edit=edit, letters=letters)


def _resized_letters(moved: set[int], rank: int) -> str:
    """The names of the axes of which these are resized; none where a tensor of this rank has no rows and columns."""
    if rank not in (3, 4, 5):
        return ""
    channels_last = 1 in moved and rank - 1 not in moved and 0 not in moved
    return f"N{SPATIAL[rank - 2]}C" if channels_last else native_letters(rank)


def _convolution(node: Reading, kernel: int, data: tuple[int, ...], native_kernel: str) -> Fixed:
    rank = node.rank(0)
    letters = _letters(node, rank)
    native = native_letters(rank)
    native_weight = native_kernel + SPATIAL[rank - 2]
    weight = _letters(node, rank, "kernel_layout", native_weight)
    result = _letters(node, rank, "out_layout", native) if node.attribute("out_layout") is not None else letters

    def names(index: int, data_letters: str, weight_letters: str) -> str | None:
        if not node.has(index):
            return None
        return weight_letters if index == kernel else data_letters if index in data else None

    count = range(len(node.node.inputs))
    return Fixed(
        tuple(names(i, letters, weight) for i in count),
        (result,),
        tuple(names(i, native, native_weight) for i in count),
        (native,),
        kernel=kernel,
        mixes=_mixed_channels(node, kernel, letters, weight, result),
    )


def _mixed_channels(node: Reading, kernel: int, letters: str, weight: str, result: str) -> tuple[Shared, ...]:
    """The channels that may come in any order, if the kernel and the bias have them in the same one."""
    if node.node.op_type not in ("Conv", "ConvTranspose"):
        return ()
    inward, outward = (False, 0, letters.index("C")), (True, 0, result.index("C"))
    bias: Shared = ((False, 2, 0),) if node.has(2) else ()
    if node.integer("group", 1) == 1:
        return (
            (inward, (False, kernel, weight.index("I"))),
            (outward, (False, kernel, weight.index("O")), *bias),
        )
    # One kernel for each channel: all of them go together.
    own = (False, kernel, weight.index("I" if node.node.op_type == "ConvTranspose" else "O"))
    kernels = node.extents(kernel)
    deep = kernels[weight.index("O" if node.node.op_type == "ConvTranspose" else "I")]
    is_depthwise = deep == 1 and node.integer("group", 1) == kernels[own[2]]
    return ((inward, own, outward, *bias),) if is_depthwise else ()


@row("fixed", "Conv")
@row("fixed", "ConvInteger", since=10)
def convolution(node: Reading) -> Fixed:
    return _convolution(node, 1, (0,), "OI")


@row("fixed", "ConvTranspose")
def transposed_convolution(node: Reading) -> Fixed:
    return _convolution(node, 1, (0,), "IO")


@row("fixed", "QLinearConv", since=10)
def quantised_convolution(node: Reading) -> Fixed:
    return _convolution(node, 3, (0,), "OI")


@row("fixed", "DeformConv", since=19)
def deformable_convolution(node: Reading) -> Fixed:
    if node.rank() != 4:
        raise NoRuleError
    return _convolution(node, 1, (0, 2, 4), "OI")


def _data_only(node: Reading) -> Fixed:
    rank = node.rank(0)
    letters, native = _letters(node, rank), native_letters(rank)
    rest = (None,) * (len(node.node.inputs) - 1)
    return Fixed((letters, *rest), (letters,), (native, *rest), (native,))


@row("fixed", "RoiAlign", since=10)
@row("fixed", "MaxRoiPool")
@row("fixed", "GridSample", since=16)
def sampling(node: Reading) -> Fixed:
    """Boxes and grids keep their own layout."""
    return _data_only(node)
