"""Models between protobuf and onnx_ir, with each type and each attribute converted once for all that have it.

A network of 10,000 nodes has some twenty types and shapes, and as many attributes. onnx_ir converts each anew, which is
half of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx_ir import serde

__all__ = ["model_of"]

_PLAIN = frozenset(getattr(onnx.AttributeProto, name) for name in "INT INTS FLOAT FLOATS STRING STRINGS".split())


def model_of(proto: onnx.ModelProto, *, has_graphs: bool) -> ir.Model:
    """The model of a protobuf, which is used up. Its nodes are in topological order. `has_graphs`: a node may have
    graphs inside. Values of equal type share one frozen shape, as onnx_ir makes them, and nodes share attributes."""
    graph = proto.graph
    if has_graphs or graph.quantization_annotation or any(node.device_configurations for node in graph.node):
        return serde.deserialize_model(proto)
    given = {each.name for field in (graph.input, graph.initializer) for each in field}
    nodes, outputs, described = [*graph.node], [*graph.output], [*graph.value_info]
    for field in ("node", "output", "value_info"):
        graph.ClearField(field)
    graph.value_info.extend([info for info in described if info.name in given])
    model = serde.deserialize_model(proto)
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    model.graph.extend(_nodes(nodes, {info.name: info for info in described}, values))
    model.graph.outputs.extend([serde.deserialize_value_info_proto(info, values[info.name]) for info in outputs])
    return model


def _nodes(
    nodes: Iterable[onnx.NodeProto], described: dict[str, onnx.ValueInfoProto], values: dict[str | None, ir.Value]
) -> Iterator[ir.Node]:
    """The nodes one after the other; their results are entered into `values`."""
    types = _Types()
    attributes: dict[bytes, ir.Attr] = {}
    for node in nodes:
        results = []
        for name in node.output:
            info = described.get(name)
            value = ir.Value(name=name) if info is None else types.value(info)
            if name:
                values[name] = value
            results.append(value)
        given = []
        for attribute in node.attribute:
            if attribute.type not in _PLAIN:
                given.append(serde.deserialize_attribute(attribute))
                continue
            written = attribute.SerializeToString()
            if written not in attributes:
                attributes[written] = serde.deserialize_attribute(attribute)
            given.append(attributes[written])
        yield ir.Node(
            node.domain,
            node.op_type,
            [values[name] if name else None for name in node.input],
            given,
            overload=node.overload,
            outputs=results,
            name=node.name,
            doc_string=node.doc_string if node.HasField("doc_string") else None,
            metadata_props=serde.deserialize_metadata_props(node.metadata_props),
        )


class _Types:
    """The types and shapes of the values so far."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[ir.Shape | None, ir.TypeProtocol | None]] = {}

    def value(self, info: onnx.ValueInfoProto) -> ir.Value:
        """A value of this name, type and shape."""
        if info.metadata_props or info.doc_string:
            return serde.deserialize_value_info_proto(info, None)
        written = info.type.SerializeToString()
        if written not in self._known:
            made = serde.deserialize_value_info_proto(info, None)
            self._known[written] = made.shape, made.type
        shape, type_ = self._known[written]
        # A type can be changed in place, so each value has its own.
        if isinstance(type_, ir.TensorType) and type_.denotation is None:
            return ir.Value(name=info.name, shape=shape, type=ir.TensorType(type_.dtype))
        return ir.Value(name=info.name, shape=shape, type=serde.deserialize_type_proto_for_type(info.type))
