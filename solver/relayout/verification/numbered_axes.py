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
        *("LpNormalization", "RMSNormalization", "ScatterElements", "Softmax", "Split", "TopK"),
    }
)
_TO_THE_LAST = frozenset({"LayerNormalization", "RMSNormalization"})
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
_SUMMING = {**FACTORS, "Gemm": (0, 1)}
# They may work on whole blocks of an axis.
_IN_BLOCKS = frozenset({"Concat", "Gather", "Split"})


class ByNumber(NamedTuple):
    """The axes of an operand along which an operator works by number; in blocks, parts of an axis may count."""

    operand: int
    axes: frozenset[int]
    in_blocks: bool


def by_number(node: ir.Node) -> ByNumber | None:
    """The axes that an operator has by number; None if it has no numbers, or they are not known."""
    if node.domain == CONTRIBUTED:
        kind, first = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))
    else:
        kind, first = node.op_type if node.domain == "" else "", 0
    value = node.inputs[first] if first < len(node.inputs) else None
    reduces = kind.startswith("Reduce") or kind in ("ArgMax", "ArgMin")
    if value is None or value.shape is None or not (reduces or kind in {*_ALONG_AXES, _MVN}):
        return None
    axes = _numbers_of(node, kind)
    rank = len(value.shape)
    if axes is None or any(not -rank <= axis < rank for axis in axes):
        return None
    places = {axis % rank for axis in axes}
    if flattens(node) or kind in _TO_THE_LAST:
        places = set(range(min(places), rank))
    return ByNumber(first, frozenset(places), kind in _IN_BLOCKS)


def _numbers_of(node: ir.Node, kind: str) -> tuple[int, ...] | None:
    if kind == _MVN:
        return tuple(node.attributes.get_ints("axes", _MVN_AXES) or ())
    if kind.startswith("Reduce"):
        return constant_ints(node, "axes", 1)
    if kind not in CUMULATIVE and "axis" not in node.attributes:
        default = _DEFAULT_AXES.get(kind, 1 if kind in _FLATTENING and _opset(node) < _LAST_AXIS else -1)
        return None if kind == "Concat" else (default,)
    return constant_ints(node, "axis", 1 if kind in CUMULATIVE else len(node.inputs))


def summed_axes(node: ir.Node) -> dict[int, int]:
    """The axis of each of the two factors over which a product of matrices sums, by operand; none for other nodes, and
    where an operand's rank is not known."""
    operands = _SUMMING.get(node.op_type, ()) if node.domain in ("", CONTRIBUTED) else ()
    found: dict[int, int] = {}
    for n, (transposed, axis) in zip(operands, (("transA", 1), ("transB", 0)), strict=False):
        value = node.inputs[n] if n < len(node.inputs) else None
        rank = len(value.shape) if value is not None and value.shape is not None else 0
        if rank:
            found[n] = max(rank - 2, 0) + (axis ^ node.attributes.get_int(transposed, 0) if rank > 1 else 0)
    return found if len(found) == 2 else {}


def flattens(node: ir.Node) -> bool:
    """Whether an operator works on an axis and all that follow it as one, as a softmax did before opset 13."""
    kind = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))[0] if node.domain == CONTRIBUTED else node.op_type
    return kind in _FLATTENING and node.domain in ("", CONTRIBUTED) and _opset(node) < _LAST_AXIS


def _opset(node: ir.Node) -> int:
    """The opset of ONNX in which an operator is to be read; a quantized softmax has its own."""
    of_graph = node.graph.opset_imports.get("", 13) if node.graph is not None else 13
    return node.attributes.get_int("opset", 13) if node.domain == CONTRIBUTED else of_graph
