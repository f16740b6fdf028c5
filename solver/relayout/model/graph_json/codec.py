"""Graph JSON to an ONNX protobuf, and an onnx_ir.Model to graph JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct, field

from relayout.errors import InputError, InternalError
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY, SOURCE_KEY, TRANSFORM_KEY
from relayout.model.graph_json.attributes import attribute_to_json, attribute_to_proto
from relayout.model.graph_json.schema import FunctionJson, GraphBody, GraphJson, NodeJson, ValueJson, validate
from relayout.model.graph_json.tensors import constant_to_proto, tensor_to_json, type_name, type_proto
from relayout.model.graph_structure import DEEPEST_SUBGRAPH
from relayout.model.operator_schema import attribute_type
from relayout.model.proto_graphs import STANDARD_DOMAINS, nodes_inside
from relayout.ops.node_reader import extents_of

DEFAULT_IR_VERSION = 10
"""The first that keeps metadata of nodes and values, and overloads of functions."""
SHORT = 64
"""Characters of base64. Shorter tensors are converted once for all nodes that have them as the same attribute."""

_MODEL_FIELDS = ("producer_name", "producer_version", "domain", "doc_string")


# --- JSON to ONNX ----------------------------------------------------------------------------------------------------


def json_to_proto(graph: GraphJson) -> onnx.ModelProto:
    """The ONNX model of `graph`, whose structure is not checked yet."""
    try:
        return _model(graph)
    except UnicodeEncodeError as error:
        raise InputError("a text is not Unicode", where="graph JSON", expected="UTF-8", found=str(error)) from error


def _model(graph: GraphJson) -> onnx.ModelProto:
    versions = {"": graph.opset, **graph.opsets}
    proto = onnx.ModelProto()
    for domain, version in versions.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.ir_version = graph.ir_version or max(DEFAULT_IR_VERSION, _oldest_ir_version(graph.opset))
    for name, text in graph.model.items():
        if name not in _MODEL_FIELDS:
            raise InputError("no such field", where="graph JSON, model", expected=", ".join(_MODEL_FIELDS), found=name)
        setattr(proto, name, text)
    _put(proto, graph.properties)
    proto.graph.CopyFrom(_graph(graph, _Made(versions), "graph JSON", 0))
    # JSON need not name the versions of domains that ONNX does not define: they have no meaning.
    others = {node.domain for node in nodes_inside(proto.graph.node)} - {*versions, *STANDARD_DOMAINS}
    for domain in sorted(domain for domain in others if not domain.startswith("ai.onnx")):
        proto.opset_import.add(domain=domain, version=1)
    for function in graph.functions:
        proto.functions.append(_function(function, versions))
    return proto


def _oldest_ir_version(opset: int) -> int:
    known = {row[2]: row[1] for row in reversed(onnx.helper.VERSION_TABLE)}
    return known.get(opset, DEFAULT_IR_VERSION)


class _Made(Struct, frozen=True):
    """The opset versions, and what a network repeats: the short attributes so far by operator, name and JSON, and the
    types by dtype and shape."""

    versions: Mapping[str, int]
    attributes: dict[tuple[str, str, str, str] | None, onnx.AttributeProto] = field(default_factory=dict)
    types: dict[tuple[str, tuple[int | str | None, ...] | None], onnx.TypeProto] = field(default_factory=dict)


def _graph(body: GraphBody, made: _Made, where: str, depth: int) -> onnx.GraphProto:
    proto = onnx.GraphProto(name=body.name, doc_string=body.doc)
    for kind, values in (("input", body.inputs), ("output", body.outputs), ("value_info", body.values)):
        for value in values:
            if value.layout is not None and (depth or kind == "value_info"):
                raise InputError(
                    "a layout of a value inside the graph",
                    where=f"{where}, value '{value.name}'",
                    expected="layouts of the graph's inputs and outputs only: the solver chooses the others",
                    found=repr(value.layout)[:80],
                )
            _write_value(getattr(proto, kind).add(), value, made, f"{where}, {kind} '{value.name}'")
    inputs = {value.name for value in body.inputs}
    for constant in body.constants:
        proto.initializer.append(constant_to_proto(constant, f"{where}, constant '{constant.name}'"))
        metadata = constant.metadata | ({SOURCE_KEY: constant.source} if constant.source else {})
        if metadata and constant.name not in inputs:
            shown = ValueJson(name=constant.name, dtype=constant.dtype, shape=list(constant.shape), metadata=metadata)
            _write_value(proto.value_info.add(), shown, made, where)
    for index, node in enumerate(body.nodes):
        _write_node(proto.node.add(), node, index, made, where, depth)
    _put(proto, body.metadata)
    return proto


def _write_value(proto: onnx.ValueInfoProto, value: ValueJson, made: _Made, where: str) -> None:
    proto.name = value.name
    if value.dtype is not None:
        # The schema lets no boolean or number with a point pass for an extent.
        key = value.dtype, None if value.shape is None else tuple(value.shape)
        kind = made.types.get(key)
        if kind is None:
            kind = made.types[key] = type_proto(value.dtype, value.shape, where)
        proto.type.CopyFrom(kind)
    elif value.shape is not None:
        raise InputError("a shape without a dtype", where=where, expected="a dtype", found=f"shape {value.shape}")
    if value.doc:
        proto.doc_string = value.doc
    layout = {} if value.layout is None else {BOUNDARY_LAYOUT_KEY: value.layout}
    _put(proto, {**value.metadata, **layout})


def _write_node(proto: onnx.NodeProto, node: NodeJson, index: int, made: _Made, where: str, depth: int) -> None:
    where = f"{where}, node '{node.name}' ({node.op})" if node.name else f"{where}, node {index} ({node.op})"

    def subgraph(data: object, place: str) -> onnx.GraphProto:
        if depth >= DEEPEST_SUBGRAPH:
            raise InputError(
                "subgraphs are nested too deep", where=place, expected=f"at most {DEEPEST_SUBGRAPH} levels"
            )
        return _graph(validate(GraphBody, data, place), made, place, depth + 1)

    proto.op_type = node.op
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    for part in ("name", "domain", "overload"):
        if text := getattr(node, part):
            setattr(proto, part, text)
    if node.doc:
        proto.doc_string = node.doc
    for name, given in node.attributes.items():
        # An integer, a number and a boolean that are equal differ when written.
        key = (node.op, node.domain, name, repr(given)) if _is_short(given) else None
        attribute = made.attributes.get(key)
        if attribute is None:
            wanted = attribute_type(node.op, node.domain, made.versions, name)
            attribute = attribute_to_proto(name, given, wanted, where, subgraph)
            if key is not None:
                made.attributes[key] = attribute
        proto.attribute.append(attribute)
    _put(proto, node.metadata)


def _is_short(given: Any) -> bool:
    """Whether an attribute is plain, or a tensor of few bytes."""
    tensor = given.get("value") if isinstance(given, dict) else {"data": ""}
    data = tensor.get("data") if isinstance(tensor, dict) else None
    return isinstance(data, str) and len(data) <= SHORT


def _function(function: FunctionJson, versions: Mapping[str, int]) -> onnx.FunctionProto:
    where = f"graph JSON, function '{function.name}'"
    own = {"": function.opset or versions[""], **function.opsets}
    proto = onnx.FunctionProto(name=function.name, domain=function.domain, doc_string=function.doc)
    if function.overload:
        proto.overload = function.overload
    proto.input.extend(function.inputs)
    proto.output.extend(function.outputs)
    proto.attribute.extend(function.attributes)
    for domain, version in own.items():
        proto.opset_import.add(domain=domain, version=version)
    body = GraphBody(outputs=[], nodes=function.nodes, values=function.values, metadata=function.metadata)
    graph = _graph(body, _Made({**versions, **own}), where, 0)
    proto.node.extend(graph.node)
    proto.value_info.extend(graph.value_info)
    proto.metadata_props.extend(graph.metadata_props)
    for name, given in function.defaults.items():
        proto.attribute_proto.append(attribute_to_proto(name, given, None, where, _no_graph))
    return proto


def _no_graph(data: object, where: str) -> onnx.GraphProto:
    raise InputError("a graph cannot be a function's default", where=where)


def _metadata(owner: ir.Model | ir.Graph | ir.Function | ir.Node | ir.Value) -> dict[str, str]:
    """The metadata in the order of its keys, as onnx_ir writes it to ONNX files."""
    return dict(sorted(owner.metadata_props.items()))


def _put(proto: Any, metadata: Mapping[str, str]) -> None:
    for key, text in metadata.items():
        proto.metadata_props.add(key=key, value=text)


# --- onnx_ir.Model to JSON -------------------------------------------------------------------------------------------


_WITH_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class _Writer(Struct, frozen=True):
    """Whether constants above 1 KiB have their data, whether nodes share the JSON of attributes that they share, and
    the JSON of the attributes so far, by the identity of these."""

    weights: bool
    shares: bool
    attributes: dict[int, tuple[ir.Attr, Any]] = field(default_factory=dict)

    def attribute(self, attribute: ir.Attr) -> Any:
        """The JSON of an attribute."""
        if attribute.type in _WITH_GRAPHS:
            return attribute_to_json(attribute, lambda graph: _body(graph, self))
        known = self.attributes.get(id(attribute))
        if known is None:
            known = self.attributes[id(attribute)] = attribute, attribute_to_json(attribute, lambda graph: {})
        return known[1] if self.shares else _copied(known[1])


def _copied(given: Any) -> Any:
    """A copy of JSON; `copy.deepcopy` takes ten times as long."""
    if isinstance(given, dict):
        return {key: _copied(each) for key, each in given.items()}
    return [_copied(each) for each in given] if isinstance(given, list) else given


def model_to_json(model: ir.Model, *, weights: bool, shares: bool) -> dict[str, Any]:
    """`model` as graph JSON, version 1; without `weights` only constants up to 1 KiB have their data. `shares`: nodes
    may share the JSON of an attribute."""
    writer = _Writer(weights, shares)
    fields = {name: text for name in _MODEL_FIELDS if (text := getattr(model, name))}
    return _filled(
        {
            "version": 1,
            "opset": model.opset_imports[""],
            "opsets": {domain: version for domain, version in model.opset_imports.items() if domain},
            "ir_version": model.ir_version,
            **_body(model.graph, writer),
            "functions": [_function_json(function, writer) for function in model.functions.values()],
            "model": fields,
            "properties": _metadata(model),
        }
    )


def _body(graph: ir.Graph, writer: _Writer) -> dict[str, Any]:
    outputs = set(graph.outputs)
    return _filled(
        {
            "name": graph.name or "graph",
            "inputs": [_value_json(value) for value in graph.inputs],
            "outputs": [_value_json(value) for value in graph.outputs],
            "constants": [_constant_json(value, writer.weights) for value in graph.initializers.values()],
            "nodes": [_node_json(node, writer) for node in graph],
            "values": _values(graph, outputs),
            "metadata": _metadata(graph),
            "doc": graph.doc_string,
        }
    ) | ({} if graph.outputs else {"outputs": []})


def _values(nodes: Iterable[ir.Node], outputs: set[ir.Value]) -> list[dict[str, Any]]:
    values = (value for node in nodes for value in node.outputs if value.name and value not in outputs)
    return [shown for shown in map(_value_json, values) if len(shown) > 1]


def _value_json(value: ir.Value) -> dict[str, Any]:
    metadata = _metadata(value)
    # An empty layout is one, that of a scalar; and so is an empty shape.
    layout = metadata.pop(BOUNDARY_LAYOUT_KEY, None)
    shown = _filled({"name": value.name, "dtype": type_name(value.type), "metadata": metadata, "doc": value.doc_string})
    if layout is not None:
        shown["layout"] = layout
    if (extents := extents_of(value)) is not None:
        shown["shape"] = [*extents]
    return shown


def _constant_json(value: ir.Value, weights: bool) -> dict[str, Any]:
    if value.const_value is None:
        raise InternalError("a constant has no data", where=f"constant '{value.name}'")
    metadata = {} if value.is_graph_input() else _metadata(value)
    tensor = tensor_to_json(value.const_value, weights=weights)
    source = metadata.pop(SOURCE_KEY, None) if "transform" in tensor else None
    if "transform" in tensor:
        metadata.pop(TRANSFORM_KEY, None)
    return _filled({"name": value.name, "source": source, "metadata": metadata}) | tensor


def _node_json(node: ir.Node, writer: _Writer) -> dict[str, Any]:
    return _filled(
        {
            "name": node.name,
            "op": node.op_type,
            "domain": node.domain,
            "overload": node.overload,
            "inputs": [value.name if value is not None else "" for value in node.inputs],
            "outputs": [value.name for value in node.outputs],
            "attributes": {name: writer.attribute(given) for name, given in node.attributes.data.items()},
            "metadata": _metadata(node),
            "doc": node.doc_string,
        }
    ) | ({} if node.outputs else {"outputs": []})


def _function_json(function: ir.Function, writer: _Writer) -> dict[str, Any]:
    graph = function.graph
    given = function.attributes.values()
    return _filled(
        {
            "name": function.name,
            "domain": function.domain,
            "overload": function.overload,
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "attributes": [attribute.name for attribute in given if attribute.value is None],
            "defaults": {
                attribute.name: writer.attribute(attribute) for attribute in given if attribute.value is not None
            },
            "opset": graph.opset_imports.get(""),
            "opsets": {domain: version for domain, version in graph.opset_imports.items() if domain},
            "nodes": [_node_json(node, writer) for node in graph],
            "values": _values(graph, set()),
            "metadata": _metadata(graph),
            "doc": graph.doc_string,
        }
    )


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty; empty fields are not written."""
    return {key: value for key, value in fields.items() if value or value == 0}
