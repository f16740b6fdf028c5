"""Whether an ONNX protobuf is a graph at all: names, edges and types, checked once before anything reads them.

onnx.checker stops at the first fault with a sentence meant for its authors, wants the whole model in one buffer below
2 GB and refuses graphs that runtimes accept; what is checked here is what the rest of relayout relies on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import onnx

from relayout.errors import InputError
from relayout.tensor_types import check_tensor, check_type

__all__ = ["check_structure"]

OLDEST_OPSET = 7
DEEPEST_SUBGRAPH = 24
LARGEST_INLINED = 1_000_000
STANDARD_DOMAINS = ("", "ai.onnx")


def check_structure(proto: onnx.ModelProto) -> None:
    """Raise InputError with the place of the first fault; return where the model is one that can be read."""
    _check_versions(proto)
    functions = _check_functions(proto)
    if not proto.HasField("graph") or not proto.graph.output:
        raise InputError(
            "the graph is empty",
            where=_graph_name(proto.graph),
            expected="at least one output",
            found=f"{len(proto.graph.node)} nodes and no output",
        )
    _check_graph(proto.graph, frozenset(), _graph_name(proto.graph), 0)
    _check_inlined_size(proto, functions)


def _graph_name(graph: onnx.GraphProto) -> str:
    return f"graph '{graph.name}'" if graph.name else "graph"


def _check_versions(proto: onnx.ModelProto) -> None:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise InputError(
            "unsupported IR version",
            where="model, ir_version",
            expected=f"1 to {onnx.IR_VERSION}",
            found=str(proto.ir_version) if proto.ir_version else "none: this may not be an ONNX model",
        )
    versions: dict[str, int] = {}
    for opset in proto.opset_import:
        domain = "" if opset.domain in STANDARD_DOMAINS else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise InputError(
                "one domain is imported twice",
                where=f"model, opset_import of '{opset.domain}'",
                expected="one version",
                found=f"{versions[domain]} and {opset.version}",
            )
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= versions.get("", newest) <= newest:
        raise InputError(
            "unsupported opset",
            where="model, opset_import",
            expected=f"opset {OLDEST_OPSET} to {newest}",
            found=f"opset {versions['']}",
            hint="convert it with onnx.version_converter" if versions[""] < OLDEST_OPSET else "install a newer onnx",
        )
    if "" not in versions and any(node.domain in STANDARD_DOMAINS for node in proto.graph.node):
        raise InputError(
            "the standard operators' opset is not imported",
            where="model, opset_import",
            expected="an entry for domain ''",
            found=", ".join(f"'{domain}'" for domain in sorted(versions)) or "no entry",
        )


# --- graphs ----------------------------------------------------------------------------------------------------------


def _check_graph(graph: onnx.GraphProto, outer: frozenset[str], where: str, depth: int) -> set[str]:
    """Check one graph; return the names that it takes from the graphs around it."""
    if depth > DEEPEST_SUBGRAPH:
        raise InputError("subgraphs are nested too deep", where=where, expected=f"at most {DEEPEST_SUBGRAPH} levels")
    if graph.sparse_initializer:
        raise InputError(
            "sparse constants are not supported",
            where=f"{where}, constant '{graph.sparse_initializer[0].values.name}'",
            expected="dense tensors",
            found="a sparse_initializer",
        )
    names: dict[str, str] = {}
    for info in graph.input:
        _declare(names, info.name, "an input", where)
    constants: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in constants or not names.get(tensor.name, "an input") == "an input":
            raise _duplicate(tensor.name, "two constants", where)
        constants.add(tensor.name)
        check_tensor(tensor, f"{where}, constant '{tensor.name}'")
        names.setdefault(tensor.name, "a constant")
        if not tensor.name:
            raise InputError("a constant has no name", where=where, expected="a name", found="''")
    for info in (*graph.input, *graph.value_info, *graph.output):
        check_type(info.type, f"{where}, value '{info.name}'")
    return _check_body(graph.node, names, [info.name for info in graph.output], outer, where, depth)


def _check_body(
    nodes: Iterable[onnx.NodeProto],
    names: dict[str, str],
    outputs: list[str],
    outer: frozenset[str],
    where: str,
    depth: int,
) -> set[str]:
    nodes = list(nodes)
    given = set(names)
    for index, node in enumerate(nodes):
        for output in filter(None, node.output):
            _declare(names, output, f"an output of {_node_name(node, index)}", where)
    _check_outputs(outputs, names, where)
    visible = outer | names.keys()
    free: set[str] = set()
    needs: list[set[str]] = []
    for index, node in enumerate(nodes):
        place = f"{where}, {_node_name(node, index)}"
        wanted = set(filter(None, node.input))
        for position, name in enumerate(node.input):
            if name and name not in visible:
                raise InputError(
                    "an operand does not exist",
                    where=f"{place}, input {position}",
                    expected="a graph input, a constant or another node's output",
                    found=f"'{name}', which nothing produces",
                )
        wanted |= _check_attributes(node, visible, place, depth)
        free |= wanted - names.keys()
        needs.append(wanted & names.keys())
    _check_acyclic(nodes, needs, given, where)
    return free


def _check_outputs(outputs: list[str], names: Mapping[str, str], where: str) -> None:
    for position, name in enumerate(outputs):
        if name not in names:
            raise InputError(
                "an output does not exist",
                where=f"{where}, output {position}",
                expected="the name of a value of this graph",
                found=f"'{name}', which nothing produces",
            )
    if len(set(outputs)) != len(outputs):
        raise _duplicate(next(name for name in outputs if outputs.count(name) > 1), "two outputs", where)


def _check_attributes(node: onnx.NodeProto, visible: frozenset[str], where: str, depth: int) -> set[str]:
    seen: set[str] = set()
    wanted: set[str] = set()
    for attribute in node.attribute:
        place = f"{where}, attribute '{attribute.name}'"
        if attribute.name in seen:
            raise _duplicate(attribute.name, "two attributes", where)
        seen.add(attribute.name)
        if attribute.type in (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS):
            raise InputError("sparse tensors are not supported", where=place, expected="dense tensors")
        if attribute.type not in onnx.AttributeProto.AttributeType.values():
            raise InputError("unknown attribute type", where=place, found=f"number {attribute.type}")
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            check_tensor(tensor, place)
        for kind in (*([attribute.tp] if attribute.HasField("tp") else []), *attribute.type_protos):
            check_type(kind, place)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            wanted |= _check_graph(graph, visible, place, depth + 1)
    return wanted


def _check_acyclic(nodes: list[onnx.NodeProto], needs: list[set[str]], given: set[str], where: str) -> None:
    ready = set(given)
    waiting = {index: need - ready for index, need in enumerate(needs)}
    users: dict[str, list[int]] = defaultdict(list)
    for index, need in waiting.items():
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


def _cycle(nodes: list[onnx.NodeProto], waiting: Mapping[int, set[str]], where: str) -> InputError:
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


# --- functions -------------------------------------------------------------------------------------------------------

FunctionId = tuple[str, str, str]


def _check_functions(proto: onnx.ModelProto) -> dict[FunctionId, onnx.FunctionProto]:
    functions: dict[FunctionId, onnx.FunctionProto] = {}
    for function in proto.functions:
        identifier = (_domain(function.domain), function.name, function.overload)
        where = f"function '{'::'.join(filter(None, identifier))}'"
        if identifier in functions:
            raise _duplicate(function.name, "two functions", "model")
        functions[identifier] = function
        names: dict[str, str] = {}
        for name in function.input:
            _declare(names, name, "an input", where)
        _check_body(function.node, names, list(function.output), frozenset(), where, 0)
    return functions


def _check_inlined_size(proto: onnx.ModelProto, functions: Mapping[FunctionId, onnx.FunctionProto]) -> None:
    """Functions that call functions can stand for any number of nodes; and they must not call themselves."""
    sizes: dict[FunctionId, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], callers: tuple[FunctionId, ...]) -> int:
        total = 0
        for node in _all_nodes(nodes):
            callee = (_domain(node.domain), node.op_type, node.overload)
            if callee in callers:
                raise InputError(
                    "a function calls itself",
                    where=f"function '{'::'.join(filter(None, callee))}'",
                    found=" -> ".join(name for _, name, _ in (*callers, callee)[-12:]),
                )
            if callee in functions and callee not in sizes:
                sizes[callee] = size(functions[callee].node, (*callers, callee))
            total += sizes.get(callee, 1)
        return total

    if functions and size(proto.graph.node, ()) > LARGEST_INLINED:
        raise InputError(
            "the model's functions stand for too many nodes",
            where="model, functions",
            expected=f"at most {LARGEST_INLINED} nodes when inlined",
        )


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_nodes(graph.node)


# --- names -----------------------------------------------------------------------------------------------------------


def _domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def _node_name(node: onnx.NodeProto, index: int) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"node {index} ({node.op_type})"


def _declare(names: dict[str, str], name: str, role: str, where: str) -> None:
    if not name:
        raise InputError("an input has no name", where=where, expected="a name", found="''")
    if name in names:
        raise _duplicate(name, f"{names[name]} and {role}", where)
    names[name] = role


def _duplicate(name: str, found: str, where: str) -> InputError:
    return InputError(
        "a name is used twice", where=f"{where}, name '{name}'", expected="every name to be given once", found=found
    )
