"""The value of a Shape or Size node whose operand has a static shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

__all__ = ["known_shape"]


def known_shape(node: ir.Node) -> np.ndarray | None:
    """The result of a Shape or Size of a static shape, int64 of shape (entries,) or (); None for any other node."""
    if node.op_type not in ("Shape", "Size") or node.domain not in ("", "ai.onnx"):
        return None
    source = node.inputs[0]
    if source is None or source.shape is None or not source.shape.is_static():
        return None
    shape = np.array(source.shape.numpy(), np.int64)
    if node.op_type == "Size":
        return np.array(shape.prod(), np.int64)
    return shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
