"""The layouts in which onnxruntime's own operators read and give their operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.backend import Implementation, rank_of
from relayout.layout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

CONVERSIONS = frozenset({("com.microsoft.nchwc", "ReorderInput"), ("com.microsoft.nchwc", "ReorderOutput")})

_KERNEL = 3
"""The index of the kernel of a QLinearConv."""
_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


def operator_layouts(node: ir.Node) -> Implementation | None:
    """The layouts of an operator of onnxruntime's; None for an unknown operator.

    Axes of blocked operators and of FusedMatMul have no names.
    """
    inputs, results = _unnamed(node.inputs), _unnamed(node.outputs)
    if (node.domain, node.op_type) == ("com.microsoft", "QLinearConv"):
        channels_last = node.attributes.get_int("channels_last", 0) == 1
        inputs[0], results[0] = _data(inputs[0].rank, channels_last), _data(results[0].rank, channels_last)
        inputs[_KERNEL] = _named("OI", inputs[_KERNEL].rank)
    elif (node.domain, node.op_type) != ("com.microsoft", "FusedMatMul") and node.domain != "com.microsoft.nchwc":
        return None
    return Implementation(tuple(inputs), tuple(results))


def _unnamed(values: Sequence[ir.Value | None]) -> list[Layout]:
    return [Layout.any(rank_of(value)) for value in values]


def _data(rank: int, channels_last: bool) -> Layout:
    names = _named("NC", rank).names
    return Layout.parse(names[:1] + names[2:] + names[1:2]) if channels_last else Layout.parse(names)


def _named(first: str, rank: int) -> Layout:
    return Layout.parse((first + _SPATIAL.get(rank, "*" * max(rank - 2, 0)))[:rank])
