"""The axes that an operator passes on from an operand to a result, also where it names some axes itself."""

from __future__ import annotations

import onnx_ir as ir

from relayout.verification.operator_facts import axis_names, axis_sources, is_pooled, named

__all__ = ["CHANNELS_ONLY", "axis_path"]

CHANNELS_ONLY = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN"})
"""They read their channels by name and pass every axis on."""


def axis_path(node: ir.Node, n: int, m: int) -> tuple[int | None, ...] | None:
    """For each axis of the m-th result, the axis of the n-th input that it is; None as a whole if it is unknown."""
    facts = named(node)
    if node.op_type not in CHANNELS_ONLY and (facts is None or facts.names_axes):
        return axis_sources(node, n, m)
    source, result = node.inputs[n], node.outputs[m]
    if n or m or source is None or source.shape is None or result.shape is None:
        return None
    before, after = axis_names(node, "input", 0) or (), axis_names(node, "result", 0) or ()
    if None not in before and sorted(map(str, before)) == sorted(map(str, after)):
        sources = tuple(before.index(name) for name in after)
    elif len(source.shape) == len(result.shape):
        sources = tuple(range(len(result.shape)))
    else:
        return None
    # A reader may give an axis of extent 1 any name. The axis that it broadcasts to, or is reduced from, is another,
    # and its name must not pass to an operator that does not know that the extent is 1.
    units = [(axis, source.shape[axis] == 1, extent == 1) for axis, extent in zip(sources, result.shape, strict=True)]
    pooled = is_pooled(node)
    return tuple(
        None if (before and not after) or (pooled and after and not before) else axis for axis, before, after in units
    )
