"""Operators that work on each element by itself, with numpy-style broadcasting from the right."""

from __future__ import annotations

from relayout.layout.memory_format import Extent
from relayout.ops.node_reader import NoRuleError, Reading, extents_of
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Edit, Free, free, position

UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
    "Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
).split()
BROADCAST = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean "
    "Min Mod Mul Or Pow PRelu Sub Sum Where Xor"
).split()
ZEROS = frozenset(
    "Abs Add Asin Asinh Atan Atanh Ceil Elu Celu Erf Floor Gelu HardSwish LeakyRelu Max Mean Min Mish Mul Neg "
    "Relu Round Selu Sign Sin Sinh Softsign Sqrt Sub Sum Swish Tan Tanh".split()
)
"""The operators whose result is zero where all operands are zero."""


@row("free", *UNARY, *BROADCAST)
def elementwise(node: Reading) -> Free:
    extents, axes = node.result_space()
    rank = len(axes)

    def aligned(index: int) -> Axes | None:
        if not node.has(index):
            return None
        own = node.rank(index)
        if own > rank:
            raise NoRuleError
        return axes[rank - own :]

    inputs = tuple(aligned(i) for i in range(len(node.node.inputs)))
    zeros = tuple(a for a in axes if _keeps_zeros(node, inputs, extents, a)) if node.node.op_type in ZEROS else ()
    return free(extents, inputs, (axes,), tileable=axes, broadcasts=axes, zero_preserving=zeros)


def _keeps_zeros(node: Reading, inputs: tuple[Axes | None, ...], extents: tuple[Extent, ...], axis: int) -> bool:
    """Whether every operand has the axis at its full extent: then all are padded alike, and zeros only meet zeros."""
    for index, axes in enumerate(inputs):
        if axes is None or axis not in axes or node.extents(index)[axes.index(axis)] != extents[axis]:
            return False
    return True


@row("free", "Clip")
def clip(node: Reading) -> Free:
    """The bounds are scalars in every layout. Runtimes take some with a shape of [1] too, but none with more dims."""
    extents, axes = node.space()
    bounds = (None,) * (len(node.node.inputs) - 1)
    zeros = axes if _clips_around_zero(node) else ()
    return free(extents, (axes, *bounds), (axes,), tileable=axes, zero_preserving=zeros)


def _clips_around_zero(node: Reading) -> bool:
    bounds = [0.0, 0.0]
    for place, name in enumerate(("min", "max")):
        attribute = node.attribute(name)
        if attribute is not None:
            bounds[place] = attribute.as_float()
        elif node.opset >= 11 and node.has(place + 1):
            try:
                bounds[place] = float(node.scalar(place + 1))
            except NoRuleError:
                return False
    return bounds[0] <= 0 <= bounds[1]


@row("free", "CastLike")
def like(node: Reading) -> Free:
    """Of its second operand, only the type is read: its axes are no others' and come in any order."""
    extents, axes = node.space()
    others = extents_of(node.node.inputs[1])
    if others is None:
        return free(extents, (axes, None), (axes,), tileable=axes)
    own = tuple(range(len(axes), len(axes) + len(others)))
    return free(extents + others, (axes, own), (axes,), tileable=axes + own)


@row("free", "QuantizeLinear", "DequantizeLinear", since=10)
def quantize(node: Reading) -> Free:
    """Scale and zero point are scalars, a vector along `axis`, or (blocked) tensors of the input's own rank.

    Before opset 13 ONNX has no `axis`; onnxruntime takes a vector along axis 1 there.
    """
    extents, axes = node.space()
    scale_rank = node.rank(1)
    if node.is_single(1):
        return free(extents, (axes, *(None,) * (len(node.node.inputs) - 1)), (axes,), tileable=axes)
    axis = node.axis(1, len(extents))
    if node.integer("block_size", 0):
        if scale_rank != len(extents):
            raise NoRuleError
        parameter: Axes | None = axes
    else:
        parameter = None
    inputs = (axes, *(parameter if node.has(i) else None for i in range(1, len(node.node.inputs))))
    if not node.node.domain and node.opset < 13:
        return free(extents, inputs, (axes,), allows=lambda order: position(order, axes, axis) == axis)
    return free(extents, inputs, (axes,), edit=lambda order: Edit({"axis": position(order, axes, axis)}))


@row("free", "DynamicQuantizeLinear", since=11)
def dynamic_quantize(node: Reading) -> Free:
    extents, axes = node.space()
    return free(extents, (axes,), (axes, None, None), tileable=axes)


@row("free", "Shape")
def shape(node: Reading) -> Free:
    """The result has an entry per axis of the input, or per axis from `start` to `end`, which are gathered in the
    source's order. The extent of a tiled or padded axis is known."""
    extents, axes = node.space()
    wanted = axes[node.integer("start", 0) : node.integer("end", len(axes))] if node.opset >= 15 else axes
    known = tuple(axis for axis, size in enumerate(extents) if isinstance(size, int))
    edit = Edit(dict.fromkeys(("start", "end")), gather=wanted)
    return free(extents, (axes,), (None,), edit=lambda order: edit, tileable=known, zero_preserving=known)


@row("free", "Size")
def size(node: Reading) -> Free:
    extents, axes = node.space()
    return free(extents, (axes,), (None,), tileable=axes)
