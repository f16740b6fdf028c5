"""Operators in layouts that ONNX has no word for: `relayout::Conv` and its like, with a body that any runtime can run.

The body is Transpose, the standard operator, Transpose. One function per distinct signature; those of one operator are
told apart by the function's overload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from relayout.errors import InputError
from relayout.operator_schema import attribute_number
from relayout.roles import DATA, KERNEL, has_roles, input_role, is_transposed, result_role, spatial_letters

__all__ = ["DOMAIN", "LAYOUT_ATTRIBUTES", "Signature", "ensure_function", "with_bodies"]

DOMAIN = "relayout"
OVERLOADS_SINCE_IR_VERSION = 10
NATIVE = "_native"
LAYOUT_ATTRIBUTES = ("data_layout", "kernel_layout", "out_layout")


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells one function from another. A perm turns an operand as it lies into what ONNX's operator reads, or a
    result of that operator into how it is to lie; None: taken as it is. `results` counts the results that are read."""

    operator: str
    layouts: tuple[tuple[str, str], ...]
    input_perms: tuple[tuple[int, ...] | None, ...]
    result_perms: tuple[tuple[int, ...] | None, ...]


def with_bodies(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a body for each `relayout::` operator that was written down without one.

    InputError where its layouts are not the letters that the operator has.
    """
    bodies = {(function.name, function.overload) for function in proto.functions if function.domain == DOMAIN}
    if all(node.domain != DOMAIN or (node.op_type, node.overload) in bodies for node in _nodes(proto.graph)):
        return proto
    model = ir.from_proto(proto)
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN and has_roles(node) and (node.op_type, node.overload) not in bodies:
            node.overload = ensure_function(model, _signature(node))
    completed: onnx.ModelProto = ir.to_proto(model)
    return completed


def drop_unused(model: ir.Model) -> None:
    """Remove the functions of our domain that no node calls any more."""
    called = {node.op_identifier() for node in model.graph.all_nodes() if node.domain == DOMAIN}
    for identifier in [key for key in model.functions if key[0] == DOMAIN and key not in called]:
        del model.functions[identifier]
    if not called:
        model.opset_imports.pop(DOMAIN, None)


def _nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _nodes(inner)


def _signature(node: ir.Node) -> Signature:
    """What the layouts on the node say of its operands; what they do not say is as ONNX has it."""
    given = {name: node.attributes[name].as_string() for name in LAYOUT_ATTRIBUTES if name in node.attributes}
    rank = len(given.get("data_layout", ""))
    spatial = spatial_letters(rank)
    if spatial is None:
        raise _misfit(node, "data_layout", given.get("data_layout"), "NWC, NHWC or NDHWC, in any order")
    data, kernel = "NC" + spatial, ("IO" if is_transposed(node) else "OI") + spatial
    natives = {"data_layout": data, "kernel_layout": kernel, "out_layout": data}
    for name, letters in given.items():
        if sorted(letters) != sorted(natives[name]):
            raise _misfit(node, name, letters, f"the letters of {natives[name]} in any order")
    lies = {DATA: given["data_layout"], KERNEL: given.get("kernel_layout", kernel)}
    out = given.get("out_layout", given["data_layout"])
    reads = {DATA: data, KERNEL: kernel}

    def inward(role: str) -> tuple[int, ...] | None:
        return tuple(lies[role].index(letter) for letter in reads[role]) if role in reads else None

    def outward(role: str) -> tuple[int, ...] | None:
        return tuple(data.index(letter) for letter in out) if role == DATA else None

    return Signature(
        node.op_type,
        tuple(given.items()),
        tuple(inward(input_role(node, n)) for n in range(len(node.inputs))),
        tuple(outward(result_role(node, n)) for n in range(len(node.outputs))),
    )


def _misfit(node: ir.Node, attribute: str, found: str | None, expected: str) -> InputError:
    return InputError(
        "the layout does not fit the operator",
        where=f"node '{node.name}' ({DOMAIN}::{node.op_type}), attribute '{attribute}'",
        expected=expected,
        found=f"'{found}'" if found is not None else "no such attribute",
    )


def ensure_function(model: ir.Model, signature: Signature) -> str:
    """Add the signature's function to the model unless it is there; return its overload."""
    stem = "_".join(layout for _, layout in signature.layouts)
    known = model.meta.setdefault("relayout.functions", {})
    if signature in known:
        overload: str = known[signature]
        return overload
    taken = {key[2] for key in model.functions if key[0] == DOMAIN and key[1] == signature.operator}
    overload = "" if "" not in taken else _free(stem, taken)
    function = _function(model, signature, overload)
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(DOMAIN, 1)
    if overload:
        model.ir_version = max(model.ir_version, OVERLOADS_SINCE_IR_VERSION)
    known[signature] = overload
    return overload


def _free(stem: str, taken: set[str]) -> str:
    name, count = stem, 2
    while name in taken:
        name, count = f"{stem}_{count}", count + 1
    return name


def _function(model: ir.Model, signature: Signature, overload: str) -> ir.Function:
    opset = model.opset_imports.get("", 1)
    schema = onnx.defs.get_schema(signature.operator, opset, "")
    inputs = [
        ir.Value(name=schema.inputs[min(i, len(schema.inputs) - 1)].name if i < len(schema.inputs) else f"input_{i}")
        for i in range(len(signature.input_perms))
    ]
    nodes: list[ir.Node] = []
    read: list[ir.Value | None] = []
    for value, perm in zip(inputs, signature.input_perms, strict=True):
        read.append(_transposed(value, perm, f"{value.name}{NATIVE}", nodes))
    attributes = [
        ir.RefAttr(name, name, ir.AttributeType(attribute_number(attribute)))
        for name, attribute in schema.attributes.items()
    ]
    inner = ir.Node("", signature.operator, read, attributes, num_outputs=len(signature.result_perms))
    for place, value in enumerate(inner.outputs):
        value.name = f"{schema.outputs[min(place, len(schema.outputs) - 1)].name}{NATIVE}"
    nodes.append(inner)
    outputs = [
        _transposed(value, perm, (value.name or "").removesuffix(NATIVE), nodes)
        for value, perm in zip(inner.outputs, signature.result_perms, strict=True)
    ]
    graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": opset}, name=signature.operator)
    declared = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in schema.attributes]
    declared += [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name, _ in signature.layouts]
    return ir.Function(DOMAIN, signature.operator, overload, graph=graph, attributes=declared)


def _transposed(value: ir.Value, perm: tuple[int, ...] | None, name: str, nodes: list[ir.Node]) -> ir.Value:
    """`value` in another order under `name`; one that keeps its order is read as it is, or given by an Identity."""
    moves = perm is not None and perm != tuple(range(len(perm)))
    if not moves and name.endswith(NATIVE):
        return value
    result = ir.Value(name=name)
    attributes = [ir.AttrInt64s("perm", perm)] if moves and perm is not None else []
    nodes.append(ir.Node("", "Transpose" if moves else "Identity", [value], attributes, outputs=[result]))
    return result
