"""The operators of a backend's own, and of onnxruntime's, as the ONNX operators that compute the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from relayout.backend.calls import operator_body_of
from relayout.backend.interface import Backend, OperatorBody
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, nodes_inside
from relayout.ops import all_nodes
from relayout.report.schema import Finding
from relayout.verification.numeric.contributed_bodies import contributed_body
from relayout.verification.numeric.cut import Operators, lacking
from relayout.verification.numeric.preparation import shown
from relayout.verification.operator_facts import OURS

BodyOf = Callable[[ir.Node, int], OperatorBody | None]
"""The body of a node, in ONNX's operators of an opset. None: it is not known, or the node is no backend's own."""

_DOMAIN = "relayout.verification"
_KNOWN = frozenset({*STANDARD_DOMAINS, OURS, _DOMAIN})


def bodies_of(backend: Backend) -> BodyOf:
    """The bodies that a backend states, which may raise BackendError, and those of onnxruntime's operators."""

    def body_of(node: ir.Node, opset: int) -> OperatorBody | None:
        if node.domain in _KNOWN:
            return None
        found = operator_body_of(backend, node, opset)
        return contributed_body(node, opset) if found is None else replace(found, function=_bound(found.function, node))

    return body_of


def _bound(function: onnx.FunctionProto, node: ir.Node) -> onnx.FunctionProto:
    """The function with the node's attributes, or its own defaults, in place of the references to them."""
    if not function.attribute and not function.attribute_proto:
        return function
    bound = copied(function)
    given = {each.name: each for each in function.attribute_proto}
    given |= {each.name: ir.serde.serialize_attribute(each) for each in node.attributes.values()}
    for inner in nodes_inside(bound.node):
        kept = [_value_of(each, given) for each in inner.attribute]
        del inner.attribute[:]
        inner.attribute.extend(each for each in kept if each is not None)
    del bound.attribute[:]
    del bound.attribute_proto[:]
    return bound


def _value_of(attribute: onnx.AttributeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.AttributeProto | None:
    """The attribute with its value; None for a reference to one that is not given."""
    if not attribute.ref_attr_name:
        return copied(attribute)
    value = given.get(attribute.ref_attr_name)
    if value is None:
        return None
    named = copied(value)
    named.name = attribute.name
    return named


def with_bodies(model: ir.Model, body_of: BodyOf) -> tuple[ir.Model, Operators]:
    """The model with a function in place of each operator that has a body and that no runtime has, or that is another
    one in onnxruntime on this machine, and the operators that were replaced. Without any, the model itself."""
    unknown, opset = lacking(model), model.opset_imports.get("", 1)

    def body(node: ir.Node) -> OperatorBody | None:
        found = None if node.op_identifier() in model.functions else body_of(node, opset)
        is_replaced = found is not None and (found.is_needed or node.op_identifier()[:2] in unknown)
        return found if is_replaced else None

    replaced = frozenset(node.op_identifier()[:2] for node in all_nodes(model.graph) if body(node))
    if not replaced:
        return model, replaced
    copy = model.clone()
    copy.opset_imports[_DOMAIN] = 1
    for node in all_nodes(copy.graph):
        if found := body(node):
            _call(copy, node, found)
    return copy, replaced


def _call(model: ir.Model, node: ir.Node, body: OperatorBody) -> None:
    """Make the node call its body, a function of the model."""
    proto = copied(body.function)
    proto.domain, proto.overload, proto.name = _DOMAIN, "", ""
    del proto.output[len(node.outputs) :]
    # One function for all equal bodies, of the same name in the model and in its original.
    proto.name = f"{node.op_type}_{zlib.crc32(proto.SerializeToString(deterministic=True)):08x}"
    function = ir.serde.deserialize_function(proto)
    model.functions[function.identifier()] = function
    node.domain, node.op_type, node.overload = function.identifier()
    node.attributes.clear()
    for place, result in enumerate(node.outputs):
        # onnxruntime wants a name for each result of a function, also for one without readers.
        result.name = result.name or f"{_DOMAIN}/{node.outputs[0].name or node.name}/{place}"


def body_notes(replaced: Operators) -> Iterator[Finding]:
    """A note that names the operators that were replaced."""
    if replaced:
        message = "no runtime here has these operators: they ran as the ONNX operators that compute the same"
        yield Finding(rule="body", severity="note", found=shown(replaced), message=message)
