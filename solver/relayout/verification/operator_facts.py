"""The verifier's facts about operators: the axis names of their operands, and the map from input to result axes.

They are separate from the operator table of the solver on purpose, so that a fault in one is found by the other. An
operator without facts is unknown to the verifier, and never leads to a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import operator_layouts_of
from relayout.backend.interface import Backend, Implementation
from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.relaid_constant import is_one_of
from relayout.ops.node_reader import constant_tensor

AxisNames = tuple[str | None, ...]
"""One letter for each axis, None if it is not known."""

_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


class Named(Struct, frozen=True):
    """An operator that reads axes by name: its data operands, its data results, and the index of its kernel.

    With `spatial` the data is batch, channels, then spatial axes; without, only the channels at axis 1 have a name.
    With `pooled` the first two axes are kept and the others reduced, in any order of each. With `by_place` no axis has
    a name, but attributes list axes in the order of the layout. `declared` are the backend's layouts of an operator of
    its own. `last` is the default of an attribute `channels_last`. With `ordered` it takes neighbouring channels, or
    groups of channels, together.
    """

    inputs: tuple[int, ...] = (0,)
    results: tuple[int, ...] = (0,)
    kernel: int | None = None
    spatial: bool = True
    pooled: bool = False
    by_place: bool = False
    declared: Implementation | None = None
    last: int = 0
    ordered: bool = False

    @property
    def names_axes(self) -> bool:
        """Whether the operator names its axes itself; if not, its operand does."""
        return not self.pooled and not self.by_place


_NAMED = {
    "AveragePool": Named(),
    "Conv": Named(kernel=1),
    "ConvInteger": Named(kernel=1),
    "ConvTranspose": Named(kernel=1),
    "DeformConv": Named(inputs=(0, 2, 4), kernel=1),
    "DepthToSpace": Named(ordered=True),
    "GlobalAveragePool": Named(pooled=True),
    "GlobalLpPool": Named(pooled=True),
    "GlobalMaxPool": Named(pooled=True),
    "GridSample": Named(),
    "GroupNormalization": Named(spatial=False, ordered=True),
    "InstanceNormalization": Named(spatial=False),
    "LRN": Named(spatial=False, ordered=True),
    "LpPool": Named(),
    "MaxPool": Named(results=(0, 1)),
    "MaxRoiPool": Named(),
    "MaxUnpool": Named(inputs=(0, 1)),
    "QLinearConv": Named(kernel=3),
    "RoiAlign": Named(),
    "SpaceToDepth": Named(ordered=True),
}

_CHANNELS_ONLY = frozenset({"BatchNormalization", *(kind for kind, facts in _NAMED.items() if not facts.spatial)})
_BLOCKS_TO_CHANNELS = frozenset({"DepthToSpace", "SpaceToDepth"})
_ELEMENTWISE_NAMES = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu Cos
    Cosh Div Elu Equal Erf Exp Expand Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
# The axes of the first operand pass on; the other operands are parameters.
_OF_THE_FIRST_NAMES = """
    ArgMax ArgMin Bernoulli Cast CastLike Clip CumProd CumSum DequantizeLinear Dropout DynamicQuantizeLinear
    Hardmax LayerNormalization LogSoftmax LpNormalization MeanVarianceNormalization Pad
    QuantizeLinear RMSNormalization Resize ReverseSequence RotaryEmbedding ScatterND
    SimplifiedLayerNormalization Slice Softmax Split Tile TopK Trilu Upsample
"""
# Each operand has the axes of the result, of extents that may differ.
_BY_ELEMENTS = frozenset({"GatherElements", "Scatter", "ScatterElements"})
FACTORS = {"MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}
"""The two matrices, or stacks of matrices, of a product."""
# The data operands of operators of onnxruntime; the others are scales, zero points and parameters of the last axis.
_CONTRIBUTED_DATA = {
    **dict.fromkeys("Gelu QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuickGelu".split(), (0,)),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear", "RotaryEmbedding"), (0,)),
    "BiasAdd": (0, 1, 2),
    **dict.fromkeys(("BiasGelu", "FastGelu", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (0, 1)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), (0, 3)),
    "QLinearWhere": (0, 1, 4),
}
# Those that name their axes: `channels_last` says in which order.
_CONTRIBUTED_NAMED = {
    "GroupNorm": Named(last=1, ordered=True),
    "QLinearAveragePool": Named(),
    "QLinearConv": Named(kernel=3),
    "QLinearGlobalAveragePool": Named(),
    "SkipGroupNorm": Named(inputs=(0, 3), results=(0, 1), last=1, ordered=True),
}
_CONTRIBUTED_OTHERS = frozenset(
    "BiasSplitGelu DynamicQuantizeMatMul FusedMatMul MatMulIntegerToFloat MatMulNBits QGemm QLinearConcat".split()
)
_CONTRIBUTED_KINDS = _CONTRIBUTED_DATA.keys() | _CONTRIBUTED_NAMED.keys() | _CONTRIBUTED_OTHERS
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
_OF_THE_FIRST = frozenset(_OF_THE_FIRST_NAMES.split())
OURS = "relayout"
CONTRIBUTED = "com.microsoft"
"""The domain of onnxruntime's own operators."""
CONTRIBUTED_TO_STANDARD = frozenset(
    "LayerNormalization MeanVarianceNormalization SimplifiedLayerNormalization ThresholdedRelu".split()
)
"""Those that it has in ONNX's own domain, in every opset."""
_KNOWN_DOMAINS = frozenset({"", OURS})
_DECLARED = "relayout.operator_layouts"
_OF_CHANNELS, _OF_POSITIONS, _BY_PLACE = Named(spatial=False), Named(), Named(by_place=True)


def is_elementwise(node: ir.Node) -> bool:
    """Whether `node` works elementwise on operands that are broadcast to each other."""
    return node.domain == "" and node.op_type in _ELEMENTWISE and node.op_type != "Expand"


def is_channels_only(node: ir.Node) -> bool:
    """Whether `node` reads its channels by name and passes every axis on."""
    return node.domain in _KNOWN_DOMAINS and node.op_type in _CHANNELS_ONLY


def named(node: ir.Node) -> Named | None:
    """The facts of a node that reads axes by name, else None."""
    domain, kind = node.domain, node.op_type
    if domain == CONTRIBUTED and kind in _CONTRIBUTED_NAMED:
        return _CONTRIBUTED_NAMED[kind]
    if domain not in _KNOWN_DOMAINS:
        return declared_facts(node)
    if kind == "BatchNormalization":
        # Before opset 9 it may have parameters for each position.
        return _OF_CHANNELS if node.attributes.get_int("spatial", 1) else _OF_POSITIONS
    return _NAMED.get(kind, _BY_PLACE if domain == OURS else None)


def is_contributed(node: ir.Node) -> bool:
    """Whether `node` is an operator of onnxruntime whose effect on axes is known."""
    return node.domain == CONTRIBUTED and node.op_type in _CONTRIBUTED_KINDS


def declared_facts(node: ir.Node) -> Named | None:
    """The facts of an operator outside ONNX's domains and `relayout`, which `enter_backend_operators` got."""
    return node.meta.get(_DECLARED) if node.domain not in _KNOWN_DOMAINS else None


def enter_backend_operators(nodes: Iterable[ir.Node], backend: Backend) -> bool:
    """Get from `backend` the layouts of each operator outside ONNX's domains and `relayout`, for `named`.

    They are kept in the nodes' `meta`, which onnx_ir has for analyses and does not write to files. The nodes are those
    of the verifier's own copy of a model. Returns whether there are such operators.
    """
    asked = [node for node in nodes if node.domain not in _KNOWN_DOMAINS]
    for node in asked:
        node.meta.pop(_DECLARED, None)
        if (layouts := operator_layouts_of(backend, node)) is not None:
            node.meta[_DECLARED] = _facts_of(layouts)
    return bool(asked)


def _facts_of(layouts: Implementation) -> Named:
    kernels = [n for n, layout in enumerate(layouts.inputs) if {"I", "O"} <= {*layout.names}]
    inputs, results = (
        tuple(n for n, layout in enumerate(each) if layout.names.strip("*") and n not in beside)
        for each, beside in ((layouts.inputs, kernels), (layouts.results, []))
    )
    return Named(inputs, results, kernels[0] if kernels else None, declared=layouts)


def standard_names(rank: int) -> AxisNames:
    """ONNX's own order of data axes: N, C, then the spatial ones."""
    return ("N", "C", *_SPATIAL.get(rank, [None] * (rank - 2)))[:rank]


def kernel_names(op_type: str, rank: int) -> AxisNames:
    """ONNX's own order of a kernel's axes: O, I, then the spatial ones; I first where the convolution is transposed."""
    first = ("I", "O") if op_type == "ConvTranspose" else ("O", "I")
    return (*first, *_SPATIAL.get(rank, [None] * (rank - 2)))[:rank]


def own_names(node: ir.Node, n: int, *, is_result: bool = False) -> AxisNames | None:
    """The names of the axes of the n-th input, or result, by `node` itself.

    A standard operator reads N, C, spatial, and one of onnxruntime's with `channels_last` N, spatial, C. One of the
    domain `relayout` reads by its attributes: `data_layout`, for results `out_layout` if it differs, and
    `kernel_layout`. None if the operator does not name the operand's axes, or not by one letter each.
    """
    facts = named(node)
    values: Sequence[ir.Value | None] = node.outputs if is_result else node.inputs
    value = values[n] if n < len(values) else None
    if facts is None or value is None or value.shape is None:
        return None
    rank = len(value.shape)
    if facts.declared is not None:
        layout = (facts.declared.results if is_result else facts.declared.inputs)[n]
        return _names_in(layout, rank) if layout.names.strip("*") else None
    if not is_result and n == facts.kernel:
        return _declared(node, "kernel_layout", rank) or kernel_names(node.op_type, rank)
    if n not in (facts.results if is_result else facts.inputs):
        return None
    declared = (_declared(node, "out_layout", rank) if is_result else None) or _declared(node, "data_layout", rank)
    if declared is not None:
        return declared
    if facts.spatial:
        names = standard_names(rank)
        is_last = node.domain == CONTRIBUTED and node.attributes.get_int("channels_last", facts.last) == 1
        return (*names[:1], *names[2:], *names[1:2]) if is_last else names
    return tuple("C" if axis == 1 else None for axis in range(rank))


def axis_names(node: ir.Node, n: int, *, is_result: bool = False) -> AxisNames | None:
    """`own_names`, where a tile that is all of an axis has the name of the axis."""
    names = own_names(node, n, is_result=is_result)
    value = (node.outputs if is_result else node.inputs)[n]
    return names if names is None or value is None or value.shape is None else with_whole_parts(names, value.shape)


def with_whole_parts(names: AxisNames, shape: ir.Shape) -> AxisNames:
    """The names of a value's axes, where a tile that is all of an axis has the axis's name: of NCHWc the c, if C has
    extent 1."""
    units = {name for name, extent in zip(names, shape, strict=True) if name is not None and extent == 1}
    alone = {name for name in units if name.isupper() and name.lower() in names}
    if not alone:
        return names
    return tuple(
        None if name in alone else name.upper() if name is not None and name.upper() in alone else name
        for name in names
    )


def _declared(node: ir.Node, attribute: str, rank: int) -> AxisNames | None:
    if node.domain != OURS or attribute not in node.attributes:
        return None
    try:
        layout = Layout.parse(node.attributes[attribute].as_string())
    except (LayoutSyntaxError, TypeError, ValueError):
        return (None,) * rank
    return _names_in(layout, rank)


def declared_layout_of(node: ir.Node, n: int, *, is_result: bool = False) -> Layout | None:
    """The layout that the attributes give an operand with named axes; None where they give no valid one."""
    facts = named(node)
    is_kernel = not is_result and facts is not None and n == facts.kernel
    names = ["kernel_layout"] if is_kernel else ["out_layout"] * is_result + ["data_layout"]
    text = next((node.attributes.get_string(name, "") for name in names if name in node.attributes), "")
    return parsed_layout(text) if text else None


def parsed_layout(text: str) -> Layout | None:
    """The layout that a text is; None for any other text."""
    try:
        return Layout.parse(text)
    except LayoutSyntaxError:
        return None


def _names_in(layout: Layout, rank: int) -> AxisNames:
    return tuple(None if name == "*" else name for name in layout.names) if layout.rank == rank else (None,) * rank


def perm_of(transpose: ir.Node, rank: int) -> tuple[int, ...]:
    """The permutation of a Transpose of a value with so many axes, which reverses them by default."""
    return tuple(transpose.attributes.get_ints("perm", tuple(reversed(range(rank)))) or ())


def _axis_sources(node: ir.Node, n: int, m: int) -> tuple[int | None, ...] | None:
    """For each axis of the m-th result, the axis of the n-th input that it is, or None where it is none of them.

    None as a whole where the operator, or the ranks, are not known. An input's axis of extent 1 that is broadcast is
    not the result's axis, nor is one that is reduced and kept with extent 1.
    """
    source, result = node.inputs[n], node.outputs[m]
    is_known = node.domain == "" or is_contributed(node)
    if not is_known or source is None or source.shape is None or result.shape is None:
        return None
    inner, outer = len(source.shape), len(result.shape)
    sources = (_contributed_sources if node.domain == CONTRIBUTED else _sources)(node, n, inner, outer)
    if sources is None or len(sources) != outer or any(axis is not None and axis >= inner for axis in sources):
        return None
    if m and node.op_type == "Attention":
        return None  # the facts are of the first result
    if m in (1, 2) and outer and node.op_type.endswith("LayerNormalization"):
        # The means and deviations of the axes that are normalized.
        kept = node.attributes.get_int("axis", -1) % outer
        sources = (*sources[:kept], *[None] * (outer - kept))
    return tuple(
        None if axis is None or (source.shape[axis] == 1 and result.shape[i] != 1) else axis
        for i, axis in enumerate(sources)
    )


def _sources(node: ir.Node, n: int, inner: int, outer: int) -> tuple[int | None, ...] | None:
    kind = node.op_type
    if kind in _ELEMENTWISE and not (kind == "Expand" and n):
        return tuple(axis if axis >= 0 else None for axis in range(inner - outer, inner))
    if kind == "Concat" or kind in _BY_ELEMENTS:
        return tuple(range(inner))
    if kind in FACTORS:
        return _of_factor(node, n, inner, outer)
    if kind == "Gemm" and n < 2:
        is_turned = node.attributes.get_int("transB" if n else "transA", 0) != 0
        return (None, int(not is_turned)) if n else (int(is_turned), None)
    if kind == "Einsum":
        return _of_term(node, n)
    if kind == "Attention" and n < 3:
        # Heads and numbers that are one dimension have no name.
        of_operand = ((0, 1, 2, None), (0, None, None, None), (0, None, None, 3))[n]
        return of_operand if outer == 4 else (0, 1 if n == 0 else None, None)
    if n != 0:
        return None
    if kind == "Transpose":
        perm = perm_of(node, inner)
        return perm if sorted(perm) == list(range(inner)) else None
    if kind.startswith("Reduce") or kind in ("ArgMax", "ArgMin", "Squeeze"):
        return _after_removing(node, inner, outer)
    if kind == "Unsqueeze":
        axes = constant_ints(node, "axes", 1)
        inserted = {axis % outer for axis in axes} if axes is not None and outer else None
        if inserted is None or len(inserted) != outer - inner:
            return None
        kept = iter(range(inner))
        return tuple(None if axis in inserted else next(kept) for axis in range(outer))
    if kind in ("Reshape", "Flatten"):
        return _after_reshaping(node)
    if kind == "Gather":
        axis = node.attributes.get_int("axis", 0) % max(inner, 1)
        return (*range(axis), *[None] * (outer - inner + 1), *range(axis + 1, inner))
    picks = kind == "Compress" and "axis" in node.attributes  # without it, the result is flat
    return tuple(range(inner)) if kind in _OF_THE_FIRST or picks else None


def _of_factor(node: ir.Node, n: int, inner: int, outer: int) -> tuple[int | None, ...] | None:
    """The axes of a product by one of its factors: the batch, and its rows or its columns. A vector has neither."""
    factors = FACTORS[node.op_type]
    if n not in factors:
        return None
    other = node.inputs[factors[n == factors[0]]]
    if other is None or other.shape is None:
        return None
    if inner == 1:
        return (None,) * outer
    of_other = (None,) * (len(other.shape) > 1)
    batch = outer - 1 - len(of_other)
    stack = tuple(axis if axis >= 0 else None for axis in range(inner - 2 - batch, inner - 2))
    return (*stack, inner - 2, *of_other) if n == factors[0] else (*stack, *of_other, inner - 1)


def _of_fused_factor(node: ir.Node, n: int, inner: int, outer: int) -> tuple[int | None, ...] | None:
    """The axes of a product of matrices by one of its factors, the first axis of whose matrices may be before the
    batch; None for vectors."""
    ranks = [len(value.shape) for value in node.inputs[:2] if value is not None and value.shape is not None]
    if len(ranks) < 2 or min(ranks) < 2 or n > 1:
        return None
    is_turned, is_behind = (bool(node.attributes.get_int(name + "AB"[n], 0)) for name in ("trans", "transBatch"))
    first = 0 if is_behind else inner - 2
    # The other axis of the matrix is summed.
    own = first if is_turned == bool(n) else inner - 1
    last = inner - 1 if is_behind else inner - 2
    batch = [axis if axis >= int(is_behind) else None for axis in range(last - (outer - 2), last)]
    return (*batch, None, own) if n else (*batch, own, None)


def _of_term(node: ir.Node, n: int) -> tuple[int | None, ...] | None:
    """The axes of an Einsum's result by one of its terms; None where the equation does not list all axes once."""
    terms, arrow, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    each = terms.split(",")
    if not arrow or "." in terms or n >= len(each) or len(set(each[n])) < len(each[n]):
        return None
    return tuple(each[n].index(letter) if letter in each[n] else None for letter in result)


def _contributed_sources(node: ir.Node, n: int, inner: int, outer: int) -> tuple[int | None, ...] | None:
    kind = node.op_type
    if kind == "FusedMatMul":
        return _of_fused_factor(node, n, inner, outer)
    if kind == "QGemm" and n in (0, 3):
        is_turned = node.attributes.get_int("transB" if n else "transA", 0) != 0
        return (None, int(not is_turned)) if n else (int(is_turned), None)
    # The operands of a concatenation: the result's scale and zero point, then data, scale, zero point, data, ...
    is_data = n % 3 == 2 if kind == "QLinearConcat" else n in _CONTRIBUTED_DATA.get(kind, ())
    return tuple(axis if axis >= 0 else None for axis in range(inner - outer, inner)) if is_data else None


def _after_removing(node: ir.Node, inner: int, outer: int) -> tuple[int | None, ...] | None:
    if node.op_type in ("ArgMax", "ArgMin"):
        axes: tuple[int, ...] | None = (node.attributes.get_int("axis", 0),)
    else:
        axes = constant_ints(node, "axes", 1)
    if node.op_type.startswith("Reduce") and _lists_no_axes(node, axes):
        axes = () if node.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(inner))
    if inner == outer:
        reduced = {axis % inner for axis in axes or ()} if inner else set()
        return tuple(None if axis in reduced else axis for axis in range(inner))
    source = node.inputs[0]
    if axes is None and node.op_type == "Squeeze" and source is not None and source.shape is not None:
        axes = tuple(axis for axis, extent in enumerate(source.shape) if extent == 1)
    if axes is None:
        return None
    removed = {axis % inner for axis in axes}
    return tuple(axis for axis in range(inner) if axis not in removed)


def _lists_no_axes(node: ir.Node, axes: tuple[int, ...] | None) -> bool:
    """Whether a reduction is over all axes, or over none: its axes are absent or an empty list."""
    is_absent = axes is None and (len(node.inputs) < 2 or node.inputs[1] is None)
    return is_absent or axes == ()


def _after_reshaping(node: ir.Node) -> tuple[int | None, ...] | None:
    """The axes of a Reshape that only adds and drops dimensions of extent 1; the others stay the same."""
    sources = beside_reshaped(node)
    source, result = node.inputs[0], node.outputs[0]
    if sources is None or source is None or source.shape is None or result.shape is None:
        return None
    kept = sum(axis is not None for axis in sources)
    is_same = all(kept == sum(extent != 1 for extent in shape) for shape in (source.shape, result.shape))
    return sources if is_same else None


def beside_reshaped(node: ir.Node) -> tuple[int | None, ...] | None:
    """The input axis of each result axis of a Reshape; None for an axis that it splits, fuses or adds.

    Dimensions of extent 1 may be added or removed. None as a whole if an extent is unknown.
    """
    source, result = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or result.shape is None:
        return None
    before = [axis for axis, extent in enumerate(source.shape) if extent != 1]
    after = [axis for axis, extent in enumerate(result.shape) if extent != 1]
    # An unknown extent without a name may be any other one.
    if any(isinstance(dim := source.shape[axis], ir.SymbolicDim) and dim.value is None for axis in before):
        return None
    sources: list[int | None] = [None] * len(result.shape)
    for olds, news in ((before, after), (before[::-1], after[::-1])):
        for old, new in zip(olds, news, strict=False):
            if source.shape[old] != result.shape[new] or sources[new] is not None:
                break
            sources[new] = old
    return tuple(sources)


def constant_ints(node: ir.Node, attribute: str, operand: int) -> tuple[int, ...] | None:
    """The integers of an attribute up to some opset and of a constant operand since; None if not known."""
    if attribute in node.attributes:
        value = node.attributes[attribute]
        return tuple(value.as_ints()) if value.type == ir.AttributeType.INTS else (value.as_int(),)
    source = node.inputs[operand] if operand < len(node.inputs) else None
    return small_constant(source) if source is not None else None


def small_constant(value: ir.Value) -> tuple[int, ...] | None:
    """The numbers of a constant of up to 64 integers, such as a list of axes; None for any other value."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    # onnx_ir makes a shape anew for each question about an encoded tensor.
    size = prod(tensor.raw.dims) if is_one_of(tensor, ir.TensorProtoTensor) else tensor.size
    if size > 64:
        return None
    try:
        return tuple(tensor.numpy().reshape(-1).tolist())
    except Exception:  # a constant whose data is absent, or in a missing file
        return None


def axis_path(node: ir.Node, n: int, m: int) -> tuple[int | None, ...] | None:
    """For each axis of the m-th result, the axis of the n-th input that it is; None as a whole if it is unknown.

    SpaceToDepth and DepthToSpace change the extents of axes, but not what they are.
    """
    facts = named(node)
    moves_blocks = node.domain in _KNOWN_DOMAINS and node.op_type in _BLOCKS_TO_CHANNELS
    if not moves_blocks and not is_channels_only(node) and (facts is None or facts.names_axes):
        return _axis_sources(node, n, m)
    source, result = node.inputs[n], node.outputs[m]
    if n or m or source is None or source.shape is None or result.shape is None:
        return None
    before, after = axis_names(node, 0) or (), axis_names(node, 0, is_result=True) or ()
    if None not in before and sorted(map(str, before)) == sorted(map(str, after)):
        sources = tuple(before.index(name) for name in after)
    elif len(source.shape) == len(result.shape):
        sources = tuple(range(len(result.shape)))
    else:
        return None
    # A reader may give an axis of extent 1 any name. The axis that it broadcasts to, or is reduced from, is another,
    # and its name must not pass to an operator that does not know that the extent is 1.
    units = [(axis, source.shape[axis] == 1, extent == 1) for axis, extent in zip(sources, result.shape, strict=True)]
    reduces = moves_blocks or (facts is not None and facts.pooled)
    return tuple(
        None if (before and not after) or (reduces and after and not before) else axis for axis, before, after in units
    )
