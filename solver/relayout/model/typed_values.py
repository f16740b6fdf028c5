"""Models between protobuf and onnx_ir, with the type of a value converted once for all values that have it.

A network of 10,000 values has some twenty types and shapes. onnx_ir converts each anew, which is a third of its time.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir import serde

__all__ = ["model_of"]


def model_of(proto: onnx.ModelProto) -> ir.Model:
    """The model of a protobuf, which is used up. Values of equal type share one frozen shape, as onnx_ir makes them."""
    graph = proto.graph
    elsewhere = {each.name for field in (graph.input, graph.output, graph.initializer) for each in field}
    types: dict[str, bytes] = {}
    others: list[onnx.ValueInfoProto] = []
    for info in graph.value_info:
        if info.name in elsewhere or info.metadata_props or info.doc_string:
            others.append(info)
        else:
            types[info.name] = info.type.SerializeToString()
    kept = onnx.GraphProto(value_info=others).value_info
    graph.ClearField("value_info")
    graph.value_info.extend(kept)
    model = serde.deserialize_model(proto)
    known: dict[bytes, tuple[onnx.TypeProto, ir.Shape | None, ir.TypeProtocol | None]] = {}
    for node in model.graph:
        for value in node.outputs:
            written = types.get(value.name or "")
            if written is None:
                continue
            if written not in known:
                kind = onnx.TypeProto.FromString(written)
                type_ = serde.deserialize_type_proto_for_type(kind)
                known[written] = kind, serde.deserialize_type_proto_for_shape(kind), type_
            kind, value.shape, type_ = known[written]
            # A type can be changed in place, so each value has its own.
            if isinstance(type_, ir.TensorType) and type_.denotation is None:
                value.type = ir.TensorType(type_.dtype)
            else:
                value.type = serde.deserialize_type_proto_for_type(kind)
    return model
