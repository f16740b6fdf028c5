"""Operators in layouts that ONNX lacks, such as `relayout::Conv`: functions whose body any runtime can run.

The body is Transpose, the standard operator, Transpose. Each distinct signature has one function; the functions of one
operator differ in their overload.
"""

from __future__ import annotations

import re
from collections.abc import Set

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.binding import bind
from relayout.layout.conversion import Dims, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, MemoryFormat, is_padded, source_order
from relayout.model.emit import Emitter, Physical
from relayout.model.operator_schema import attribute_number
from relayout.model.proto_graphs import nodes_inside, unused_name
from relayout.ops import all_nodes
from relayout.ops.operand_roles import (
    DATA,
    KERNEL,
    LAYOUT_ATTRIBUTES,
    OWN_DOMAIN,
    has_roles,
    is_transposed,
    native_role,
    spatial_letters,
)

OVERLOADS_SINCE_IR_VERSION = 10
NATIVE = "_native"


class OperandConversion(Struct, frozen=True):
    """One operand of a body, from `source` to `target`: dimensions as groups of atoms of its axes, which are numbered
    as ONNX's operator has them. Extents are None where no number is needed; those of padded axes are known."""

    source: Dims
    target: Dims
    extents: tuple[Extent, ...]

    @classmethod
    def inward(cls, lies: Dims, extents: tuple[Extent, ...]) -> OperandConversion:
        """The conversion of an operand with the dimensions `lies` to the order that ONNX's operator reads."""
        kept = _needed(lies, extents)
        return cls(lies, one_each(source_order(len(extents))), kept)

    def outward(self) -> OperandConversion:
        return OperandConversion(self.target, self.source, self.extents)


def _needed(lies: Dims, extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
    return tuple(
        extent if is_padded((a for group in lies for a in group if a.axis == axis), extents) else None
        for axis, extent in enumerate(extents)
    )


class Signature(Struct, frozen=True):
    """The key of a function: the conversions of its operands and of the results that are read; None: no conversion."""

    operator: str
    layouts: tuple[tuple[str, str], ...]
    inputs: tuple[OperandConversion | None, ...]
    results: tuple[OperandConversion | None, ...]


def with_bodies(proto: onnx.ModelProto, only: Set[str] | None = None) -> onnx.ModelProto:
    """The model with a body for each `relayout::` operator that has none; for those alone whose first results are
    `only`, where given.

    Raises InputError if an operator's layouts do not have the names of its axes.
    """
    bodies = {(function.name, function.overload) for function in proto.functions if function.domain == OWN_DOMAIN}
    calls = nodes_inside(proto.graph.node) if OWN_DOMAIN in [opset.domain for opset in proto.opset_import] else ()
    if all(node.domain != OWN_DOMAIN or (node.op_type, node.overload) in bodies for node in calls):
        return proto
    model = ir.from_proto(proto)
    for node in model.graph.all_nodes():
        is_asked = only is None or node.outputs[0].name in only
        if is_asked and node.domain == OWN_DOMAIN and has_roles(node) and node.op_identifier()[1:] not in bodies:
            ensure_body(model, node)
    completed: onnx.ModelProto = ir.to_proto(model)
    return completed


def ensure_body(model: ir.Model, node: ir.Node) -> None:
    """Make `node`, an operator of the domain `relayout` with layout attributes, call a function that is its body."""
    node.overload = ensure_function(model, _signature(node))


def name_overloads(model: ir.Model) -> bool:
    """Write the overloads of our functions as parts of their names, `Conv_NHWC_HWIO`: tools that edit ONNX files drop
    overloads. `read_model` reads them back. The result: whether there were any."""
    if not any(domain == OWN_DOMAIN and overload for domain, _, overload in model.functions):
        return False
    functions = list(model.functions.values())
    model.functions.clear()
    for function in functions:
        if function.domain == OWN_DOMAIN and function.overload:
            function.name, function.overload = f"{function.name}_{function.overload}", ""
        model.functions[function.identifier()] = function
    for node in model.graph.all_nodes():
        if node.domain == OWN_DOMAIN and node.overload:
            node.op_type, node.overload = f"{node.op_type}_{node.overload}", ""
    return True


def use_onnx_operator(node: ir.Node) -> None:
    """Turn the node into ONNX's own operator, without layout attributes."""
    node.domain, node.overload = "", ""
    for name in LAYOUT_ATTRIBUTES:
        node.attributes.pop(name, None)


def drop_unused(model: ir.Model) -> None:
    """Remove the functions of our domain that no node calls any more."""
    if OWN_DOMAIN not in model.opset_imports and not model.functions:
        return
    called = {node.op_identifier() for node in all_nodes(model.graph) if node.domain == OWN_DOMAIN}
    for identifier in [key for key in model.functions if key[0] == OWN_DOMAIN and key not in called]:
        del model.functions[identifier]
    if not called:
        model.opset_imports.pop(OWN_DOMAIN, None)


def _signature(node: ir.Node) -> Signature:
    """The signature of a node from its layout attributes; operands without one are as in ONNX."""
    given = {name: node.attributes[name].as_string() for name in LAYOUT_ATTRIBUTES if name in node.attributes}
    rank = sum(1 for letter in given.get("data_layout", "").partition("[")[0] if letter.isupper())
    spatial = spatial_letters(rank)
    if spatial is None:
        raise _misfit(node, "data_layout", given.get("data_layout"), "NWC, NHWC or NDHWC, in any order")
    data, kernel = "NC" + spatial, ("IO" if is_transposed(node) else "OI") + spatial
    natives = {"data_layout": data, "kernel_layout": kernel, "out_layout": data}
    for name, letters in given.items():
        if _bound(letters, natives[name]) is None:
            raise _misfit(node, name, letters, f"the names of {natives[name]} in any order")
    lies = {DATA: given["data_layout"], KERNEL: given.get("kernel_layout", kernel)}
    out = given.get("out_layout", given["data_layout"])
    reads = {DATA: data, KERNEL: kernel}

    def conversion(text: str, native: str) -> OperandConversion:
        return OperandConversion.inward(one_each(_bound(text, native) or ()), (None,) * len(native))

    def inward(role: str) -> OperandConversion | None:
        return conversion(lies[role], reads[role]) if role in reads else None

    return Signature(
        node.op_type,
        tuple(given.items()),
        tuple(inward(native_role(node.op_type, 0, n)) for n in range(len(node.inputs))),
        tuple(
            conversion(out, data).outward() if native_role(node.op_type, 1, n) == DATA else None
            for n in range(len(node.outputs))
        ),
    )


def _bound(text: str, native: str) -> MemoryFormat | None:
    """The layout as an order of the operator's own axes; None where it names others."""
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError:
        try:
            layout = Layout.from_tvm(text)
        except InputError:
            return None
    return bind(layout, native, None, 1)


def _misfit(node: ir.Node, attribute: str, found: str | None, expected: str) -> InputError:
    return InputError(
        "the layout does not fit the operator",
        where=f"node '{node.name}' ({OWN_DOMAIN}::{node.op_type}), attribute '{attribute}'",
        expected=expected,
        found=f"'{found}'" if found is not None else "no such attribute",
    )


def ensure_function(model: ir.Model, signature: Signature) -> str:
    """Add the signature's function to the model unless it is there; return its overload."""
    known = model.meta.setdefault("relayout.functions", {})
    if signature in known:
        overload: str = known[signature]
        return overload
    stem = re.sub(r"[^A-Za-z0-9_]", "", "_".join(layout for _, layout in signature.layouts))
    taken = {key[2] for key in model.functions if key[0] == OWN_DOMAIN and key[1] == signature.operator}
    overload = "" if "" not in taken else unused_name(stem, taken, first=2)
    function = _function(model, signature, overload)
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(OWN_DOMAIN, 1)
    if overload:
        model.ir_version = max(model.ir_version, OVERLOADS_SINCE_IR_VERSION)
    known[signature] = overload
    return overload


def _function(model: ir.Model, signature: Signature, overload: str) -> ir.Function:
    opset = model.opset_imports.get("", 1)
    schema = onnx.defs.get_schema(signature.operator, opset, "")
    inputs = [
        ir.Value(name=schema.inputs[min(i, len(schema.inputs) - 1)].name if i < len(schema.inputs) else f"input_{i}")
        for i in range(len(signature.inputs))
    ]
    emitter = Emitter({value.name or "" for value in inputs}, opset, in_function=True)
    read = [
        value if conversion is None else _converted(emitter, value, conversion, f"{value.name}{NATIVE}")
        for value, conversion in zip(inputs, signature.inputs, strict=True)
    ]
    attributes = [
        ir.RefAttr(name, name, ir.AttributeType(attribute_number(attribute)))
        for name, attribute in schema.attributes.items()
    ]
    inner = ir.Node("", signature.operator, read, attributes, num_outputs=len(signature.results))
    emitter.emitted.append(inner)
    outputs: list[ir.Value] = []
    for place, (value, conversion) in enumerate(zip(inner.outputs, signature.results, strict=True)):
        name = emitter.fresh(schema.outputs[min(place, len(schema.outputs) - 1)].name)
        value.name = emitter.fresh(f"{name}{NATIVE}")
        # A result without a conversion is the function's own: onnxruntime computes the running mean of a
        # BatchNormalization in place of the one that it reads, unless a graph gives it.
        made = value if conversion is None else _converted(emitter, value, conversion, f"{name}_turned")
        made.name = name
        outputs.append(made)
    graph = ir.Graph(inputs, outputs, nodes=emitter.emitted, opset_imports={"": opset}, name=signature.operator)
    declared = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in schema.attributes]
    declared += [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name, _ in signature.layouts]
    return ir.Function(OWN_DOMAIN, signature.operator, overload, graph=graph, attributes=declared)


def _converted(emitter: Emitter, value: ir.Value, conversion: OperandConversion, stem: str) -> ir.Value:
    """`value` in another order; one that keeps its order is read as it is."""
    return emitter.convert(Physical(value, conversion.source), conversion.target, conversion.extents, stem).value
