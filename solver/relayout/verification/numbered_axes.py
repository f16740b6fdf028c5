"""The axes along which an operator works, by the numbers in its attributes."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from relayout.verification.operator_facts import CONTRIBUTED, FACTORS, constant_ints

CUMULATIVE = frozenset({"CumProd", "CumSum"})
"""Operators whose second operand is the number of the axis."""
_ALONG_AXES = CUMULATIVE | frozenset(
    {
        *("Concat", "Gather", "GatherElements", "Hardmax", "LayerNormalization", "LogSoftmax"),
        *("LpNormalization", "RMSNormalization", "ScatterElements", "SimplifiedLayerNormalization", "Softmax"),
        *("DFT", "DequantizeLinear", "QuantizeLinear", "ReverseSequence", "Split", "TopK", "Unique"),
    }
)
_QUANTIZING = frozenset({"DequantizeLinear", "QuantizeLinear"})
_TO_THE_LAST = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
"""They work on the axis and all that follow it."""
# Where the attribute is left out; before opset 13 a softmax has another one.
_DEFAULT_AXES = {"ArgMax": 0, "ArgMin": 0, "Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Split": 0}
_MVN, _MVN_AXES = "MeanVarianceNormalization", (0, 2, 3)
# Operators of onnxruntime that work along an axis, as ONNX's operator does from this operand on.
_CONTRIBUTED_ALONG_AXES = {"QLinearConcat": ("Concat", 2), "QLinearSoftmax": ("Softmax", 0)}
# Before opset 13 they work on the axis and all that follow it as one.
_FLATTENING = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
_LAST_AXIS = 13
"""From this opset on a softmax works on one axis, by default the last."""
_AXIS_OF_DFT = 20
"""From this opset on the axis of a DFT is an operand, by default the last but one."""
_SUMMING = {**FACTORS, "FusedMatMul": (0, 1), "Gemm": (0, 1), "QGemm": (0, 3)}
# They may work on whole blocks of an axis.
_IN_BLOCKS = frozenset({"Concat", "Gather", "Split"})


class ByNumber(NamedTuple):
    """The axes of an operand along which an operator works by number; in blocks, parts of an axis may count."""

    operand: int
    axes: frozenset[int]
    in_blocks: bool


class Numbers(NamedTuple):
    """The numbers of axes of an operand of this rank, as an operator has them."""

    operand: int
    rank: int
    axes: tuple[int, ...]

    @property
    def are_in_range(self) -> bool:
        return all(-self.rank <= axis < self.rank for axis in self.axes)


def axis_numbers(node: ir.Node) -> Numbers | None:
    """The numbers of axes that an operator has; None if it has none, or they or the rank are not known."""
    if node.domain == CONTRIBUTED:
        kind, first = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))
    else:
        kind, first = node.op_type if node.domain == "" else "", 0
    value = node.inputs[first] if first < len(node.inputs) else None
    reduces = kind.startswith("Reduce") or kind in ("ArgMax", "ArgMin")
    if value is None or value.shape is None or not (reduces or kind in {*_ALONG_AXES, _MVN, "Slice"}):
        return None
    if kind in _QUANTIZING and _has_one_scale(node):
        return None
    axes = _numbers_of(node, kind)
    return None if axes is None else Numbers(first, len(value.shape), axes)


def by_number(node: ir.Node) -> ByNumber | None:
    """The axes along which an operator works by number; None if it has no numbers, or they are not known."""
    numbers = axis_numbers(node)
    if numbers is None or not numbers.are_in_range or node.op_type == "Slice":
        return None
    kind, rank = _CONTRIBUTED_ALONG_AXES.get(node.op_type, (node.op_type, 0))[0], numbers.rank
    places = {axis % rank for axis in numbers.axes}
    if flattens(node) or kind in _TO_THE_LAST:
        places = set(range(min(places), rank))
    return ByNumber(numbers.operand, frozenset(places), kind in _IN_BLOCKS)


def _numbers_of(node: ir.Node, kind: str) -> tuple[int, ...] | None:
    if kind == _MVN:
        return tuple(node.attributes.get_ints("axes", _MVN_AXES) or ())
    if kind.startswith("Reduce") or kind == "Slice":
        return constant_ints(node, "axes", 3 if kind == "Slice" else 1)
    if kind == "ReverseSequence":
        # The steps of each sequence are in order, whatever the order of the sequences.
        return (node.attributes.get_int("time_axis", 0),)
    if kind == "DFT":
        return constant_ints(node, "axis", 2) or ((1,) if _opset(node) < _AXIS_OF_DFT else (-2,))
    if kind in _QUANTIZING or kind == "Unique":
        axis = node.attributes.get_int("axis") if kind == "Unique" else node.attributes.get_int("axis", 1)
        return None if axis is None else (axis,)
    if kind not in CUMULATIVE and "axis" not in node.attributes:
        default = _DEFAULT_AXES.get(kind, 1 if kind in _FLATTENING and _opset(node) < _LAST_AXIS else -1)
        return None if kind == "Concat" else (default,)
    return constant_ints(node, "axis", 1 if kind in CUMULATIVE else len(node.inputs))


def _has_one_scale(node: ir.Node) -> bool:
    """Whether a node that quantizes has one scale for all elements, so that it has no axis, or that is not known."""
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    return scale is None or scale.shape is None or all(extent == 1 for extent in scale.shape)


def summed_axes(node: ir.Node) -> dict[int, int]:
    """The axis of each of the two factors over which a product of matrices sums, by operand; none for other nodes, and
    where an operand's rank is not known."""
    operands = _SUMMING.get(node.op_type, ()) if node.domain in ("", CONTRIBUTED) else ()
    found: dict[int, int] = {}
    for n, (side, axis) in zip(operands, (("A", 1), ("B", 0)), strict=False):
        value = node.inputs[n] if n < len(node.inputs) else None
        rank = len(value.shape) if value is not None and value.shape is not None else 0
        is_turned, is_behind = (bool(node.attributes.get_int(name + side, 0)) for name in ("trans", "transBatch"))
        if rank:
            # The first of the two axes of a matrix may be in front of the batch.
            first = 0 if is_behind else max(rank - 2, 0)
            found[n] = rank - 1 if rank == 1 or axis ^ is_turned else first
    return found if len(found) == 2 else {}


def flattens(node: ir.Node) -> bool:
    """Whether an operator works on an axis and all that follow it as one, as a softmax did before opset 13."""
    kind = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))[0] if node.domain == CONTRIBUTED else node.op_type
    return kind in _FLATTENING and node.domain in ("", CONTRIBUTED) and _opset(node) < _LAST_AXIS


def _opset(node: ir.Node) -> int:
    """The opset of ONNX in which an operator is to be read; a quantized softmax has its own."""
    of_graph = node.graph.opset_imports.get("", 13) if node.graph is not None else 13
    return node.attributes.get_int("opset", 13) if node.domain == CONTRIBUTED else of_graph
