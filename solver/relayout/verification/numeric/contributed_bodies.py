"""ONNX operators that compute what onnxruntime's operators of the domain com.microsoft compute.

With them a comparison in float64 has the operators for which no runtime has a kernel in float64, and a run on a CPU
those that onnxruntime has for GPUs alone. As the kernels do, they compute narrow floats in float32. Source:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx import TensorProto, helper

from relayout.backend.interface import OperatorBody
from relayout.verification.operator_facts import CONTRIBUTED

_OLDEST_OPSET = 13
_OLDEST_WITH_AXES_AS_OPERANDS = 18
_OLDEST_WITH_COUNTED_PARTS = 18
_FOR_GPUS = frozenset({"BiasAdd", "BiasSplitGelu", "GroupNorm", "SkipGroupNorm"})
"""The operators that onnxruntime does not have on CPUs."""


def contributed_body(node: ir.Node, opset: int) -> OperatorBody | None:
    """The body of an operator of onnxruntime's; None where it is not known."""
    write = _WRITTEN.get(node.op_type) if node.domain == CONTRIBUTED and opset >= _OLDEST_OPSET else None
    dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    if write is None or dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return None
    body = _Body(node, opset)
    results = write(body)
    if not results or len(results) < len(node.outputs):
        return None
    return OperatorBody(body.function(results, dtype), is_needed=node.op_type in _FOR_GPUS or _is_for_gpus(node, dtype))


def _is_for_gpus(node: ir.Node, dtype: ir.DataType) -> bool:
    """Whether this is an attention that CPUs do not have: they have those in float32 with unpacked operands."""
    ranks = {len(value.shape) for value in node.inputs[:3] if value is not None and value.shape is not None}
    return node.op_type == "MultiHeadAttention" and (dtype is not ir.DataType.FLOAT or 5 in ranks)


class _Body:
    """The nodes of the body of `node`, as they are added; `inputs` are its operands in float32, "" those left out."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node, self.opset = node, opset
        self._nodes: list[Any] = []
        self._operands = [f"x{place}" for place in range(len(node.inputs))]
        self.inputs = ["" if value is None else self.add("Cast", name, to=TensorProto.FLOAT)
                       for name, value in zip(self._operands, node.inputs, strict=True)]  # fmt: skip

    def add(self, operator: str, *inputs: str, results: int = 1, **chosen: Any) -> Any:
        """The result of one more node, or its results."""
        made = [f"y{len(self._nodes)}_{place}" for place in range(results)]
        self._nodes.append(helper.make_node(operator, inputs, made, **chosen))
        return made[0] if results == 1 else made

    def optional(self, place: int) -> str:
        """An operand; "" where the node leaves it out."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def number(self, value: float) -> str:
        return str(self.add("Constant", value_float=float(value)))

    def reshaped(self, value: str, *extents: int) -> str:
        return str(self.add("Reshape", value, self.add("Constant", value_ints=extents)))

    def mean(self, value: str) -> str:
        """The mean along the last axis, which is kept."""
        if self.opset < _OLDEST_WITH_AXES_AS_OPERANDS:
            return str(self.add("ReduceMean", value, axes=(-1,)))
        return str(self.add("ReduceMean", value, self.add("Constant", value_ints=(-1,))))

    def total(self, *values: str) -> str:
        """The sum of those that are there."""
        first, *rest = filter(None, values)
        for each in rest:
            first = self.add("Add", first, each)
        return first

    def function(self, results: list[str], dtype: ir.DataType) -> Any:
        made = [self.add("Cast", each, to=dtype.value) for each in results]
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_function("", self.node.op_type, self._operands, made, self._nodes, opsets)


def _gelu(body: _Body) -> list[str]:
    return [_exact_gelu(body, body.total(body.inputs[0], body.optional(1)))]


def _exact_gelu(body: _Body, value: str) -> str:
    scaled = body.add("Erf", body.add("Mul", value, body.number(0.5**0.5)))
    return str(body.add("Mul", body.add("Mul", value, body.number(0.5)), body.add("Add", scaled, body.number(1))))


def _fast_gelu(body: _Body) -> list[str]:
    value = body.total(body.inputs[0], body.optional(1))
    square = body.add("Mul", value, value)
    inner = body.add("Add", body.add("Mul", square, body.number(0.035677408136300125)), body.number(0.7978845608028654))
    tangent = body.add("Tanh", body.add("Mul", value, inner))
    return [body.add("Mul", body.add("Mul", value, body.number(0.5)), body.add("Add", tangent, body.number(1)))]


def _quick_gelu(body: _Body) -> list[str]:
    scale = body.number(body.node.attributes.get_float("alpha", 1.702))
    value = body.inputs[0]
    return [body.add("Mul", value, body.add("Sigmoid", body.add("Mul", value, scale)))]


def _skip_normalization(body: _Body) -> list[str]:
    """The results are those of the operator: the normalized sum, its mean and the inverse of its deviation, the sum."""
    is_simplified = body.node.op_type == "SkipSimplifiedLayerNormalization"
    shift, bias = ("", body.optional(3)) if is_simplified else (body.optional(3), body.optional(4))
    total = body.total(body.inputs[0], body.inputs[1], bias)
    mean = body.mean(total)
    apart = total if is_simplified else body.add("Sub", total, mean)
    epsilon = body.number(body.node.attributes.get_float("epsilon", 1e-12))
    deviation = body.add("Sqrt", body.add("Add", body.mean(body.add("Mul", apart, apart)), epsilon))
    normal = body.add("Mul", body.add("Div", apart, deviation), body.inputs[2])
    return [body.total(normal, shift), mean, body.add("Reciprocal", deviation), total]


def _group_norm(body: _Body) -> list[str]:
    attributes, data = body.node.attributes, body.node.inputs[0]
    if data is None or data.shape is None or len(data.shape) != 4:
        return []
    is_last = attributes.get_int("channels_last", 1) == 1
    value = total = _with_skip(body, is_last)
    value = body.add("Transpose", value, perm=(0, 3, 1, 2)) if is_last else value
    groups = attributes.get_int("groups", 1) or 1
    ones, zeros = (body.add("Constant", value_floats=[number] * groups) for number in (1.0, 0.0))
    parted = body.reshaped(value, 0, groups, -1)
    epsilon = attributes.get_float("epsilon", 1e-5)
    normal = body.add("InstanceNormalization", parted, ones, zeros, epsilon=epsilon)
    normal = body.add("Reshape", normal, body.add("Shape", value))
    scale, shift = (body.reshaped(body.inputs[place], -1, 1, 1) for place in (1, 2))
    normal = body.add("Add", body.add("Mul", normal, scale), shift)
    if attributes.get_int("activation", 0):
        normal = body.add("Mul", normal, body.add("Sigmoid", normal))
    return [body.add("Transpose", normal, perm=(0, 2, 3, 1)) if is_last else normal, total]


def _with_skip(body: _Body, is_last: bool) -> str:
    """The data with the summands of a SkipGroupNorm: data or a vector for each element of the batch, and a bias."""
    if body.node.op_type == "GroupNorm":
        return body.inputs[0]
    skip, bias = body.node.inputs[3], body.optional(4)
    ends = (1, 1, -1) if is_last else (-1, 1, 1)
    of_batch = skip is not None and skip.shape is not None and len(skip.shape) == 2
    summand = body.reshaped(body.inputs[3], 0, *ends) if of_batch else body.inputs[3]
    return body.total(body.inputs[0], summand, body.reshaped(bias, *ends) if bias else "")


def _gate(body: _Body) -> list[str]:
    total = body.total(*body.inputs)
    counted = {"num_outputs": 2} if body.opset >= _OLDEST_WITH_COUNTED_PARTS else {}
    left, right = body.add("Split", total, results=2, axis=-1, **counted)
    return [body.add("Mul", left, _exact_gelu(body, right))]


def _attention(body: _Body) -> list[str]:
    """Attention without masks and a past. Queries, keys and values may be packed in one operand, (batch, row, head, 3,
    position in the head), and keys and values in another."""
    node, count = body.node, body.node.attributes.get_int("num_heads", 1) or 1
    read = [None if value is None or value.shape is None else tuple(value.shape) for value in node.inputs]
    has_more = any(body.optional(place) for place in (3, 4, 6, 7, 8, 9)) or len(node.outputs) > 1
    has_more = has_more or node.attributes.get_int("unidirectional", 0) == 1
    query = read[0] or ()
    is_packed, last = len(query) == 5, query[-1] if query else None
    size = last if is_packed else last // count if isinstance(last, int) else None
    if has_more or not isinstance(size, int):
        return []
    sources: list[tuple[int, int | None]] = [(0, 0), (0, 1), (0, 2)] if is_packed else [(0, None), (1, 0), (1, 1)]
    if not is_packed and body.optional(2):
        sources = [(0, None), (1, None), (2, None)]
    ranks = [len(read[place] or ()) if place < len(read) else 0 for place, _ in sources]
    if ranks != [3 if part is None else 5 for _, part in sources]:
        return []
    heads: list[str] = []
    for place, part in sources:
        value = body.inputs[place]
        if part is None:
            value = body.reshaped(value, 0, 0, count, -1)
        else:
            value = body.add("Gather", value, body.add("Constant", value_int=part), axis=3)
        heads.append(body.add("Transpose", value, perm=(0, 2, 1, 3) if len(heads) != 1 else (0, 2, 3, 1)))
    scale = body.number(node.attributes.get_float("scale", 0.0) or size**-0.5)
    scores = body.total(body.add("Mul", body.add("MatMul", *heads[:2]), scale), body.optional(5))
    made = body.add("MatMul", body.add("Softmax", scores, axis=-1), heads[2])
    return [body.reshaped(body.add("Transpose", made, perm=(0, 2, 1, 3)), 0, 0, -1)]


_WRITTEN = {
    "BiasAdd": lambda body: [body.total(*body.inputs)],
    "BiasGelu": _gelu,
    "BiasSplitGelu": _gate,
    "FastGelu": _fast_gelu,
    "Gelu": _gelu,
    "GroupNorm": _group_norm,
    "MultiHeadAttention": _attention,
    "QuickGelu": _quick_gelu,
    "SkipGroupNorm": _group_norm,
    "SkipLayerNormalization": _skip_normalization,
    "SkipSimplifiedLayerNormalization": _skip_normalization,
}
