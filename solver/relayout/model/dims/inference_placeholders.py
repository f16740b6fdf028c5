"""Placeholders for constants with absent data that onnx's inference would read.

A node of an unknown operator replaces such a constant. Subgraphs get copies of the shapes, axes and scales that they
read from enclosing graphs, because inference does not read constants outside a graph. If onnx would propagate the
values of a matrix as those of a vector, or slice values from a wrong start, they are hidden from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import onnx

from relayout.model.proto_graphs import (
    STANDARD_DOMAINS,
    declared_values,
    dims_by_name,
    graphs_in,
    graphs_inside,
    opset_of,
    subgraphs_of,
    tensor_of,
    value_names,
)
from relayout.model.tensor_types import is_absent

LARGEST_KEPT = 1024
PLACEHOLDER = "relayout.absent"

# The operators through which onnx propagates values. It stores them as one vector, whatever the tensor's rank.
_ORDER_KEEPING = frozenset({"Cast", "Squeeze", "Unsqueeze"})
_COMBINING = frozenset({"Add", "Concat", "Gather", "Mul", "Slice", "Sub"})
_TELLING = frozenset({"Constant", "Size", *_ORDER_KEEPING, *_COMBINING})
"""The operators whose operands are looked at."""

_UNCUT = 10
"""The opset in which onnx takes a named dim that a Slice cuts for the same dim."""


def needs_placeholders(proto: onnx.ModelProto, *, in_nodes: bool) -> bool:
    """Whether inference would read the data of a constant that has none. `in_nodes`: nodes may have constants too."""
    return any(map(_is_missed, _constants(proto.graph) if in_nodes else proto.graph.initializer))


def insert_placeholders(proto: onnx.ModelProto) -> None:
    """Replace such constants with nodes of an unknown operator."""
    _insert(proto.graph)
    proto.opset_import.add(domain=PLACEHOLDER, version=1)


def _is_missed(tensor: onnx.TensorProto) -> bool:
    """Whether inference would read the data: of integer vectors, and of short float vectors (shapes, axes, scales)."""
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    if len(tensor.dims) > 1 or not (outside or is_absent(tensor)):
        return False
    return tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) or sum(tensor.dims) <= LARGEST_KEPT


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for each in subgraphs_of(graph):
        yield from each.initializer
        yield from (attribute.t for node in each.node for attribute in node.attribute[:] if attribute.HasField("t"))


def _insert(graph: onnx.GraphProto) -> None:
    inputs = {info.name for info in graph.input}
    declared = inputs | {info.name for info in graph.value_info}

    def declare(name: str, tensor: onnx.TensorProto) -> None:
        if name not in declared:
            graph.value_info.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))

    missing = [tensor for tensor in graph.initializer if _is_missed(tensor)]
    for tensor in missing:
        declare(tensor.name, tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t") and _is_missed(attribute.t):
                declare(node.output[0], attribute.t)
                node.domain = PLACEHOLDER
            for subgraph in graphs_in(attribute):
                _insert(subgraph)
    for tensor in missing:
        if tensor.name not in inputs:
            placeholder = onnx.helper.make_node("Initializer", [], [tensor.name], PLACEHOLDER, domain=PLACEHOLDER)
            graph.node.insert(0, placeholder)
        graph.initializer.remove(tensor)


def lend(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> None:
    """Give the graphs inside `graph` copies of the shapes, axes and scales around them that they read: inference does
    not look for the values of constants outside of a graph."""
    fed, defined = {value.name for value in graph.input}, value_names(graph)
    here = {name: tensor for name, tensor in outer.items() if name not in defined}
    here |= {tensor.name: tensor for tensor in graph.initializer if _is_looked_at(tensor) and tensor.name not in fed}
    for node in graph.node:
        tensor = tensor_of(node) if node.op_type == "Constant" else None
        if tensor is not None and _is_looked_at(tensor):
            here[node.output[0]] = _named(tensor, node.output[0])
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                lend(inner, here)
                read = dict.fromkeys(name for each in inner.node for name in each.input)
                own = value_names(inner)
                inner.initializer.extend(here[name] for name in read if name in here and name not in own)


def misread_operands(graph: onnx.GraphProto) -> dict[int, list[int]]:
    """The operands of two or more dimensions whose values onnx would propagate wrongly: node index to operand indices.

    onnx stores the values of integers as one vector, also those of [1, 3] and of [3, 1]: it would add these element by
    element. A value of unknown rank is treated as a vector.
    """
    telling = [(index, node) for index, node in enumerate(graph.node) if node.op_type in _TELLING]
    if not any(node.op_type in _ORDER_KEEPING for _, node in telling):
        return {}
    read = {name for _, node in telling for name in node.input}
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer if tensor.name in read}
    for value in declared_values(graph):
        if value.name in read and value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    lengths = {t.name: t.dims[0] for t in graph.initializer if t.name in read and len(t.dims) == 1}
    wide: set[str] = set()
    misread: dict[int, list[int]] = {}
    for index, node in telling:
        if node.domain not in STANDARD_DOMAINS:
            continue
        operands = [ranks.get(name, 1) for name in node.input]
        if node.op_type == "Constant":
            tensor = tensor_of(node)
            dims = tensor.dims[:] if tensor is not None else []
            ranks[node.output[0]], lengths[node.output[0]] = len(dims), sum(dims)
        elif node.op_type == "Size":
            ranks[node.output[0]] = 0
        elif node.op_type in _ORDER_KEEPING:
            rank = ranks[node.output[0]] = _rank_after(node, operands[0], lengths)
            if rank > 1 and (operands[0] <= 1 or node.input[0] in wide):
                wide.add(node.output[0])
        elif node.op_type in _COMBINING:
            ranks[node.output[0]] = sum(operands) - 1 if node.op_type == "Gather" else max(operands)
            places = [place for place, name in enumerate(node.input) if name in wide]
            if places:
                misread[index] = places
    return misread


def blind_slices(graph: onnx.GraphProto, opset: int) -> list[int]:
    """The Slices, by index, of values that onnx propagates from a start that it does not know: it would take 0. Of
    opset 10 all of them."""
    if opset == _UNCUT:
        return [index for index, node in enumerate(graph.node) if node.op_type == "Slice"]
    computed = {index: node for index, node in enumerate(graph.node) if node.op_type == "Slice" and len(node.input) > 2}
    if not computed:
        return []
    stored = {tensor.name for tensor in graph.initializer}
    stored.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    computed = {index: node for index, node in computed.items() if node.input[1] not in stored}
    if not computed:
        return []
    static = {name for name, dims in dims_by_name(graph).items() if all(dim.HasField("dim_value") for dim in dims)}
    known, propagated = set(stored), set(stored)
    for node in graph.node:
        if node.op_type == "Shape" or node.op_type in _TELLING:
            propagated.update(node.output)
            if known.issuperset(node.input) or (node.op_type == "Shape" and node.input[0] in static):
                known.update(node.output)
    return [index for index, node in computed.items() if node.input[1] not in known and node.input[0] in propagated]


def _rank_after(node: onnx.NodeProto, rank: int, lengths: Mapping[str, int]) -> int:
    """The rank of the result of a node of `_ORDER_KEEPING` whose operand has `rank` dimensions. `lengths` are those of
    constant vectors."""
    if node.op_type == "Cast":
        return rank
    axes = [len(attribute.ints) for attribute in node.attribute if attribute.name == "axes"]
    axes += [lengths[name] for name in node.input[1:] if name in lengths]
    if node.op_type == "Unsqueeze":
        return rank + (axes[0] if axes else 1)
    # A value that onnx propagates is a vector with unit dimensions, so that a squeezed one has at most one dimension.
    return max(rank - axes[0], 0) if axes else min(rank, 1)


def hide(proto: onnx.ModelProto, *, has_graphs: bool = True) -> None:
    """Hide the values of `misread_operands` and the starts of `blind_slices` from onnx's inference, in all graphs.
    `has_graphs`: there may be some inside the outermost one."""
    opset = opset_of(proto.opset_import)
    for graph in [*subgraphs_of(proto.graph)] if has_graphs else [proto.graph]:
        _hide(graph, opset)


def hide_starts(proto: onnx.ModelProto, results: Set[str]) -> None:
    """Hide the starts of the Slices with these results, in all graphs: onnx's inference then gives them no extents."""
    for graph in subgraphs_of(proto.graph):
        places = [place for place, node in enumerate(graph.node) if node.op_type == "Slice" and len(node.input) > 1]
        _replace(graph, {place for place in places if graph.node[place].output[0] in results}, {})


def _hide(graph: onnx.GraphProto, opset: int) -> None:
    _replace(graph, set(blind_slices(graph, opset)), misread_operands(graph))


def _replace(graph: onnx.GraphProto, blind: Set[int], misread: Mapping[int, Sequence[int]]) -> None:
    """Hide the starts of the nodes `blind`, and the operands `misread` of others, by index."""
    kept = f"{PLACEHOLDER}.kept"
    if blind and all(tensor.name != kept for tensor in graph.initializer):
        graph.initializer.append(onnx.helper.make_tensor(kept, onnx.TensorProto.BOOL, [1], [True]))
    for index in sorted({*blind, *misread}, reverse=True):
        node = graph.node[index]
        # onnx propagates no values through an Identity.
        hiding = {place: ("Identity", [node.input[place]]) for place in misread.get(index, ())}
        if index in blind:
            # onnx follows no value of an unknown length. To one of unknown numbers it gives zeros.
            hiding[1] = ("Compress", [node.input[1], kept])
        for place, (operator, operands) in hiding.items():
            hidden = f"{PLACEHOLDER}.{node.output[0]}.{place}"
            graph.node.insert(index, onnx.helper.make_node(operator, operands, [hidden], PLACEHOLDER))
            node.input[place] = hidden


def _is_looked_at(tensor: onnx.TensorProto) -> bool:
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    return len(tensor.dims) <= 1 and sum(tensor.dims) <= LARGEST_KEPT and not (outside or is_absent(tensor))


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def carry_over(inferred: onnx.GraphProto, proto: onnx.GraphProto) -> None:
    """Take the inferred types over, graph by graph: sibling subgraphs may use the same names."""
    twins = [node for node in inferred.node if node.name != PLACEHOLDER]
    for subgraph, twin in zip(graphs_inside(proto.node), graphs_inside(twins), strict=True):
        carry_over(twin, subgraph)
    loops, informed = ([node for node in nodes if node.op_type == "Loop"] for nodes in (proto.node, twins))
    for body, twin in zip(graphs_inside(loops), graphs_inside(informed), strict=True):
        for value, state in zip(body.input, twin.input, strict=True):
            value.type.CopyFrom(state.type)
    for field in ("value_info", "output"):
        proto.ClearField(field)
        getattr(proto, field).extend(info for info in getattr(inferred, field) if not info.name.startswith(PLACEHOLDER))
