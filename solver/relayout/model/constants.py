"""What a model says of a tensor's shape when it asks for it, where all extents are known before it runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

__all__ = ["known_shape"]


def known_shape(node: ir.Node) -> np.ndarray | None:
    """What a Shape or Size of known extents gives, whatever its input holds: int64, (entries,) or (); else None."""
    if node.op_type not in ("Shape", "Size") or node.domain not in ("", "ai.onnx"):
        return None
    source = node.inputs[0]
    if source is None or source.shape is None or not source.shape.is_static():
        return None
    shape = np.array(source.shape.numpy(), np.int64)
    if node.op_type == "Size":
        return np.array(shape.prod(), np.int64)
    return shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
