"""Operators that work on each element by itself, with numpy-style broadcasting from the right."""

from __future__ import annotations

from relayout.rules.reading import NoRuleError, Reading
from relayout.rules.registry import row
from relayout.rules.rule import Axes, Edit, Free, position

UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
    "Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
).split()
BROADCAST = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean "
    "Min Mod Mul Or Pow PRelu Sub Sum Where Xor"
).split()


@row("free", *UNARY, *BROADCAST, "Clip")
def elementwise(node: Reading) -> Free:
    extents = node.result_extents()
    rank = len(extents)

    def aligned(index: int) -> Axes | None:
        if not node.has(index):
            return None
        own = node.rank(index)
        if own > rank:
            raise NoRuleError
        return tuple(range(rank - own, rank))

    inputs = tuple(aligned(i) for i in range(len(node.node.inputs)))
    return Free(extents, inputs, (tuple(range(rank)),), splits=True, broadcasts=tuple(range(rank)))


@row("free", "CastLike")
def like(node: Reading) -> Free:
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    return Free(extents, (axes, None), (axes,), splits=True)


@row("free", "QuantizeLinear", "DequantizeLinear", since=10)
def quantize(node: Reading) -> Free:
    """Scale and zero point are scalars, a vector along `axis`, or (blocked) tensors of the input's own rank."""
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    scale_rank = node.rank(1)
    if scale_rank == 0 or node.extents(1) == (1,):
        return Free(extents, (axes, *(None,) * (len(node.node.inputs) - 1)), (axes,), splits=True)
    axis = node.axis(1, len(extents))
    if node.integer("block_size", 0):
        if scale_rank != len(extents):
            raise NoRuleError
        parameter: Axes | None = axes
    else:
        parameter = None
    inputs = (axes, *(parameter if node.has(i) else None for i in range(1, len(node.node.inputs))))
    return Free(
        extents, inputs, (axes,), edit=lambda order: Edit({"axis": position(order, axes, axis)})
    )


@row("free", "DynamicQuantizeLinear", since=11)
def dynamic_quantize(node: Reading) -> Free:
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    return Free(extents, (axes,), (axes, None, None), splits=True)


@row("free", "Shape")
def shape(node: Reading) -> Free:
    """The result has an entry per axis of the input: read back in the source's order."""
    extents = node.extents(0)
    axes = tuple(range(len(extents)))
    if node.opset >= 15 and (node.attribute("start") is not None or node.attribute("end") is not None):
        raise NoRuleError

    def edit(order: Axes) -> Edit:
        return Edit(gather=tuple(order.index(axis) for axis in axes))

    return Free(extents, (axes,), (None,), edit=edit)


@row("free", "Size")
def size(node: Reading) -> Free:
    extents = node.extents(0)
    return Free(extents, (tuple(range(len(extents))),), (None,), splits=True)
