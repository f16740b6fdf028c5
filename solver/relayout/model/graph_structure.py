"""Structural validation of one graph: unique names, existing operands, no cycle, operators as ONNX defines them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx
from msgspec import Struct, field

from relayout.errors import InputError
from relayout.model.operator_schema import check_auto_pad, check_node
from relayout.model.proto_graphs import STANDARD_DOMAINS, declared_values, graphs_in
from relayout.model.tensor_types import check_strings, check_tensor, check_text, check_type

DEEPEST_SUBGRAPH = 24
SMALL_TENSOR = 128
"""Tensor attributes up to this many bytes are checked once for all that are equal."""
_ATTRIBUTE_TYPES = {number for number in onnx.AttributeProto.AttributeType.values() if number}
_NUMBERS = {getattr(onnx.AttributeProto, name) for name in ("FLOAT", "FLOATS", "INT", "INTS")}


Kind = tuple[str, str, int, tuple[int, ...], int, tuple[tuple[str, int], ...]]
"""The domain and operator of a node, how many operands it has and which are left out, how many results, and its
attributes' names and types."""


class Surroundings(Struct):
    """State of the check of a whole model.

    `versions` has the opset versions, and `functions` the domains and names of the model's functions. `in_function` is
    True in function bodies, whose attributes may refer to the caller's; `in_order` is whether all nodes so far were in
    topological order. `kinds` has the kinds of nodes that fit their operators, and whether all their attributes are
    numbers. `has_external` is whether a tensor inside a node so far had its data in another file. `tensors` has the
    domains of nodes with small tensor attributes that are checked, and `types` the types that are: a network repeats
    them.
    """

    versions: Mapping[str, int]
    functions: Collection[tuple[str, str]] = ()
    in_function: bool = False
    in_order: bool = True
    has_external: bool = False
    kinds: dict[Kind, bool] = field(default_factory=dict)
    tensors: set[tuple[str, bytes]] = field(default_factory=set)
    types: set[bytes] = field(default_factory=set)


def check_graph(
    graph: onnx.GraphProto, outer: frozenset[str], around: Surroundings, where: str, depth: int = 0
) -> set[str]:
    """Check one graph and its subgraphs; return the names that it reads from the enclosing graphs."""
    if depth > DEEPEST_SUBGRAPH:
        raise InputError("subgraphs are nested too deep", where=where, expected=f"at most {DEEPEST_SUBGRAPH} levels")
    if graph.sparse_initializer:
        raise InputError(
            "sparse constants are not supported",
            where=f"{where}, constant '{graph.sparse_initializer[0].values.name}'",
            expected="dense tensors",
            found="a sparse_initializer",
        )
    values = declared_values(graph)
    tensors = graph.initializer[:]
    check_text(_texts_of((graph, *values, *tensors)), where)
    names: dict[str, str | int] = {}
    for info in graph.input:
        declare(names, info.name, "an input", where)
    constants: set[str] = set()
    for tensor in tensors:
        name = tensor.name
        if name in constants or not names.get(name, "an input") == "an input":
            raise duplicate(name, "two constants", where)
        constants.add(name)
        check_tensor(tensor, f"{where}, constant '{name}'")
        around.has_external |= depth > 0 and tensor.data_location == onnx.TensorProto.EXTERNAL
        names.setdefault(name, "a constant")
        if not name:
            raise InputError("a constant has no name", where=where, expected="a name", found="''")
    for info in values:
        written = info.type.SerializeToString()
        if written not in around.types:
            check_type(info.type, f"{where}, value '{info.name}'")
            around.types.add(written)
    return check_body(graph.node, names, [info.name for info in graph.output], outer, around, where, depth)


def _texts_of(parts: Iterable[onnx.GraphProto | onnx.ValueInfoProto | onnx.TensorProto]) -> Iterator[str]:
    for part in parts:
        yield part.name
        yield part.doc_string
        for entry in part.metadata_props if part.metadata_props else ():
            yield entry.key
            yield entry.value


def check_body(
    nodes: Sequence[onnx.NodeProto],
    names: dict[str, str | int],
    outputs: list[str],
    outer: frozenset[str],
    around: Surroundings,
    where: str,
    depth: int = 0,
) -> set[str]:
    """Check nodes that may use `names` and `outer`; return the names of `outer` that they use. `names` have the role of
    each value, or the index of its node."""
    ready = {"", *names}
    texts: list[str] = []
    parts: list[tuple[onnx.NodeProto, str, str, list[str], list[str]]] = []
    for index, node in enumerate(nodes):
        domain, operator, inputs, results = node.domain, node.op_type, node.input[:], node.output[:]
        parts.append((node, domain, operator, inputs, results))
        texts += (node.name, operator, domain, node.overload, node.doc_string, *inputs, *results)
        if node.metadata_props:
            check_text((text for entry in node.metadata_props for text in (entry.key, entry.value)), where)
        for output in results:
            if output in names:
                raise duplicate(output, f"{_role(names[output], nodes)} and {_role(index, nodes)}", where)
            if output:
                names[output] = index
    check_text(texts, where)
    _check_outputs(outputs, names, where)
    visible = outer | names.keys()
    taken: set[str] = set()
    waiting: dict[int, set[str]] = {}
    for index, (node, domain, operator, inputs, results) in enumerate(parts):
        attributes = node.attribute[:]
        given = tuple([(attribute.name, attribute.type) for attribute in attributes])
        left_out = tuple([n for n, name in enumerate(inputs) if not name]) if "" in inputs else ()
        kind = domain, operator, len(inputs), left_out, len(results), given
        is_known = kind in around.kinds
        if not is_known:
            try:
                check_node(node, given, around.versions, around.functions)
            except InputError as error:
                error.where = ", ".join(filter(None, (where, _node_name(node, index), error.where)))
                raise
            around.kinds[kind] = all(number in _NUMBERS for _, number in given)
        wanted: set[str] = set()
        if not ready.issuperset(inputs):
            wanted.update(inputs)
            wanted.discard("")
            if not wanted <= visible:
                raise _dangling(node, visible, f"{where}, {_node_name(node, index)}")
        # The names and types of attributes are a part of the kind: of numbers, only these texts are left.
        is_plain = is_known and around.kinds[kind]
        if given and not (is_plain and not any(each.ref_attr_name or each.doc_string for each in attributes)):
            wanted |= _check_attributes(node, given, visible, around, f"{where}, {_node_name(node, index)}", depth)
        if wanted <= ready:
            ready.update(results)
            continue
        own = wanted & names.keys()
        taken |= wanted - own
        if not own <= ready:
            waiting[index] = own - ready
        else:
            ready.update(results)
    if waiting:
        around.in_order = False
        _check_acyclic(nodes, waiting, where)
    return taken


def _dangling(node: onnx.NodeProto, visible: frozenset[str], where: str) -> InputError:
    position, name = next((at, name) for at, name in enumerate(node.input) if name and name not in visible)
    return InputError(
        "an operand does not exist",
        where=f"{where}, input {position}",
        expected="a graph input, a constant or another node's output",
        found=f"'{name}', which nothing produces",
    )


def _check_outputs(outputs: list[str], names: Collection[str], where: str) -> None:
    for position, name in enumerate(outputs):
        if name not in names:
            raise InputError(
                "an output does not exist",
                where=f"{where}, output {position}",
                expected="the name of a value of this graph",
                found=f"'{name}', which nothing produces",
            )
    if len(set(outputs)) != len(outputs):
        raise duplicate(next(name for name in outputs if outputs.count(name) > 1), "two outputs", where)


def _check_attributes(
    node: onnx.NodeProto,
    given: Sequence[tuple[str, int]],
    visible: frozenset[str],
    around: Surroundings,
    where: str,
    depth: int,
) -> set[str]:
    seen: set[str] = set()
    wanted: set[str] = set()
    for attribute, (name, kind) in zip(node.attribute, given, strict=True):
        check_text((name, attribute.ref_attr_name, attribute.doc_string), where)
        if name in seen:
            raise duplicate(name, "two attributes", where)
        seen.add(name)
        if kind in _NUMBERS and not attribute.ref_attr_name:
            continue
        if kind == onnx.AttributeProto.TENSOR and attribute.ByteSize() <= SMALL_TENSOR:
            checked = node.domain, attribute.SerializeToString()
            if checked in around.tensors:
                continue
            around.tensors.add(checked)
        place = f"{where}, attribute '{name}'"
        if kind in (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS):
            raise InputError("sparse tensors are not supported", where=place, expected="dense tensors")
        if attribute.ref_attr_name and not around.in_function:
            raise InputError(
                "an attribute refers to one of a function, but is not in a function",
                where=place,
                expected="a value",
                found=f"a reference to '{attribute.ref_attr_name}'",
            )
        if kind not in _ATTRIBUTE_TYPES:
            raise InputError("unknown attribute type", where=place, expected="a type", found=f"number {kind}")
        is_standard = node.domain in STANDARD_DOMAINS
        check_strings(attribute, place, is_standard=is_standard)
        if name == "auto_pad" and is_standard:
            check_auto_pad(attribute, place)
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            check_tensor(tensor, place)
            around.has_external |= tensor.data_location == onnx.TensorProto.EXTERNAL
        for type_ in (*([attribute.tp] if attribute.HasField("tp") else []), *attribute.type_protos):
            check_type(type_, place)
        for graph in graphs_in(attribute):
            wanted |= check_graph(graph, visible, around, place, depth + 1)
    return wanted


def _check_acyclic(nodes: Sequence[onnx.NodeProto], waiting: dict[int, set[str]], where: str) -> None:
    """Kahn's algorithm over the nodes that use a result of a later one, or of one of themselves."""
    users: dict[str, list[int]] = defaultdict(list)
    produced = {output for index in waiting for output in nodes[index].output}
    for index, need in waiting.items():
        need &= produced
        for name in need:
            users[name].append(index)
    queue = [index for index, need in waiting.items() if not need]
    while queue:
        index = queue.pop()
        del waiting[index]
        for name in filter(None, nodes[index].output):
            for user in users[name]:
                waiting[user].discard(name)
                if not waiting[user]:
                    queue.append(user)
    if waiting:
        raise _cycle(nodes, waiting, where)


def _cycle(nodes: Sequence[onnx.NodeProto], waiting: Mapping[int, set[str]], where: str) -> InputError:
    producer = {output: index for index in waiting for output in nodes[index].output if output}
    path: list[int] = []
    index = min(waiting)
    while index not in path:
        path.append(index)
        index = producer[min(waiting[index])]
    cycle = [*path[path.index(index) :], index]
    return InputError(
        "the graph has a cycle",
        where=where,
        expected="every node to use only results of nodes before it",
        found=" <- ".join(_node_name(nodes[step], step) for step in cycle[:12]),
    )


def _role(role: str | int, nodes: Sequence[onnx.NodeProto]) -> str:
    return role if isinstance(role, str) else f"an output of {_node_name(nodes[role], role)}"


def _node_name(node: onnx.NodeProto, index: int) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"node {index} ({node.op_type})"


def declare(names: dict[str, str | int], name: str, role: str, where: str) -> None:
    """Add `name` to `names`; Raises InputError if it is there already."""
    if not name:
        raise InputError("an input has no name", where=where, expected="a name", found="''")
    if name in names:
        raise duplicate(name, f"{names[name]} and {role}", where)
    names[name] = role


def duplicate(name: str, found: str, where: str) -> InputError:
    """The error for a name that is used twice."""
    return InputError(
        "a name is used twice", where=f"{where}, name '{name}'", expected="every name to be given once", found=found
    )
