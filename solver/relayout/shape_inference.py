"""Types and shapes of every value, by onnx's own inference, on a copy of the graph without its weights.

Constants up to 1 KiB stay in the copy, since inference follows the values of shapes through the graph. A larger one is
replaced by a node that inference does not know, with the type and shape declared: so the copy is small whatever the
model weighs, no buffer comes near protobuf's 2 GB, and inference never looks at data that is not there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx_ir import serde

from relayout.errors import InputError
from relayout.tensor_types import is_absent
from relayout.tensors import AbsentTensor

__all__ = ["all_graphs", "infer_shapes", "without_weights"]

LARGEST_KEPT = 1024
STAND_IN = "relayout.absent"

_CULPRIT = re.compile(r"\(op_type:\s*([^,)]*)(?:, node name: ([^)]*))?\)")
_DIFFER = re.compile(r"[Ii]nferred (?:shape|type|elem type|rank)[^:]*differ[^:]*: \(([^)]*)\) vs \(([^)]*)\)")


def without_weights(model: ir.Model, keep: int = LARGEST_KEPT) -> onnx.ModelProto:
    """The model as a protobuf in which constants above `keep` bytes, and absent ones, have a type and shape only."""
    light = model.clone()
    for graph in all_graphs(light):
        for value in graph.initializers.values():
            value.const_value = _weightless(value.const_value, value.name, keep)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                    tensor = _weightless(attribute.as_tensor(), attribute.as_tensor().name, keep)
                    node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=attribute.doc_string)
    return ir.to_proto(light)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The graph, the functions' bodies, and every subgraph of these."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield graph
        yield from graph.subgraphs()


def infer_shapes(model: ir.Model) -> None:
    """Fill in the type and shape of every value of `model`, subgraphs included.

    InputError where an operator's operands contradict each other or what the model declares.
    """
    proto = without_weights(model)
    _stand_in(proto.graph)
    proto.opset_import.add(domain=STAND_IN, version=1)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise _contradiction(str(error), model.graph.name) from error
    _merge(model.graph, inferred.graph)


def _weightless(tensor: ir.TensorProtocol | None, name: str | None, keep: int) -> ir.TensorProtocol:
    if tensor is None:
        raise InputError("a constant has no data", where=f"constant '{name}'", expected="a tensor", found="nothing")
    if tensor.nbytes <= keep or isinstance(tensor, AbsentTensor):
        return tensor
    return AbsentTensor(tensor.dtype, tensor.shape.numpy(), name)


def _stand_in(graph: onnx.GraphProto) -> None:
    """Replace every constant without data by a node of a domain of its own, with its type declared."""
    declared = {info.name for info in (*graph.input, *graph.value_info)}
    kept, nodes = [], []
    for tensor in graph.initializer:
        if not is_absent(tensor):
            kept.append(tensor)
            continue
        if not any(info.name == tensor.name for info in graph.input):
            nodes.append(onnx.helper.make_node("Initializer", [], [tensor.name], domain=STAND_IN))
        _declare(graph, tensor.name, tensor, declared)
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _stand_in(subgraph)
        absent = [attribute.t for attribute in node.attribute if attribute.HasField("t") and is_absent(attribute.t)]
        if node.op_type == "Constant" and absent:
            _declare(graph, node.output[0], absent[0], declared)
            node.domain = STAND_IN
        nodes.append(node)
    nodes = [copy.deepcopy(node) for node in nodes]
    kept = [copy.deepcopy(tensor) for tensor in kept]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)


def _declare(graph: onnx.GraphProto, name: str, tensor: onnx.TensorProto, declared: set[str]) -> None:
    if name not in declared:
        graph.value_info.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))


def _merge(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Carry the inferred types over, graph by graph: sibling subgraphs may use the same names."""
    types = {info.name: info.type for info in (*inferred.value_info, *inferred.output)}
    twins = [node for node in inferred.node if (node.domain, node.op_type) != (STAND_IN, "Initializer")]
    for node, twin in zip(graph, twins, strict=True):
        for output in node.outputs:
            if output.name in types:
                _assign(output, types[output.name])
        for attribute in twin.attribute:
            mine = node.attributes.get(attribute.name)
            if mine is not None and mine.type == ir.AttributeType.GRAPH:
                _merge(mine.as_graph(), attribute.g)
            elif mine is not None and mine.type == ir.AttributeType.GRAPHS:
                for subgraph, twin_graph in zip(mine.as_graphs(), attribute.graphs, strict=True):
                    _merge(subgraph, twin_graph)


def _assign(value: ir.Value, proto: onnx.TypeProto) -> None:
    # The type object may be shared with the graph that this one was cloned from: it is replaced, never changed.
    kind = serde.deserialize_type_proto_for_type(proto)
    shape = serde.deserialize_type_proto_for_shape(proto)
    value.type = kind if kind is not None else value.type
    value.shape = shape if shape is not None else value.shape


def _contradiction(message: str, graph: str | None) -> InputError:
    """onnx's sentence, taken apart into where, expected and found."""
    where = f"graph '{graph}'"
    culprit = _CULPRIT.search(message)
    if culprit:
        op, name = culprit.groups()
        where += f", node '{name}' ({op})" if name else f", a node of type {op}"
    detail = message.replace("\n", " ").strip()
    detail = re.sub(r"\[\w+Error\] ?|Inference error\(s\): |" + _CULPRIT.pattern + ": ", "", detail)
    differ = _DIFFER.search(message)
    return InputError(
        "shapes or types contradict each other",
        where=where,
        expected=differ.group(1) if differ else "operands that the operator accepts",
        found=f"{differ.group(2)}: {detail}" if differ else detail,
        hint="onnx.checker.check_model(model, full_check=True) tells the same of the source",
    )
