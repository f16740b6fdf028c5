"""onnx's inference of one node whose operands have known shapes, without the rest of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from relayout.model.proto_graphs import STANDARD_DOMAINS, graphs_inside

__all__ = ["LoneInference"]


class LoneInference:
    """The shapes of results by onnx's rules for their operators, at the versions of these operator sets."""

    def __init__(self, opsets: Sequence[onnx.OperatorSetIdProto]) -> None:
        self._opsets = list(opsets)
        self._version = next((each.version for each in opsets if each.domain in STANDARD_DOMAINS), None)

    def shapes(
        self,
        node: onnx.NodeProto,
        shapes: Mapping[str, tuple[int, ...]],
        kinds: Mapping[str, int],
        known: Mapping[str, np.ndarray],
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of results, by name, that these shapes, types and values of the operands determine in full.

        Empty where a shape or an element type of an operand is missing, and for a node that has graphs, contradicts
        itself, or has an operator that ONNX does not define. `node` is in ONNX's domain."""
        names = {name for name in node.input if name}
        if self._version is None or not names <= shapes.keys() & kinds.keys() or graphs_inside([node]):
            return {}
        types = {name: onnx.helper.make_tensor_type_proto(kinds[name], shapes[name]) for name in names}
        data = {name: numpy_helper.from_array(known[name], name) for name in names if name in known}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._version, "")
            inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=self._opsets)
        except Exception:  # the inference of the whole graph says what contradicts itself, and where
            return {}
        found: dict[str, tuple[int, ...]] = {}
        for name, kind in inferred.items():
            dims = kind.tensor_type.shape.dim
            is_ranked = kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
            if is_ranked and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
                found[name] = tuple([dim.dim_value for dim in dims])
        return found
