"""Operators in layouts that ONNX has no word for: `relayout::Conv` and its like, with a body that any runtime can run.

The body is Transpose, the standard operator, Transpose. One function per distinct signature; those of one operator are
told apart by the function's overload.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from relayout.operator_schema import attribute_number

__all__ = ["DOMAIN", "Signature", "ensure_function"]

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
