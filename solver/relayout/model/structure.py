"""Structural validation of an ONNX model: opsets, names, edges, types and functions, before anything reads them.

onnx.checker needs the whole model in one buffer below 2 GB and refuses graphs that runtimes accept. The rest of
relayout relies on these checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import onnx
from msgspec import Struct

from relayout.errors import InputError
from relayout.model.graph_structure import Kind, Surroundings, check_body, check_graph, declare, duplicate
from relayout.model.proto_graphs import STANDARD_DOMAINS, nodes_inside
from relayout.model.tensor_types import check_text

OLDEST_OPSET = 7
LARGEST_INLINED = 1_000_000
GRAPHS = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
TENSORS = {onnx.AttributeProto.TENSOR, onnx.AttributeProto.TENSORS}


class Structure(Struct, frozen=True):
    """The result of the check of a model: whether its nodes are in topological order, whether some have graphs or
    tensors among their attributes, whether one of those, or of the constants in such graphs, has its data in another
    file, and the kinds of the nodes, without those of functions."""

    in_order: bool
    has_graphs: bool
    has_tensors: bool
    has_external: bool
    kinds: Collection[Kind]


def check_structure(proto: onnx.ModelProto) -> Structure:
    """Raise InputError with the location of the first fault."""
    versions = _check_versions(proto)
    named = {(_domain(function.domain), function.name) for function in proto.functions}
    around = Surroundings(versions, named)
    bodies = Surroundings({}, named)
    functions = _check_functions(proto, bodies)
    if not proto.HasField("graph") or not proto.graph.output:
        raise InputError(
            "the graph is empty",
            where=_graph_name(proto.graph),
            expected="at least one output",
            found=f"{len(proto.graph.node)} nodes and no output",
        )
    where = _graph_name(proto.graph)
    check_graph(proto.graph, frozenset(), around, where)
    for info in proto.graph.input:
        if info.type.WhichOneof("value") is None or (not (kind := info.type.tensor_type).elem_type and kind.ByteSize()):
            raise InputError("an input has no dtype", where=f"{where}, input '{info.name}'", expected="an element type")
    _check_inlined_size(proto, functions)
    types = {number for kinds in (around.kinds, bodies.kinds) for *_, given in kinds for _, number in given}
    in_order = around.in_order and bodies.in_order
    has_graphs, has_tensors = not types.isdisjoint(GRAPHS), not types.isdisjoint(TENSORS)
    has_external = around.has_external or bodies.has_external
    return Structure(in_order, has_graphs, has_tensors, has_external, around.kinds.keys())


def _graph_name(graph: onnx.GraphProto) -> str:
    return f"graph '{graph.name}'" if graph.name else "graph"


def _check_versions(proto: onnx.ModelProto) -> dict[str, int]:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise InputError(
            "unsupported IR version",
            where="model, ir_version",
            expected=f"1 to {onnx.IR_VERSION}",
            found=str(proto.ir_version) if proto.ir_version else "none: this may not be an ONNX model",
        )
    check_text(
        (
            *(proto.producer_name, proto.producer_version, proto.domain, proto.doc_string),
            *(text for entry in proto.metadata_props for text in (entry.key, entry.value)),
        ),
        "model",
    )
    versions: dict[str, int] = {}
    for opset in proto.opset_import:
        check_text([opset.domain], "model, opset_import")
        domain = _domain(opset.domain)
        if not 1 <= opset.version < 1 << 31:
            raise InputError(
                "a version that no opset has",
                where=f"model, opset_import of '{domain}'",
                expected="1 or more",
                found=str(opset.version),
            )
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
            hint="allow its conversion (convert_opset)" if versions[""] < OLDEST_OPSET else "install a newer onnx",
        )
    if "" not in versions and any(node.domain in STANDARD_DOMAINS for node in proto.graph.node):
        raise InputError(
            "the standard operators' opset is not imported",
            where="model, opset_import",
            expected="an entry for domain ''",
            found=", ".join(f"'{domain}'" for domain in sorted(versions)) or "no entry",
        )
    return versions


# --- functions -------------------------------------------------------------------------------------------------------

FunctionId = tuple[str, str, str]


def _check_functions(proto: onnx.ModelProto, bodies: Surroundings) -> dict[FunctionId, onnx.FunctionProto]:
    functions: dict[FunctionId, onnx.FunctionProto] = {}
    for function in proto.functions:
        check_text((function.domain, function.name, function.overload, function.doc_string), "model, functions")
        check_text((*function.input, *function.output, *function.attribute), f"function '{function.name}'")
        identifier = (_domain(function.domain), function.name, function.overload)
        where = f"function '{'::'.join(filter(None, identifier))}'"
        if identifier in functions:
            raise duplicate(function.name, "two functions", "model")
        functions[identifier] = function
        names: dict[str, str | int] = {}
        for name in function.input:
            declare(names, name, "an input", where)
        versions = {_domain(opset.domain): opset.version for opset in function.opset_import}
        own = Surroundings(versions, bodies.functions, in_function=True)
        check_body(function.node, names, list(function.output), frozenset(), own, where)
        bodies.in_order = bodies.in_order and own.in_order
        bodies.has_external |= own.has_external
        bodies.kinds |= own.kinds
    return functions


def _check_inlined_size(proto: onnx.ModelProto, functions: Mapping[FunctionId, onnx.FunctionProto]) -> None:
    """Limit the number of nodes after inlining, which nested calls can multiply, and refuse recursion."""
    main: FunctionId = ("", "", "")
    sizes: dict[FunctionId, int] = {}
    callers = {main: _calls(proto.graph.node)} if functions else {}
    while callers:
        caller, calls = next(reversed(callers.items()))
        callee = next((called for called in calls if called in functions and called not in sizes), None)
        if callee is None:
            sizes[caller] = sum(count * sizes.get(called, 1) for called, count in calls.items())
            del callers[caller]
        elif callee in callers:
            raise InputError(
                "a function calls itself",
                where=f"function '{'::'.join(filter(None, callee))}'",
                found=" -> ".join(name for _, name, _ in (*callers, callee)[1:][-12:]),
            )
        else:
            callers[callee] = _calls(functions[callee].node)
    if sizes.get(main, 0) > LARGEST_INLINED:
        raise InputError(
            "the model's functions expand to too many nodes",
            where="model, functions",
            expected=f"at most {LARGEST_INLINED} nodes when inlined",
        )


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[FunctionId]:
    """How often these nodes, and those in graphs inside them, name each operator or function."""
    return Counter((_domain(node.domain), node.op_type, node.overload) for node in nodes_inside(nodes))


def _domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain
