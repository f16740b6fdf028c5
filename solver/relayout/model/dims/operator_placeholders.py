"""Placeholders in shape inference for onnxruntime's contributed operators: ONNX's own with results of equal types.

ONNX infers nothing for an operator that it does not define. For a quantized operator the placeholder is ONNX's own
operator between DequantizeLinear and QuantizeLinear, so that shapes follow from ONNX's rules: broadcasts, pads, dims
that have names. Some of ONNX's operators have placeholders too: of a MaxUnpool with an operand `output_shape` onnx
infers no shape, and of those of `_ALONG_ONE_AXIS` no extent where the number of elements along that axis is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from onnx import helper, numpy_helper

from relayout.model.dims.negative_extents import inferred_by_onnx
from relayout.model.dims.rounded_scales import Extents, rounded_scales, scales_that_infer
from relayout.model.operator_schema import since
from relayout.model.proto_graphs import copied, extents_by_name, graphs_inside, nodes_inside, replace_entries, tensor_of
from relayout.model.tensor_types import is_absent
from relayout.ops.contributed import CONTRIBUTED, Quantized, quantized_form

PREFIX = "relayout.operator."
_STANDARD = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Those that onnxruntime has in ONNX's own domain, in every opset."""
_FROM_BODIES = ("GroupNormalization", "MeanVarianceNormalization")
"""Those whose results onnx infers from a function's body, which it has only where the operands are fully known."""
_ALONG_ONE_AXIS = {"Compress": 0, "Split": 0, "TopK": -1}
"""The axis, where no attribute gives it, in which the results of these operators have another extent than the first
operand. A Compress without one gives a vector."""
_UNPOOL = "MaxUnpool"
_UNDEFINED = f"{PREFIX}unknown"
_RESIZE = "Resize"
_MAY_NEED_ONE = frozenset({*_STANDARD, *_FROM_BODIES, *_ALONG_ONE_AXIS, "If", "Loop", _UNPOOL, _RESIZE, "Scan"})
"""Operators of ONNX's domain that are, or may hold, one of these."""
_OLDEST_OPSET = 11
"""Of contributed operators: the first in which the bias of a Gemm is optional."""
# The results that have the type and shape of the first operand.
_LIKE = {
    **dict.fromkeys(("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding"), (0,)),
    **dict.fromkeys(("MoE", "QMoE"), (0,)),
    "SkipGroupNorm": (0, 1),
    **dict.fromkeys((*_STANDARD, *_FROM_BODIES), (0,)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (0, 3)),
}
# The results that have the shape of the first operand and the type of this one.
_CASTS = {"DequantizeLinear": 1, "QuantizeLinear": 2}
_OLDEST_WITH_AXES_OF_SUMS = 13
_OLDEST_WITH_CAST_LIKE = 15
_OLDEST_WITH_EINSUM = 12
_OLDEST_WITH_PARTS_OF_SHAPES = 15
_OLDEST_WITH_COUNTED_PARTS = 18
# The operators that are ONNX's on operands of which some are quantized, and the scales of these. Two operands tell the
# shape of a product; data, weights and recurrent weights those of an LSTM.
_DEQUANTIZED = {
    "DynamicQuantizeLSTM": ("LSTM", 3, {1: 8, 2: 10}),
    "DynamicQuantizeMatMul": ("MatMul", 2, {1: 2}),
    "MatMulIntegerToFloat": ("MatMul", 2, {0: 2, 1: 3}),
}
# Operators with an activation behind, and how many operands of ONNX's operator tell the shape.
_ACTIVATED = {"FusedConv": ("Conv", 2), "FusedGemm": ("Gemm", 2)}
# Operators of windows that take channels last, always or where `channels_last` is 1.
_WINDOWS = {"NhwcMaxPool": "MaxPool", "QLinearConv": "QLinearConv"}
_ALWAYS_LAST = ("NhwcMaxPool",)
_OWN_ATTRIBUTES = ("activation", "channels_last", "opset")
"""The beginnings of the names of attributes that ONNX's operator lacks."""


def insert_operator_placeholders(proto: onnx.ModelProto) -> Mapping[str, onnx.NodeProto]:
    """Replace the operators that need one, in place. The result is for `remove_operator_placeholders`."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    replaced: dict[str, onnx.NodeProto] = {}
    opset = versions.get("", 0)
    has_any = CONTRIBUTED in versions or not _MAY_NEED_ONE.isdisjoint(node.op_type for node in proto.graph.node[:])
    if has_any:
        _replace(proto.graph, opset, count(), replaced, _extents_before_resizes(proto, opset))
    return replaced


def remove_operator_placeholders(graph: onnx.GraphProto, replaced: Mapping[str, onnx.NodeProto]) -> None:
    """Put the operators back into `graph`, which was inferred meanwhile, and into the graphs inside it."""
    if not replaced:
        return
    for inner in graphs_inside(graph.node):
        remove_operator_placeholders(inner, replaced)
    nodes = [replaced.get(node.name, node) for node in graph.node]
    replace_entries(graph.node, (node for node in nodes if not node.name.startswith(PREFIX)))
    replace_entries(graph.value_info, (info for info in graph.value_info if not info.name.startswith(PREFIX)))


def has_values(node: onnx.NodeProto) -> bool:
    """Whether the first result has the values that the node computes. The result of a placeholder has the values of the
    operator that it replaces."""
    return not node.name.startswith(PREFIX) or node.output[0].startswith(PREFIX)


def replaced_operator(operator: str, name: str) -> tuple[str, str]:
    """The operator and the name of the node that this placeholder replaces; those given for any other node."""
    if not name.startswith(PREFIX):
        return operator, name
    _, operator, name = name.split("|", 2)
    return operator, name


def _extents_before_resizes(proto: onnx.ModelProto, opset: int) -> Mapping[str, Extents]:
    """The extents of the operands of Resizes with rounded scales in the main graph, where not all are declared."""
    constants = _vectors(proto.graph)
    resized = [node.input[0] for node in proto.graph.node if rounded_scales(node, constants) is not None]
    if not resized:
        return {}
    declared = extents_by_name(proto.graph)
    if not any(None in declared.get(name, [None]) for name in resized):
        return {}
    known: Mapping[str, Extents] = {}
    # Where one Resize follows another, the extents of the second are right once those of the first are.
    for _ in resized:
        probe = copied(proto)
        _replace(probe.graph, opset, count(), {}, known)
        try:
            inferred = inferred_by_onnx(probe, data_prop=True)
        except Exception:  # the inference that follows has the error and its location
            break
        extents = extents_by_name(inferred.graph)
        found = {name: extents[name] for name in resized if name in extents}
        if found == known:
            break
        known = found
    return known


def _vectors(graph: onnx.GraphProto) -> Mapping[str, onnx.TensorProto]:
    """The constants of one dimension of a graph that has a Resize, by name."""
    if not any(node.op_type == _RESIZE for node in graph.node[:]):
        return {}
    return {name: each for name, each in _constants(graph).items() if len(each.dims) == 1 and not is_absent(each)}


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The constants of a graph, by name: initializers, and results of its Constants."""
    made = [(node.output[0], tensor_of(node)) for node in graph.node if node.op_type == "Constant"]
    found = [*((tensor.name, tensor) for tensor in graph.initializer), *made]
    return {name: each for name, each in found if each is not None}


def _computed(graph: onnx.GraphProto, around: frozenset[str]) -> frozenset[str]:
    """The values that a graph sees and that are not constants: nodes or callers give them."""
    given = around.union([value.name for value in graph.input])
    given = given.union(*(node.output for node in graph.node if node.op_type != "Constant"))
    return given.difference([tensor.name for tensor in graph.initializer])


def _read_in(graph: onnx.GraphProto) -> frozenset[str]:
    """The values that the nodes of a graph, those inside them, or its caller read."""
    read = {name for node in nodes_inside(graph.node) for name in node.input}
    return frozenset(read.union(each.name for each in graph.output))


def _replace(
    graph: onnx.GraphProto,
    opset: int,
    numbers: Iterator[int],
    replaced: dict[str, onnx.NodeProto],
    resized: Mapping[str, Extents],
    around: frozenset[str] = frozenset(),
) -> None:
    """`resized`: extents of operands of Resizes, of which a declared shape may lack some. `around`: the values around
    the graph that are not constants."""
    computed = _computed(graph, around)
    for inner in graphs_inside(graph.node):
        _replace(inner, opset, numbers, replaced, {}, computed)
    vectors = _vectors(graph)
    needs_one = {index for index, node in enumerate(graph.node) if _needs_one(node, opset, vectors, computed)}
    if not needs_one:
        return
    values = (*graph.input, *graph.value_info)
    tensors = _constants(graph)
    stored = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    declared = _Declared(
        {**extents_by_name(graph), **stored, **resized},
        {**types, **{name: tensor.data_type for name, tensor in tensors.items()}},
        stored,
        vectors,
        _read_in(graph),
    )
    nodes: list[onnx.NodeProto] = []
    for index, node in enumerate(graph.node):
        written = _Writer(node, opset, numbers).written(declared) if index in needs_one else ()
        if written:
            replaced[written[0].name] = node
        nodes += written or [node]
    replace_entries(graph.node, nodes)


class _Declared(Struct, frozen=True):
    """The declared types of a graph's values, by name: extents, types of elements, extents of `stored` constants; the
    constants that are `vectors`, where a Resize may read one; and the values that are `read`."""

    extents: Mapping[str, Extents]
    types: Mapping[str, int]
    stored: Mapping[str, tuple[int, ...]]
    vectors: Mapping[str, onnx.TensorProto]
    read: frozenset[str]

    def rank(self, name: str) -> int | None:
        return len(self.extents[name]) if name in self.extents else None


class _Writer:
    """The placeholder of one node."""

    def __init__(self, node: onnx.NodeProto, opset: int, numbers: Iterator[int]) -> None:
        self._node, self._opset, self._numbers = node, opset, numbers
        self._operands: dict[int, str] = dict(enumerate(node.input))
        self._results: dict[int, str] = dict(enumerate(node.output))
        self._attributes = {each.name: each for each in node.attribute}
        self._nodes: list[onnx.NodeProto] = []

    def written(self, declared: _Declared) -> Sequence[onnx.NodeProto]:
        """The nodes that make results of the same types; none where no operators of ONNX do.

        Results that are read and for which there is no operator come from one that ONNX does not define. Without it
        onnx would take a reader of such a result for wrong.
        """
        self._write(declared)
        made = {name for node in self._nodes for name in node.output}
        left = [name for name in self._results.values() if name in declared.read - made]
        if self._nodes and left:
            self._add(_UNDEFINED, [], left[0], domain=self._node.domain)
            self._nodes[-1].output.extend(left[1:])
        return self._nodes

    def _write(self, declared: _Declared) -> None:
        operator = self._node.op_type
        form = quantized_form(operator, len(self._node.input))
        if form is not None:
            self._quantized(form, declared.rank(self._read(0)))
        elif operator in _LIKE:
            for m in _LIKE[operator]:
                if self._result(m):
                    self._add("Identity", [self._read(0)], self._result(m))
        elif operator in _CASTS and self._read(_CASTS[operator]):
            self._cast(declared, self._read(_CASTS[operator]))
        elif operator in _DEQUANTIZED:
            plain, count, scale_of = _DEQUANTIZED[operator]
            operands = [self._dequantized(n, scale_of[n]) if n in scale_of else self._read(n) for n in range(count)]
            self._add(plain, operands, self._result(0), self._kept())
            self._nodes[-1].output.extend(self._node.output[1:])
        elif operator in _ACTIVATED:
            plain, count = _ACTIVATED[operator]
            self._add(plain, [self._read(n) for n in range(count)], self._result(0), self._kept())
        elif operator in _WINDOWS:
            rank = declared.rank(self._read(0)) or (declared.rank(self._read(3)) if operator == "QLinearConv" else None)
            self._channels_last(_WINDOWS[operator], rank)
        elif operator == "MatMulNBits":
            self._product(self._integer("K"), self._integer("N"))
        elif operator == "Attention":
            self._attention(declared)
        elif operator == "MultiHeadAttention" and self._opset >= _OLDEST_WITH_PARTS_OF_SHAPES:
            self._heads(declared)
        elif operator == "GroupQueryAttention":
            self._grouped_heads()
        elif operator == "EmbedLayerNormalization":
            words = self._add("Gather", [self._read(2), self._read(0)])
            for m in (0, 2):
                if self._result(m):
                    self._add("Identity", [words], self._result(m))
        elif operator == "BiasSplitGelu":
            parts = 2 if self._opset >= _OLDEST_WITH_COUNTED_PARTS else None
            self._add("Split", [self._read(0)], self._result(0), axis=-1, num_outputs=parts)
            self._nodes[-1].output.append(f"{PREFIX}{next(self._numbers)}")
        elif operator == _UNPOOL:
            # A scalar of the operand's type takes any shape.
            scalar = self._add("ReduceMax", [self._read(0)], keepdims=0)
            self._add("Expand", [scalar, self._read(2)], self._result(0))
        elif operator in _ALONG_ONE_AXIS:
            self._chosen(operator)
        elif operator == "FusedMatMul":
            forms = [(self._integer(f"trans{side}"), self._integer(f"transBatch{side}")) for side in "AB"]
            sides = [(self._read(n), *form) for n, form in enumerate(forms)]
            if self._opset >= _OLDEST_WITH_EINSUM or all(
                name in declared.extents for name, *flags in sides if any(flags)
            ):
                self._add("MatMul", [self._as_matrices(*side, declared) for side in sides], self._result(0))
        elif operator == _RESIZE:
            scales = rounded_scales(self._node, declared.vectors)
            read = declared.extents.get(self._read(0))
            made = scales_that_infer(self._node, scales, read) if scales is not None and read else None
            if made is not None:
                operands = [*self._node.input[:2], self._add("Constant", [], value=numpy_helper.from_array(made))]
                self._add(operator, operands, self._result(0), self._node.attribute, domain=self._node.domain)

    def _chosen(self, operator: str) -> None:
        """Elements along one axis, as many as are not known."""
        axis = self._integer("axis") if "axis" in self._attributes else _ALONG_ONE_AXIS[operator]
        flat = self._add("Constant", [], value=numpy_helper.from_array(np.array([-1], np.int64)))

        def chosen(result: str = "") -> str:
            places = self._add("Reshape", [self._add("NonZero", [self._read(1)]), flat])
            return self._add("Gather", [self._read(0), places], result, axis=axis)

        if operator == "TopK":
            values = self._add("Identity", [chosen()], self._result(0))
            if self._result(1):
                self._add("Cast", [values], self._result(1), to=onnx.TensorProto.INT64)
            return
        for m in self._results:
            if self._result(m):
                chosen(self._result(m))

    def _product(self, rows: int, columns: int) -> None:
        """The product of the first operand and a matrix."""
        if self._opset < _OLDEST_WITH_CAST_LIKE:
            # The type of the operand is not known, so no matrix of that type can be made.
            extent = self._add("Constant", [], value=numpy_helper.from_array(np.array([columns], np.int64)))
            zero = numpy_helper.from_array(np.array([0], np.int64))
            places = self._add("ConstantOfShape", [extent], value=zero)
            self._add("Gather", [self._read(0), places], self._result(0), axis=-1)
            return
        weight = self._add("ConstantOfShape", [self._add("Constant", [], value_ints=[rows, columns])])
        self._add("MatMul", [self._read(0), self._add("CastLike", [weight, self._read(0)])], self._result(0))

    def _attention(self, declared: _Declared) -> None:
        """The values of an Attention have the last extent that it lists, or the last third of its packed weights."""
        read = declared.extents.get(self._read(1), ())
        sizes = self._attributes["qkv_hidden_sizes"].ints if "qkv_hidden_sizes" in self._attributes else ()
        if len(read) == 2 and read[0] and (sizes or read[1]):
            self._product(read[0], sizes[2] if sizes else (read[1] or 0) // 3)

    def _heads(self, declared: _Declared) -> None:
        """The rows of a MultiHeadAttention's queries; each has the values of all heads. Queries, keys and values may be
        packed in one operand of 5 axes, and keys and values may be: then there are no values apart. Those of another
        sequence may be divided into heads, in front of the rows."""
        heads = self._integer("num_heads")
        if not self._read(1):
            first = self._add("Constant", [], value_int=0)
            queries = self._add("Gather", [self._read(0), first], axis=3)
            self._add("Reshape", [queries, self._add("Constant", [], value_ints=[0, 0, -1])], self._result(0))
        elif not self._read(2):
            self._add("Identity", [self._read(0)], self._result(0))
        else:
            rank = declared.rank(self._read(2))
            columns = self._add("Shape", [self._read(2)], start=2 if rank == 3 else -1)
            if rank != 3:
                columns = self._add("Mul", [columns, self._heads_apart(heads)])
            shape = self._add("Concat", [self._add("Shape", [self._read(0)], end=2), columns], axis=0)
            self._add("Reshape", [self._read(0), shape], self._result(0))
            for m, new, past in ((1, 1, 6), (2, 2, 7)):
                if self._result(m) and self._read(past) and not self._read(8):
                    divided = self._add("Constant", [], value_ints=[0, 0, heads, -1])
                    divided = self._add("Reshape", [self._read(new), divided])
                    divided = self._add("Transpose", [divided], perm=[0, 2, 1, 3])
                    self._add("Concat", [self._read(past), divided], self._result(m), axis=2)

    def _heads_apart(self, heads: int) -> str:
        """The number of heads where the values are divided into them and so have 4 axes, else 1."""
        rank = self._add("Size", [self._add("Shape", [self._read(2)])])
        added = self._add("Sub", [rank, self._add("Constant", [], value_int=3)])
        more = self._add("Mul", [added, self._add("Constant", [], value_int=heads - 1)])
        return self._add("Add", [more, self._add("Constant", [], value_int=1)])

    def _grouped_heads(self) -> None:
        """The queries of a GroupQueryAttention; keys and values may be packed behind them, in fewer heads."""
        if self._read(1):
            self._add("Identity", [self._read(0)], self._result(0))
            return
        heads, others = self._integer("num_heads"), 2 * self._integer("kv_num_heads")
        divided = self._add("Constant", [], value_ints=[0, 0, heads + others, -1])
        divided = self._add("Reshape", [self._read(0), divided])
        bounds = [self._add("Constant", [], value_ints=[each]) for each in (0, heads, 2)]
        queries = self._add("Slice", [divided, *bounds])
        self._add("Reshape", [queries, self._add("Constant", [], value_ints=[0, 0, -1])], self._result(0))

    def _cast(self, declared: _Declared, like: str) -> None:
        """The shape of operand 0 with the type of `like`. ONNX's casts lack the types of four bits before opset 21."""
        data, known = self._read(0), _castable(self._opset)
        if declared.types.get(like, 0) not in known:
            return
        if declared.types.get(data, 0) not in known:
            if data not in declared.stored:
                return
            extents = numpy_helper.from_array(np.array(declared.stored[data], np.int64))
            shape = self._add("Constant", [], value=extents)
            data = self._add("ConstantOfShape", [shape])
        if declared.types.get(like):
            self._add("Cast", [data], self._result(0), to=declared.types[like])
        elif self._opset >= _OLDEST_WITH_CAST_LIKE:
            self._add("CastLike", [data, like], self._result(0))

    def _quantized(self, form: Quantized, rank: int | None) -> None:
        scale, zero = self._read(form.scale), self._read(form.scale + 1)
        is_gemm = form.operator == "Gemm"
        if not zero and (scale or not is_gemm):
            return  # QuantizeLinear would make uint8 of it
        perms = self._perms(rank)
        if perms is None and form.operator != "GlobalAveragePool":
            return
        # The shape of a product does not depend on its bias.
        data = form.data[:2] if is_gemm else form.data
        read = [self._read(n) if n in form.plain else self._dequantized(n, n + 1) for n in data]
        for perm in (perms or ())[:1]:
            read = [self._add("Transpose", read, perm=perm)]
        made = self._outer(*read) if perms is None else self._add(form.operator, read, kept=self._kept())
        for perm in (perms or ())[1:]:
            made = self._add("Transpose", [made], perm=perm)
        operator, read = ("QuantizeLinear", [made, scale, zero]) if zero else ("Identity", [made])
        self._add(operator, read, self._result(0))

    def _outer(self, value: str) -> str:
        """The extents of the first and the last axis of a value of any rank, with 1 for those between."""
        ones = self._add("ReduceSum", [value])
        first, last = [
            self._sum_of_matrix(self._add("Flatten", [value], axis=at), kept) for at, kept in ((1, 0), (-1, 1))
        ]
        # A vector is added along the last axis, and without `perm` a Transpose reverses the axes.
        reversed_ = self._add("Transpose", [self._add("Add", [ones, first])])
        return self._add("Add", [reversed_, last])

    def _sum_of_matrix(self, matrix: str, kept: int) -> str:
        """The sums of a matrix along the axis that is not `kept`, a vector."""
        if self._opset < _OLDEST_WITH_AXES_OF_SUMS:
            return self._add("ReduceSum", [matrix], axes=[1 - kept], keepdims=0)
        return self._add("ReduceSum", [matrix, self._add("Constant", [], value_ints=[1 - kept])], keepdims=0)

    def _channels_last(self, operator: str, rank: int | None) -> None:
        """ONNX's operator of the same operands; its data and result may be channels last."""
        perms = self._perms(rank)
        if perms is None:
            return
        read = [self._read(n) for n in range(len(self._node.input))]
        for perm in perms[:1]:
            read[0] = self._add("Transpose", read[:1], perm=perm)
        made = self._add(operator, read, "" if perms else self._result(0), self._kept())
        for perm in perms[1:]:
            self._add("Transpose", [made], self._result(0), perm=perm)

    def _kept(self) -> list[onnx.AttributeProto]:
        """The attributes that ONNX's operator has too."""
        return [each for name, each in self._attributes.items() if not name.startswith(_OWN_ATTRIBUTES)]

    def _integer(self, attribute: str) -> int:
        return self._attributes[attribute].i if attribute in self._attributes else 0

    def _as_matrices(self, operand: str, is_swapped: int, is_behind: int, declared: _Declared) -> str:
        """The operand with its rows behind the batch, where they are in front, and then its last two axes swapped,
        as the flags say."""
        rank = declared.rank(operand)
        if not (is_swapped or is_behind) or (rank is not None and rank < 2):
            return operand
        if rank is None:
            return self._turned(operand, is_swapped, is_behind)
        axes = list(range(rank))
        *batch, first, last = [*axes[1:-1], axes[0], axes[-1]] if is_behind else axes
        perm = [*batch, last, first] if is_swapped else [*batch, first, last]
        return self._add("Transpose", [operand], perm=perm)

    def _turned(self, operand: str, is_swapped: int, is_behind: int) -> str:
        """A value with the extents that an operand of any rank from 2 has as matrices."""
        if self._opset < _OLDEST_WITH_PARTS_OF_SHAPES:  # later there are types that Einsum does not take
            read, made = "i...j" if is_behind else "...ij", "...ji" if is_swapped else "...ij"
            return self._add("Einsum", [operand], equation=f"{read}->{made}")
        rows: dict[str, Any] = {"start": 0, "end": 1} if is_behind else {"start": -2, "end": -1}
        batch: dict[str, Any] = {"start": 1, "end": -1} if is_behind else {"end": -2}
        last: dict[str, Any] = {"start": -1}
        bounds = (batch, last, rows) if is_swapped else (batch, rows, last)
        shape = self._add("Concat", [self._add("Shape", [operand], **bound) for bound in bounds], axis=0)
        return self._add("Reshape", [operand, shape])

    def _perms(self, rank: int | None) -> Sequence[list[int]] | None:
        """The permutations from channels last to channels second and back, none where the operator has channels second;
        None where the rank is not known."""
        if self._integer("channels_last") != 1 and self._node.op_type not in _ALWAYS_LAST:
            return ()
        if "kernel_shape" in self._attributes:
            rank = len(self._attributes["kernel_shape"].ints) + 2
        if rank is None or rank < 3:
            return None
        return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]

    def _read(self, n: int) -> str:
        return self._operands.get(n, "")

    def _result(self, m: int) -> str:
        return self._results.get(m, "")

    def _dequantized(self, n: int, scale: int) -> str:
        return self._add("DequantizeLinear", [self._read(n), self._read(scale)])

    def _add(
        self,
        operator: str,
        operands: Sequence[str],
        result: str = "",
        kept: Iterable[onnx.AttributeProto] = (),
        *,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node with these attributes and those `kept`; returns the name of its result, a new one by default."""
        unique = f"{PREFIX}{next(self._numbers)}"
        name = f"{unique}|{self._node.op_type}|{self._node.name}"
        self._nodes.append(helper.make_node(operator, operands, [result or unique], name, domain=domain, **attributes))
        self._nodes[-1].attribute.extend(kept)
        return result or unique


def _needs_one(node: onnx.NodeProto, opset: int, vectors: Mapping[str, onnx.TensorProto], computed: Set[str]) -> bool:
    if node.op_type == _RESIZE:
        return rounded_scales(node, vectors) is not None
    if node.op_type in _ALONG_ONE_AXIS and node.domain == "":
        if node.op_type == "Compress":
            return any(attribute.name == "axis" for attribute in node.attribute)
        return len(node.input) > 1 and node.input[1] in computed
    if node.op_type == _UNPOOL and node.domain == "":
        return len(node.input) > 2
    if node.op_type in _FROM_BODIES and node.domain == "":
        return True
    if node.op_type in _STANDARD and node.domain == "":
        return since(node.op_type, "", opset) is None
    return node.domain == CONTRIBUTED and opset >= _OLDEST_OPSET


@cache
def _castable(opset: int) -> frozenset[int]:
    """The types of elements that Cast takes, and 0 for one that is not declared."""
    schema = onnx.defs.get_schema("Cast", opset)
    taken = {text for each in schema.type_constraints for text in each.allowed_type_strs}
    named = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}
    return frozenset({0, *(named[text] for text in taken)})
