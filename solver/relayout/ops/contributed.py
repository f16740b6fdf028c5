"""onnxruntime's contributed operators, of the domain com.microsoft: quantized operators, fused products, activations.

Tools write them into models: `quantize_static` in QOperator format, and onnxruntime's offline optimizations. The rows
are what an operator computes, whatever the target; a kernel's own layouts are in `relayout_backends`. Source:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from relayout.layout.memory_format import Extent
from relayout.ops.contractions import gemm, product_rule
from relayout.ops.elementwise import elementwise, quantize
from relayout.ops.named_axes import native_letters
from relayout.ops.node_reader import NodeSnapshot, NoRuleError, Reading
from relayout.ops.registry import built_rule, row, row_for
from relayout.ops.rule import Axes, Edit, Free, Listed, Rule, free

CONTRIBUTED = "com.microsoft"
"""The domain."""


class Quantized(Struct, frozen=True):
    """A quantized operator: ONNX's `operator` on dequantized operands, and its result quantized.

    `data` are the operands of ONNX's operator. Scale and zero point follow each, except those in `plain`, and `scale`
    is the index of the result's scale, which its zero point follows.
    """

    operator: str
    data: tuple[int, ...]
    scale: int
    plain: tuple[int, ...] = ()


_QUANTIZED = {
    "QGemm": Quantized("Gemm", (0, 3, 6), 7, plain=(6,)),
    "QLinearAdd": Quantized("Add", (0, 3), 6),
    "QLinearAveragePool": Quantized("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": Quantized("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": Quantized("LeakyRelu", (0,), 3),
    "QLinearMul": Quantized("Mul", (0, 3), 6),
    "QLinearSigmoid": Quantized("Sigmoid", (0,), 3),
    "QLinearSoftmax": Quantized("Softmax", (0,), 3),
    "QLinearWhere": Quantized("Where", (0, 1, 4), 7, plain=(0,)),
}
_POOLS = ("QLinearAveragePool", "QLinearGlobalAveragePool")


def quantized_form(op_type: str, count: int) -> Quantized | None:
    """How a quantized operator with `count` operands is one of ONNX's; None for any other operator."""
    if op_type == "QLinearConcat":
        return Quantized("Concat", tuple(range(2, count, 3)), 0)
    return _QUANTIZED.get(op_type)


@row("free", *sorted({*_QUANTIZED} - {*_POOLS, "QGemm"}), "QLinearConcat", since=1, domain=CONTRIBUTED)
def quantized_free(node: Reading) -> Free:
    """The rule of ONNX's operator on the data. Scales and zero points are scalars, so that no order touches them."""
    form = _form(node)
    _check_scalars(node, form.data)
    rule = _onnx_rule(node, form)
    assert isinstance(rule, Free)
    # A zero is stored as the zero point, which need not be zero; and ONNX's decompositions are of floats.
    traits = tuple([replace(each, zero_preserving=False) for each in rule.traits])
    return replace(rule, inputs=_spread(node, form, rule.inputs), traits=traits, decompositions=())


@row("contract", "QGemm", since=1, domain=CONTRIBUTED)
def quantized_gemm(node: Reading) -> Listed:
    """The second operand and its bias may have a scale for each column."""
    form = _form(node)
    _check_scalars(node, (*form.data, 4, 5))
    rule = _onnx_rule(node, form)
    assert isinstance(rule, Listed)
    # In its own place alone the second operand has scales.
    listed = [(ins, outs, change) for ins, outs, change in rule.alternatives if isinstance(change, Edit)]
    return Listed(tuple([(_spread(node, form, ins), outs, change) for ins, outs, change in listed]))


@row("free", *_POOLS, "QLinearConv", since=1, domain=CONTRIBUTED)
def second_or_last(node: Reading) -> Free:
    """Channels are second or, with `channels_last`, last. Attributes list the spatial axes alike, and the kernel of a
    convolution lies alike."""
    if node.node.op_type in _POOLS:
        _check_scalars(node, (0,))
    return _second_or_last(node, is_last=bool(node.integer("channels_last", 0)))


@row("free", "GroupNorm", "SkipGroupNorm", since=1, domain=CONTRIBUTED)
def group_norm(node: Reading) -> Free:
    """Channels are last or, without `channels_last`, second. A summand is data, or has no spatial axes.

    Channels that are last stay last, as onnxruntime's kernels for CUDA and ROCm take no others
    (contrib_ops/cuda/diffusion/group_norm.cc of https://github.com/microsoft/onnxruntime).
    """
    if node.rank(0) != 4:
        raise NoRuleError
    is_last = bool(node.integer("channels_last", 1))
    rule = _second_or_last(node, is_last=is_last, stays_last=True)
    if node.node.op_type == "GroupNorm":
        return rule
    (data, *rest), outputs = rule.inputs, tuple([rule.outputs[0] for _ in node.node.outputs])
    assert data is not None
    skip = node.extents(3)
    if skip != node.extents(0) and len(skip) != 2:
        raise NoRuleError  # in which order its axes of extent 1 are read is not defined for channels second
    rest[2] = data if len(skip) == 4 else (data[0], data[3 if is_last else 1])
    return replace(rule, inputs=(data, *rest), outputs=outputs)


def _second_or_last(node: Reading, *, is_last: bool, stays_last: bool = False) -> Free:
    read, made = node.extents(0), node.result_extents()
    rank = len(read)
    if rank < 3 or len(made) != rank:
        raise NoRuleError
    axes = tuple(range(rank))
    first = (0, rank - 1, *range(1, rank - 1)) if is_last else axes
    last = axes if is_last else (0, *range(2, rank), 1)
    letters = native_letters(rank)
    rule = free(
        # An axis of extent 1 in the data, such as one channel, may be longer in the result.
        tuple([result if own == 1 else own for own, result in zip(read, made, strict=True)]),
        (axes, *(None,) * (len(node.node.inputs) - 1)),
        (axes,),
        allows=lambda order: order == last or (order == first and not (is_last and stays_last)),
        edit=lambda order: Edit({"channels_last": int(order == last)}),
    )
    return replace(rule, told_names="".join(letters[first.index(axis)] for axis in axes))


@row("contract", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", since=1, domain=CONTRIBUTED)
def product_of_integers(node: Reading) -> Free:
    """The second operand may have a scale and zero point for each column, and there may be a bias: columns stay."""
    single = (2, 4) if node.node.op_type == "MatMulIntegerToFloat" else ()
    if not all(map(node.is_single, single)):
        raise NoRuleError
    if any(node.has(index) and node.rank(index) > 1 for index in range(2, len(node.node.inputs))):
        raise NoRuleError  # a scale for each column of each matrix of a batch
    rule = product_rule(node, 1)
    column = replace(rule.traits[-1], permutable_within="")
    return replace(rule, traits=(*rule.traits[:-1], column))


@row("contract", "FusedMatMul", since=1, domain=CONTRIBUTED)
def fused_product(node: Reading) -> Listed:
    """A scaled product of matrices in batches, either perhaps transposed."""
    ranks = node.rank(0), node.rank(1)
    if min(ranks) < 2:
        raise NoRuleError
    return gemm(node, ranks)


@row("contract", "MatMulNBits", since=1, domain=CONTRIBUTED)
def product_with_packed_weights(node: Reading) -> Free:
    """The weights are packed in blocks along the contracted axis, column by column."""
    return _along_last(node, (0,), (0,), node.result_extents()[-1:])


row("free", "Gelu", "QuickGelu", since=1, domain=CONTRIBUTED)(elementwise)
row("free", "QuantizeLinear", "DequantizeLinear", since=1, domain=CONTRIBUTED)(quantize)


@row("free", "BiasGelu", "FastGelu", since=1, domain=CONTRIBUTED)
def biased_activation(node: Reading) -> Free:
    """A bias belongs to the last axis, which stays innermost."""
    return _along_last(node, (0,), (0,)) if node.has(1) else elementwise(node)


@row("free", "BiasAdd", since=1, domain=CONTRIBUTED)
def biased_sum(node: Reading) -> Free:
    """A sum of data and a bias along the last axis, which stays innermost."""
    if node.extents(0) != node.extents(2):
        raise NoRuleError
    return _along_last(node, (0, 2), (0,))


@row("free", "BiasSplitGelu", since=1, domain=CONTRIBUTED)
def biased_gate(node: Reading) -> Free:
    """One half of the last axis, which stays innermost, gates the other."""
    return _along_last(node, (0,), (0,), node.result_extents()[-1:])


@row("free", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", since=1, domain=CONTRIBUTED)
def skip_normalization(node: Reading) -> Free:
    """Parameters belong to the last axis, which is normalised and stays innermost."""
    if node.extents(0) != node.extents(1) or node.used(1) or node.used(2):
        raise NoRuleError
    return _along_last(node, (0, 1), (0, 3))


def _along_last(
    node: Reading, data: Collection[int], results: Collection[int], column: tuple[Extent, ...] = ()
) -> Free:
    """All these operands have one layout, in which the last axis is innermost. `column`: of the results it is another,
    of this extent."""
    extents = node.extents(0)
    axes = tuple(range(len(extents) + len(column)))
    last, given, made = axes[len(extents) - 1 :], axes[: len(extents)], (*axes[: len(extents) - 1], *axes[-1:])
    return free(
        (*extents, *column),
        tuple(given if i in data else None for i in range(len(node.node.inputs))),
        tuple(made if i in results else None for i in range(len(node.node.outputs))),
        allows=lambda order: order[-len(last) :] == last,
    )


def _form(node: Reading) -> Quantized:
    form = quantized_form(node.node.op_type, len(node.node.inputs))
    if form is None or not all(index < len(node.node.inputs) for index in form.data if index not in form.plain):
        raise NoRuleError
    return form


def _onnx_rule(node: Reading, form: Quantized) -> Rule:
    """The rule of ONNX's operator with the data operands alone."""
    own = node.node
    inputs = tuple([own.inputs[index] if node.has(index) else None for index in form.data])
    # A softmax has the opset of the operator that it was made from; the others are the same in every opset.
    opset = node.integer("opset", 13)
    found = row_for("", form.operator, opset)
    snapshot = NodeSnapshot("", form.operator, inputs, own.outputs, own.attributes)
    reading = Reading(snapshot, opset)
    rule = built_rule(found, reading) if found is not None else None
    node.reads.update(form.data[index] for index in reading.reads)
    if rule is None:
        raise NoRuleError
    return rule


def _spread(node: Reading, form: Quantized, axes: Sequence[Axes | None]) -> tuple[Axes | None, ...]:
    """For each operand, its axes among those of ONNX's operator."""
    of_data = dict(zip(form.data, axes, strict=True))
    return tuple([of_data.get(index) for index in range(len(node.node.inputs))])


def _check_scalars(node: Reading, data: Collection[int]) -> None:
    if not all(node.is_single(index) for index in range(len(node.node.inputs)) if index not in data):
        raise NoRuleError
