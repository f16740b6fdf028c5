"""Ranks of operands that their readers tell, and the inputs of Scan bodies: onnx's inference goes from operands to
results alone, and does not store the latter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx

from relayout.model.proto_graphs import STANDARD_DOMAINS, declared_values, dims_by_name, graphs_inside

_TELLS_RANK = frozenset(["AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "Transpose"])


class _Kind(NamedTuple):
    """An element type, 0 where it is not known, and a rank."""

    element: int
    rank: int


def enter_ranks(
    graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: Mapping[str, int]
) -> tuple[bool, dict[str, _Kind]]:
    """Declare ranks, in `graph` and its subgraphs, of values without a shape whose consumers determine the rank.

    A Transpose determines it by its perm, a convolution by its kernel, a pool by its window, a Loop or Scan by its
    body. `outer` has the known ranks of values of the enclosing graphs. Returns whether a rank was declared, and the
    ranks found for values of the enclosing graphs.
    """
    listed = {value.name: value for value in declared_values(inferred)}
    stored = {tensor.name: len(tensor.dims) for tensor in inferred.initializer}
    own = {name for node in inferred.node for name in node.output} | listed.keys() | stored.keys()
    known = {name: rank for name, rank in outer.items() if name not in own}
    known |= {name: len(dims) for name, dims in dims_by_name(inferred).items()} | stored
    found: dict[str, _Kind] = {}
    is_new = False
    for node, twin in zip(graph.node, inferred.node, strict=True):
        if twin.op_type in _TELLS_RANK and twin.domain in STANDARD_DOMAINS and twin.input[0] not in known:
            rank = _rank_read(twin, known)
            if rank is not None:
                found[twin.input[0]] = _Kind(0, rank)
        branches = []
        for inner, informed in zip(graphs_inside([node]), graphs_inside([twin]), strict=True):
            is_newer, kinds = enter_ranks(inner, informed, known)
            is_new |= is_newer
            branches.append(kinds)
        if twin.op_type == "If" and twin.domain in STANDARD_DOMAINS:
            # One of the two runs, and it is not known which. The body of a Loop or Scan may never run.
            then, other = branches
            found |= {name: kind for name, kind in then.items() if other.get(name) == kind}
        for name, state in _states(twin):
            declared_type = state.type.tensor_type
            if name and name not in known and declared_type.HasField("shape"):
                found[name] = _Kind(declared_type.elem_type, len(declared_type.shape.dim))
    declared = {value.name: value for value in declared_values(graph)}
    for name, kind in found.items():
        element = listed[name].type.tensor_type.elem_type if name in listed else kind.element
        if not element or name not in own:
            continue
        is_new = True
        hint = onnx.helper.make_tensor_value_info(name, element, [None] * kind.rank)
        if name in declared:
            declared[name].type.CopyFrom(hint.type)
        else:
            graph.value_info.append(hint)
    return is_new, {name: kind for name, kind in found.items() if name not in own}


def enter_scan_inputs(graph: onnx.GraphProto, outer: Mapping[str, onnx.TypeProto]) -> None:
    """Declare the input shapes of Scan bodies in the subgraphs of `graph`: onnx infers by them but does not store them.

    `outer` has the types of values of the enclosing graphs.
    """
    values = declared_values(graph)
    known = {**outer, **{value.name: value.type for value in values}}
    for tensor in graph.initializer:
        known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for node in graph.node:
        for name, value, axis in _scan_inputs(node):
            given, taken = onnx.TypeProto.Tensor(), value.type.tensor_type
            given.CopyFrom(known[name].tensor_type if name in known else given)
            if not given.HasField("shape"):
                continue
            if axis is not None:
                del given.shape.dim[axis]
            if not taken.HasField("shape"):
                taken.CopyFrom(given)
            for dim, same in zip(taken.shape.dim, given.shape.dim, strict=True):
                if dim.WhichOneof("value") is None:
                    dim.CopyFrom(same)
        for inner in graphs_inside([node]):
            enter_scan_inputs(inner, known)


def _scan_inputs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.ValueInfoProto, int | None]]:
    """The operands of a Scan, each with its body input and the scanned axis; None for a state.

    Empty before opset 9, where Scan has a batch axis.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type != "Scan" or node.domain not in STANDARD_DOMAINS or len(node.input) != len(given["body"].g.input):
        return
    scanned = given["num_scan_inputs"].i
    axes = list(given["scan_input_axes"].ints) if "scan_input_axes" in given else [0] * scanned
    states = [None] * (len(node.input) - scanned)
    yield from zip(node.input, given["body"].g.input, [*states, *axes], strict=True)


def _states(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.ValueInfoProto]]:
    """The initial states of a Loop or Scan, each with its body input."""
    if node.op_type == "Loop" and node.domain in STANDARD_DOMAINS:
        (body,) = graphs_inside([node])
        yield from zip(node.input[2:], body.input[2:], strict=False)
    yield from ((name, value) for name, value, axis in _scan_inputs(node) if axis is None)


def _rank_read(node: onnx.NodeProto, known: Mapping[str, int]) -> int | None:
    """The rank that the first operand of a node must have."""
    lengths = {attribute.name: len(attribute.ints) for attribute in node.attribute}
    if node.op_type == "Transpose":
        return lengths.get("perm")
    if node.op_type in ("AveragePool", "LpPool", "MaxPool"):
        return lengths["kernel_shape"] + 2 if "kernel_shape" in lengths else None
    return known.get(node.input[1])
