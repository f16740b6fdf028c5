"""Types and shapes of every value, by onnx's own inference, on the graph without its weights.

Constants up to 1 KiB and integer vectors stay, since inference follows the values of shapes through the graph. The
others have only a type and a shape, so the graph is small whatever the size of the model, far below protobuf's
limit of 2 GB. If inference would read absent data, a placeholder replaces the constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from math import prod

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError
from relayout.layout.relaid_constant import AbsentTensor, is_one_of
from relayout.model.dims.inference_placeholders import (
    LARGEST_KEPT,
    blind_slices,
    carry_over,
    hide,
    insert_placeholders,
    lend,
    misread_operands,
    needs_placeholders,
)
from relayout.model.dims.loop_states import declare_results, with_carried_states
from relayout.model.dims.negative_extents import inferred_by_onnx
from relayout.model.dims.operator_placeholders import replaced_operator
from relayout.model.dims.shape_merging import name_generated_anew, names_in
from relayout.model.operator_schema import has_body
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, graphs_inside, opset_of, replace_entries, subgraphs_of
from relayout.model.serialization import proto_of
from relayout.model.tensor_types import check_type, is_absent, name_of_dtype
from relayout.ops import graphs_of, nested_graphs

ROUNDS = 16
"""At most so many times are the shapes of Loops' results inferred anew from each other."""

_CULPRIT = re.compile(r"\(op_type:\s*([^,)]*)(?:, node name: ([^)]*))?\)")
_DIFFER = re.compile(r"[Ii]nferred (?:shape|type|elem type|rank)[^:]*differ[^:]*: \(([^)]*)\) vs \(([^)]*)\)")

# The first of several errors comes first: inside a body, that of a node of the body.
_INNER = re.compile(r": \[\w+Error\] Inference error\(s\): (?=\(op_type:)")

_BEHIND = re.compile(r" ?Input \d+ expected to have type but instead is null")

# OneHot at opset 9 ignores an index out of range, by its specification and in runtimes.
_ALLOWED = "'indices' must be non-negative for OneHot"


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The graph, the functions' bodies, and every subgraph of these."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from nested_graphs(graph)


class Weightless(Struct, frozen=True):
    """A model as a protobuf without its weights, the constants above 1 KiB and absent ones; other operators' attributes
    stay. `left_out`: the types of those of the graph, by name. `has_graphs`: a node may have graphs among its
    attributes. `is_in_nodes`: the value of a Constant, or an initializer of a nested graph or of a function's body, may
    be one of the weights, and has a type and shape only."""

    proto: onnx.ModelProto
    left_out: dict[str, onnx.TypeProto]
    has_graphs: bool
    is_in_nodes: bool


def without_weights(model: ir.Model) -> Weightless:
    """The model without its weights, as a protobuf.

    The model is changed while it is written and then as before: a copy would take as long as the writing.
    """
    stored: list[tuple[ir.Value, ir.TensorProtocol | None]] = []
    attributes: list[tuple[ir.Node, str, ir.Attr]] = []
    is_in_nodes = False
    weights = [value for value in model.graph.initializers.values() if _is_weight(value)]
    types: dict[tuple[int, ...], onnx.TypeProto] = {}
    left_out = {value.name or "": _type_of(value.const_value, types) for value in weights}
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    flat = len(graphs)
    try:
        for graph in graphs:  # those inside nodes join them
            for value in graph.initializers.values() if graph is not model.graph else ():
                light = _weightless(value.const_value, value.name)
                is_in_nodes = is_in_nodes or _lacks_data(light)
                if light is not value.const_value:
                    stored.append((value, value.const_value))
                    value.const_value = light
            for node in graph:
                if not (given := node.attributes.data):
                    continue
                graphs += graphs_of(node)
                for name, attribute in given.items():
                    if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                        # A check objects to an attribute without data; a Constant's result can be an input instead.
                        tensor = attribute.value
                        if node.op_type == "Constant":
                            tensor = _weightless(tensor, tensor.name)
                        is_in_nodes = is_in_nodes or _lacks_data(tensor)
                        if tensor is not attribute.value:
                            attributes.append((node, name, attribute))
                            node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=attribute.doc_string)
        proto = proto_of(model, lambda value: value.name not in left_out)
    finally:
        for value, constant in stored:
            value.const_value = constant
        for node, name, attribute in attributes:
            node.attributes[name] = attribute
    return Weightless(proto, left_out, len(graphs) > flat, is_in_nodes)


def infer_shapes(
    proto: onnx.ModelProto, *, has_graphs: bool = True, has_tensors: bool = True, notes: list[str] | None = None
) -> onnx.ModelProto:
    """`proto` with the type and shape of every value filled in, subgraphs included. `has_graphs` and `has_tensors`: a
    node may have graphs or tensors among its attributes.

    With `notes`, shapes that are declared for results inside the graph may be wrong, as runtimes allow it: the inferred
    ones take their place, and a note says so. Raises InputError if an operator's operands contradict each other or the
    model's declarations, and for a value whose inferred type is not supported.
    """
    probe, denoted = proto, _denotations(proto.graph)
    has_absent = needs_placeholders(proto, in_nodes=has_graphs or has_tensors)
    has_subgraphs = has_graphs and bool(graphs_inside(proto.graph.node))
    opset = opset_of(proto.opset_import)
    if has_absent or has_subgraphs or misread_operands(proto.graph) or blind_slices(proto.graph, opset):
        probe = copied(proto)
        lend(probe.graph, {})
        hide(probe)
    if has_absent:
        insert_placeholders(probe)
    inferred = _infer(probe, notes) if has_subgraphs else _infer_once(probe, notes)
    for graph in subgraphs_of(inferred.graph) if has_subgraphs else (inferred.graph,):
        _clear_negative_extents(graph)
    if probe is proto:
        proto = inferred
    else:
        carry_over(inferred.graph, proto.graph)
    for output, denotations in zip(proto.graph.output, denoted, strict=True):
        for dim, denotation in zip(output.type.tensor_type.shape.dim, denotations, strict=False):
            dim.denotation = denotation
    return proto


def _denotations(graph: onnx.GraphProto) -> list[list[str]]:
    """The denotations of the dims of each output, such as DATA_CHANNEL, which onnx's inference drops; nearly always
    none."""
    shapes = [output.type.tensor_type.shape for output in graph.output]
    return [
        [dim.denotation for dim in shape.dim] if any(dim.denotation for dim in shape.dim) else [] for shape in shapes
    ]


def _infer(proto: onnx.ModelProto, notes: list[str] | None) -> onnx.ModelProto:
    """onnx's inference, with the shapes of Loops' states that it leaves open."""
    inferred = _with_results(proto, notes)
    return with_carried_states(inferred, partial(_with_results, notes=None)) or inferred


def _with_results(proto: onnx.ModelProto, notes: list[str] | None) -> onnx.ModelProto:
    """onnx's inference, repeated while it leaves shapes of Loops' results open that can be declared."""
    inferred = _infer_once(proto, notes)
    for _ in range(ROUNDS):
        if not declare_results(inferred.graph, {}):
            break
        inferred = _infer_once(inferred, notes)
    return inferred


def _infer_once(proto: onnx.ModelProto, notes: list[str] | None) -> onnx.ModelProto:
    try:
        return _strictly(proto)
    except Exception as error:
        if is_onnx_to_blame(str(error), proto):
            return _inferred(proto, is_strict=False)
        fault = _contradiction(str(error), proto.graph.name)
        if notes is None:
            raise fault from error
    taken = names_in(proto.graph)
    _clear_declared_shapes(proto)
    kept = names_in(proto.graph)
    try:
        inferred = _strictly(proto)
    except Exception:
        raise fault from None
    name_generated_anew(inferred.graph, kept, taken)
    note = f"{fault.where}: a declared shape is wrong, and those that follow from the operators are used: {fault.found}"
    if note not in notes:
        notes.append(note)
    return inferred


def _strictly(proto: onnx.ModelProto) -> onnx.ModelProto:
    """onnx's inference, with an error for each fault. Behind an operator that it does not know it would raise none, so
    the results of such operators are inputs meanwhile."""
    left_out = _unknown_with_types(proto)
    if not left_out:
        return _inferred(proto, is_strict=True)
    nodes, inputs, values = proto.graph.node[:], len(proto.graph.input), proto.graph.value_info[:]
    given = {name for place in left_out for name in nodes[place].output if name}
    probe = copied(proto)
    replace_entries(probe.graph.node, [node for place, node in enumerate(nodes) if place not in left_out])
    replace_entries(probe.graph.value_info, [info for info in values if info.name not in given])
    # An output may be declared among the values too.
    infos = {info.name: info for info in (*proto.graph.output, *values)}
    probe.graph.input.extend(infos[name] for name in sorted(given))
    inferred = _inferred(probe, is_strict=True)
    others = iter(inferred.graph.node[:])
    every = [node if place in left_out else next(others) for place, node in enumerate(nodes)]
    replace_entries(inferred.graph.node, every)
    inferred.graph.value_info.extend(info for info in values if info.name in given)
    del inferred.graph.input[inputs:]
    return inferred


def _inferred(proto: onnx.ModelProto, *, is_strict: bool) -> onnx.ModelProto:
    return inferred_by_onnx(proto, check_type=True, strict_mode=is_strict, data_prop=True)


def _unknown_with_types(proto: onnx.ModelProto) -> set[int]:
    """The places of the graph's nodes whose operators neither ONNX nor the model defines, and whose results have
    declared types."""
    declared = {info.name for info in (*proto.graph.value_info, *proto.graph.output) if info.type.WhichOneof("value")}
    functions = {(function.domain, function.name) for function in proto.functions}
    return {
        place
        for place, node in enumerate(proto.graph.node)
        if node.domain not in STANDARD_DOMAINS
        and (node.domain, node.op_type) not in functions
        and not onnx.defs.has(node.op_type, node.domain)
        and declared.issuperset(filter(None, node.output))
    }


def _clear_declared_shapes(proto: onnx.ModelProto) -> None:
    """Remove the shapes of results of ONNX's operators, which inference finds again, but for the model's outputs."""
    for graph in subgraphs_of(proto.graph):
        results = {name for node in graph.node if node.domain in STANDARD_DOMAINS for name in node.output}
        for info in (*graph.value_info, *(graph.output if graph is not proto.graph else ())):
            if info.name in results and info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")


def is_onnx_to_blame(message: str, proto: onnx.ModelProto) -> bool:
    """Whether the error is a fault of onnx: in the function body of an operator, such as MeanVarianceNormalization at
    opset 13, or in a check that is stricter than the operator's specification.
    """
    if _ALLOWED in message:
        return True
    culprit = _CULPRIT.search(message)
    if culprit is None or message.count("Inference error(s)") < 2:
        return False
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    return has_body(culprit.group(1), versions)


def _clear_negative_extents(graph: onnx.GraphProto) -> None:
    """Remove extents of -1, which inference may find in a branch that cannot run.

    Raises InputError for an unsupported type.
    """
    # Each type is looked at once: a network has few of them.
    is_negative: dict[bytes, bool] = {}
    for info in (*graph.value_info, *graph.output):
        written = info.type.SerializeToString()
        if written not in is_negative:
            if not info.type.HasField("tensor_type"):
                check_type(info.type, f"graph '{graph.name}', value '{info.name}'")
            is_negative[written] = any(dim.dim_value < 0 for dim in info.type.tensor_type.shape.dim)
        if is_negative[written]:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("value")


def _weightless(value: ir.TensorProtocol | None, name: str | None) -> ir.TensorProtocol:
    tensor = _data_of(value, name)
    if not _is_large(tensor) or is_one_of(tensor, AbsentTensor):
        return tensor
    return AbsentTensor(tensor.dtype, tensor.shape.numpy(), name)


def _is_weight(value: ir.Value) -> bool:
    tensor = _data_of(value.const_value, value.name)
    return _is_large(tensor) or (is_one_of(tensor, ir.TensorProtoTensor) and is_absent(tensor.raw))


def _type_of(tensor: ir.TensorProtocol | None, known: dict[tuple[int, ...], onnx.TypeProto]) -> onnx.TypeProto:
    """The type of a tensor; equal ones share it by `known`."""
    assert tensor is not None
    if is_one_of(tensor, ir.TensorProtoTensor):
        key: tuple[int, ...] = (tensor.raw.data_type, *tensor.raw.dims)
    else:
        key = tensor.dtype.value, *tensor.shape.numpy()
    if key not in known:
        known[key] = onnx.helper.make_tensor_type_proto(key[0], key[1:])
    return known[key]


def _data_of(tensor: ir.TensorProtocol | None, name: str | None) -> ir.TensorProtocol:
    if tensor is None:
        raise InputError("a constant has no data", where=f"constant '{name}'", expected="a tensor", found="nothing")
    return tensor


def _is_large(tensor: ir.TensorProtocol) -> bool:
    # onnx_ir makes a shape anew for each question about an encoded tensor.
    if is_one_of(tensor, ir.TensorProtoTensor):
        raw = tensor.raw
        return bool(prod(raw.dims[:]) * _bits(raw.data_type) > 8 * LARGEST_KEPT)
    return tensor.nbytes > LARGEST_KEPT


@cache
def _bits(element_type: int) -> int:
    return ir.DataType(element_type).bitwidth


def _lacks_data(tensor: ir.TensorProtocol) -> bool:
    return is_one_of(tensor, ir.TensorProtoTensor) and (is_one_of(tensor, AbsentTensor) or is_absent(tensor.raw))


def _contradiction(message: str, graph: str) -> InputError:
    """onnx's message, parsed to an InputError with location, expectation and finding."""
    where = f"graph '{graph}'" if graph else "graph"
    culprit = _CULPRIT.search(message)
    while culprit:
        op, name = replaced_operator(culprit.group(1), culprit.group(2) or "")
        where += f", node '{name}' ({op})" if name else f", a node of type {op}"
        inner = _INNER.match(message, culprit.end()) if op in ("If", "Loop", "Scan") else None
        culprit = _CULPRIT.match(message, inner.end()) if inner else None
    detail = " ".join(re.sub(rf"\[\w+Error\] ?|Inference error\(s\): |{_CULPRIT.pattern}: ", "", message).split())
    # Each node behind the first fault lacks the type of an operand.
    detail = _BEHIND.sub("", detail) or detail
    differ = _DIFFER.search(message)
    expected, found = "operands that the operator accepts", detail
    if differ is not None:
        expected, found = differ.group(1), f"{differ.group(2)}: {differ.group(0)}"
    if differ is not None and "elem type" in differ.group(0):
        # onnx says the numbers of its enumeration.
        inferred, declared = (name_of_dtype(int(number), where) for number in differ.groups())
        expected, found = f"{inferred}, as the operands give", f"{declared}, as declared"
    return InputError(
        "shapes or types contradict each other",
        where=where,
        expected=expected,
        found=found,
        hint="onnx.checker.check_model(model, full_check=True) may report the same for the source",
    )
