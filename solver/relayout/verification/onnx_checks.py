"""ONNX's own rules: its checker, and shapes that agree with each other and with the operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import onnx
import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.model.dims.inference_placeholders import hide
from relayout.model.dims.negative_extents import inferred_by_onnx
from relayout.model.dims.operator_placeholders import insert_operator_placeholders
from relayout.model.onnx_file import Encoded, encoded
from relayout.model.proto_graphs import (
    extents_in,
    opset_of,
    replace_entries,
    subgraphs_of,
    unused_name,
    value_names,
)
from relayout.model.shape_inference import is_onnx_to_blame, without_weights
from relayout.model.tensor_types import is_absent
from relayout.report.schema import Finding
from relayout.verification.model_index import ModelIndex, OperatorClass, checked_once
from relayout.verification.numbered_axes import axis_numbers
from relayout.verification.operator_facts import CONTRIBUTED, CONTRIBUTED_TO_STANDARD, declared_layout_of
from relayout.verification.requirements import node_label

_UNKNOWN_OPERATOR = re.compile(r"No Op registered for (\w+)")
Extents = tuple[int | None, ...]


def checked_by_onnx(model: ir.Model) -> tuple[list[Finding], Encoded | None]:
    """The objections of onnx's checker and shape inference, and the bytes of the model that was checked, for the writer
    of a file. None: the model cannot be written, or a weight inside a node was left out of the check.

    Weights are checked by type and shape. Each check changes the same protobuf, since a copy of a large graph takes
    more memory than all else here.
    """
    try:
        light = without_weights(model)
        proto = light.proto
        written = None if light.is_in_nodes else encoded(proto)
        _give_weights(proto, light.left_out, in_nodes=light.is_in_nodes)
    except Exception as error:  # serialization of a faulty graph may raise anything
        return [_invalid(error)], None
    findings = list(_check_validity(proto, list(subgraphs_of(proto.graph)) if light.has_graphs else [proto.graph]))
    try:
        hide(proto, has_graphs=light.has_graphs)
        insert_operator_placeholders(proto)
    except Exception as error:  # a node may lack what its operator must have
        return findings or [_invalid(error)], written
    return [*findings, *_check_types(model, proto, is_valid=not findings)], written


def with_those_of_original(findings: Sequence[Finding], original: Callable[[], ir.Model]) -> list[Finding]:
    """These findings of `checked_by_onnx`. An objection of onnx's checker says whether it objects to the original as
    well: legalization leaves such a fault as it is."""
    if not any(finding.rule == "checker" for finding in findings):
        return list(findings)
    if not any(finding.rule == "checker" for finding in checked_by_onnx(original())[0]):
        return list(findings)
    told = "; onnx.checker does not accept the original either"
    return [
        each.model_copy(update={"message": f"{each.message}{told}"}) if each.rule == "checker" else each
        for each in findings
    ]


def _check_validity(proto: onnx.ModelProto, graphs: Iterable[onnx.GraphProto]) -> Iterator[Finding]:
    """Yield the objection of onnx's checker. For the check each input and output of these graphs gets a shape, which
    ONNX's format does not require."""
    types = [
        value.type.tensor_type
        for graph in graphs
        for value in (*graph.input, *graph.output)
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]
    for each in types:
        each.shape.SetInParent()
    try:
        onnx.checker.check_model(proto, full_check=False)
    except Exception as error:
        found = _UNKNOWN_OPERATOR.search(str(error))
        is_known = found is not None and found[1] in CONTRIBUTED_TO_STANDARD
        other = _objection_without_contributed(proto, graphs) if is_known else error
        if other is not None:
            yield _invalid(other)
    for each in types:
        each.ClearField("shape")


def _objection_without_contributed(proto: onnx.ModelProto, graphs: Iterable[onnx.GraphProto]) -> Exception | None:
    """The objection of onnx's checker to a model in which it does not look at operators that onnxruntime has in ONNX's
    own domain: meanwhile they are in onnxruntime's."""
    opset = opset_of(proto.opset_import)
    moved = [
        node
        for graph in graphs
        for node in graph.node
        if node.domain == ""
        and node.op_type in CONTRIBUTED_TO_STANDARD
        and not onnx.defs.has(node.op_type, max_inclusive_version=opset)
    ]
    imports = len(proto.opset_import)
    if not any(opset.domain == CONTRIBUTED for opset in proto.opset_import):
        proto.opset_import.add(domain=CONTRIBUTED, version=1)
    for node in moved:
        node.domain = CONTRIBUTED
    try:
        onnx.checker.check_model(proto, full_check=False)
    except Exception as error:
        return error
    finally:
        for node in moved:
            node.domain = ""
        del proto.opset_import[imports:]
    return None


def _check_types(model: ir.Model, hidden: onnx.ModelProto, *, is_valid: bool) -> Iterator[Finding]:
    """Yield the objection of onnx's strict inference to a model that is valid otherwise, and a finding for each value
    whose declared shape differs from the inferred one.

    Inference without the declarations comes first. Where it finds exactly what is declared, inference with them would
    find the same at each node: then there is nothing to object to.
    """
    declared = _taken_off(hidden.graph)
    inferred = _inferred(hidden, strict=True)
    if inferred is not None and declared.items() <= inferred.items():
        return
    if is_valid:
        _put_back(hidden.graph, declared)
        yield from _check_inference(hidden)
        _taken_off(hidden.graph)
    if inferred is None:
        inferred = _inferred(hidden, strict=False) or {}
    yield from _check_shapes(model, inferred)


def _check_inference(hidden: onnx.ModelProto) -> Iterator[Finding]:
    """Yield the objection of onnx's strict shape inference."""
    try:
        inferred_by_onnx(hidden, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        if is_onnx_to_blame(str(error), hidden):
            return
        yield _about_model("shape", "types and shapes that agree", _first_line(error), "shapes or types contradict")


def _check_shapes(model: ir.Model, inferred: Mapping[str, bytes]) -> Iterator[Finding]:
    """Yield a finding for each value of the graph whose declared shape differs from the inferred one."""
    # Networks repeat their types, and an encoded one is compared faster than it is read.
    known = {written: extents_in(onnx.TypeProto.FromString(written)) for written in set(inferred.values())}
    faults = []
    for node in model.graph:
        for value in node.outputs:
            found, declared = known.get(inferred.get(value.name or "", b"")), value.shape
            # Most are equal as they are: only extents that are not known are written otherwise.
            if found is None or declared is None or found == declared.dims or _agree(declared, found):
                continue
            faults.append((str(value.name), node, declared, found))
    for name, node, declared, found in sorted(faults, key=lambda fault: fault[0]):
        yield Finding(
            rule="shape",
            node=node_label(node),
            expected=_shown(_extents(declared)),
            found=_shown(found),
            message=f"a value is declared with one shape, and its operands give it another ({name})",
        )


def _agree(declared: ir.Shape, found: Extents) -> bool:
    """Whether a declared shape may be the one that was found: extents that are not known agree with any."""
    return len(found) == len(declared) and not any(
        mine is not None and theirs is not None and mine != theirs
        for mine, theirs in zip(_extents(declared), found, strict=True)
    )


def _extents(shape: ir.Shape) -> Extents:
    return tuple(extent if isinstance(extent, int) else None for extent in shape)


def check_channels(index: ModelIndex) -> Iterator[Finding]:
    """Yield a finding for each convolution whose data and kernel differ in channels; onnx does not check that."""
    return checked_once(index, _check_channels)


def _check_channels(node: ir.Node, kind: OperatorClass) -> Iterator[Finding]:
    facts = kind.facts
    if facts is None or facts.kernel is None or facts.kernel >= len(node.inputs) or node.op_type == "DeformConv":
        return
    channels = _channels(node, 0, kind.own_inputs[0], "C")
    inner = _channels(node, facts.kernel, kind.own_inputs[facts.kernel], "I")
    if channels is None or inner is None:
        return
    groups = node.attributes.get_int("group", 1) if node.op_type != "ConvTranspose" else 1
    if channels != inner * groups:
        yield Finding(
            rule="shape",
            node=node_label(node),
            operand=0,
            expected=f"{inner * groups} channels, as the kernel has",
            found=f"{channels}",
            message=f"the data of this {node.op_type} has another number of channels than its kernel",
        )


def check_axes(nodes: Iterable[ir.Node]) -> Iterator[Finding]:
    """Yield a finding for each operator with the number of an axis that its operand does not have, which onnx's
    inference lets pass where the shape of the result is that of the operand."""
    for node in nodes:
        numbers = axis_numbers(node)
        if numbers is not None and not numbers.are_in_range:
            yield Finding(
                rule="shape",
                node=node_label(node),
                operand=numbers.operand,
                expected=f"numbers from {-numbers.rank} to {numbers.rank - 1}",
                found=", ".join(map(str, numbers.axes)),
                message=f"this {node.op_type} has the number of an axis that its operand does not have",
            )


def _channels(node: ir.Node, n: int, names: tuple[str | None, ...] | None, letter: str) -> int | None:
    """The extent of the n-th input's axis: that of its tiles together, without its padding."""
    outer, inner = (_extent(node.inputs[n], names, each) for each in (letter, letter.lower()))
    layout = declared_layout_of(node, n)
    if outer is None or layout is None:
        return outer
    zeros, tile = _stated(layout, letter, "pad"), _stated(layout, letter.lower(), "tile")
    width = inner or tile or (None if letter.lower() in layout.names else 1)
    return None if width is None else outer * width - (zeros or 0)


def _stated(layout: Layout, letter: str, namespace: str) -> int | None:
    """The number that the layout has on a dimension, for instance the extent of its tiles."""
    found = (layout.attribute(i, namespace) for i in range(layout.rank) if layout.names[i] == letter)
    text = next(found, None)
    return int(text) if text and text.isdecimal() else None


def _extent(value: ir.Value | None, names: tuple[str | None, ...] | None, letter: str) -> int | None:
    if value is None or value.shape is None or names is None or letter not in names:
        return None
    extent = value.shape[names.index(letter)]
    return extent if isinstance(extent, int) else None


def _give_weights(proto: onnx.ModelProto, left_out: Mapping[str, onnx.TypeProto], *, in_nodes: bool) -> None:
    """Turn the absent weights of a model into inputs, so that no check reads one. `left_out` are those of the graph
    itself."""
    given = dict(left_out)
    if in_nodes:
        given |= _absent_in_nodes(proto.graph)
    present = {value.name for value in proto.graph.input}
    for name, kind in sorted(given.items()):
        if name not in present:
            proto.graph.input.add(name=name, type=kind)
    infos = proto.graph.value_info
    replaced = {place for place, info in enumerate(infos) if info.name in given}
    if replaced:
        # The weights come first. To delete them one by one would move all others each time.
        end = max(replaced) + 1
        kept = [onnx.ValueInfoProto.FromString(infos[n].SerializeToString()) for n in range(end) if n not in replaced]
        del infos[:end]
        infos.extend(kept)
    proto.ir_version = max(proto.ir_version, 4)


def _absent_in_nodes(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Put an Identity in the place of each absent weight of a Constant and of a nested graph, since a graph's result
    must be one of a node. Returns the types of what these read, by names that are new."""
    graphs = list(subgraphs_of(graph))
    taken = set().union(*map(value_names, graphs))
    given: dict[str, onnx.TypeProto] = {}

    def identity(tensor: onnx.TensorProto, result: str) -> onnx.NodeProto:
        name = unused_name(result, taken)
        given[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return onnx.helper.make_node("Identity", [name], [result])

    # Inner graphs first: to replace the nodes of a graph copies them.
    for each in reversed(graphs):
        absent = [tensor for tensor in each.initializer if is_absent(tensor)]
        for node in each.node:
            data = next((a.t for a in node.attribute if a.HasField("t") and is_absent(a.t)), None)
            if node.op_type == "Constant" and data is not None:
                node.CopyFrom(identity(data, node.output[0]))
        if absent:
            replace_entries(each.node, [*(identity(tensor, tensor.name) for tensor in absent), *each.node])
            replace_entries(each.initializer, [tensor for tensor in each.initializer if not is_absent(tensor)])
    return given


def _taken_off(graph: onnx.GraphProto) -> dict[str, bytes]:
    """The declared types of the graph's values, encoded, which the graph loses: of its outputs the shapes alone.

    A value with metadata may be listed without a type, to which onnx's strict inference objects.
    """
    infos = [info for info in (*graph.value_info, *graph.output) if info.type.WhichOneof("value")]
    declared = {info.name: info.type.SerializeToString() for info in infos}
    del graph.value_info[:]
    for info in graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return declared


def _put_back(graph: onnx.GraphProto, declared: Mapping[str, bytes]) -> None:
    outputs = {info.name: info for info in graph.output}
    for name, written in declared.items():
        (outputs.get(name) or graph.value_info.add(name=name)).type.ParseFromString(written)


def _inferred(proto: onnx.ModelProto, *, strict: bool) -> dict[str, bytes] | None:
    """The types of the graph's constants, inferred values and outputs, encoded; None if onnx objects to the graph."""
    try:
        found = inferred_by_onnx(proto, check_type=strict, strict_mode=strict, data_prop=True).graph
    except Exception:  # _check_inference reports it
        return None
    stored = {tensor.name: (tensor.data_type, *tensor.dims) for tensor in proto.graph.initializer}
    types = {key: onnx.helper.make_tensor_type_proto(key[0], key[1:]).SerializeToString() for key in {*stored.values()}}
    named = {name: types[key] for name, key in stored.items()}
    return named | {info.name: info.type.SerializeToString() for info in (*found.value_info, *found.output)}


def _shown(shape: Extents) -> str:
    return "[" + ", ".join("?" if extent is None else str(extent) for extent in shape) + "]"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


def _invalid(error: Exception) -> Finding:
    unknown = _UNKNOWN_OPERATOR.search(str(error))
    if unknown is not None:
        near = get_close_matches(unknown[1], {schema.name for schema in onnx.defs.get_all_schemas()}, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message = f"ONNX has no operator {unknown[1]} in this version{hint}"
        return _about_model("checker", "operators of ONNX, or a domain of their own", _first_line(error), message)
    return _about_model("checker", "a model that onnx.checker accepts", _first_line(error), "not a valid ONNX model")


def _about_model(rule: str, expected: str, found: str, message: str) -> Finding:
    return Finding(rule=rule, expected=expected, found=found, message=message)
