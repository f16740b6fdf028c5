"""The operators of the model: each is one of the original's, with the same attributes, or only moves elements.

A run does not reach all operators. No runtime has those of an unknown domain, so neither they nor what stands in a
branch with them is run. No draw gives all the strings that a table lists. So operators are compared with their
counterparts here, without a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache

import onnx
import onnx_ir as ir

from relayout.layout.metadata_keys import WRITTEN_FOR_KEY
from relayout.ops import graphs_of
from relayout.ops.logical_node import node_name
from relayout.report.schema import Finding, Severity
from relayout.verification.counterparts import (
    COPY,
    VIEWS,
    Counterparts,
    ancestors,
    behind_views,
    first_result,
    source_name,
)
from relayout.verification.numeric.cut import Operators, lacking
from relayout.verification.operator_facts import OURS, declared_facts
from relayout.verification.requirements import node_label
from relayout.verification.subgraph_values import walk

_OWN = ("", OURS)
MOVES = VIEWS | {"Concat", "DepthToSpace", "Expand", "Gather", "Pad", "Slice", "SpaceToDepth"}
"""Operators of ONNX that only move elements."""
_CROPS = frozenset({"Pad", "Slice"})
_CONVERTS = VIEWS | _CROPS | {"DepthToSpace", "SpaceToDepth"}
"""Those that a rewrite adds to data. It adds others, such as Gather, to shapes alone."""
_MOVED_BY_NUMBERS = MOVES - {"Concat", "Gather"} | {"Resize", "Split", "Tile"}
"""Those whose operands but the first are numbers of elements or axes."""
_INTEGERS_OF_SHAPES = (ir.DataType.INT32, ir.DataType.INT64)
_BY_LAYOUT = re.compile(
    r"(?<!empty_)ax[ie]s|^perm$|layout$|^channels_last$|^start$|^end$|^trans(Batch)?[AB]$|^equation$|^allowzero$"
)
"""Attributes that change with the layout of an operand."""
_NO_OTHER = "an operator of the original, or one that the backend names (`conversion_operators`, `operator_layouts`)"
_IDENTITY = ("", "Identity")
_CONSTANT = ("", "Constant")
"""Its value may be permuted, and is compared with the other constants."""
_OF_SHAPES = ("Shape", "Size")
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def check_operators(pairs: Counterparts, own: Set[tuple[str, str]], *, fuses: bool, run: bool) -> Iterator[Finding]:
    """Yield a finding for each attribute that differs, for results that are exchanged, for each operator of an unknown
    domain that the original does not have, that is gone or of another version, and for what computes, is not the
    original's and is not compared by a run: beside such an operator in a branch, or anywhere without `run`. Another
    version of ONNX's own operators is a warning. Nodes in place of an operator that no run compares with it are a note.

    A backend may add operators that it names: those of `own` convert, others have `operator_layouts`. `fuses`: its
    post-pass may also replace known operators by unknown ones, which is a warning, or by other known ones, which is a
    note without `run`. Elements are taken by numbers that are known, come from shapes, or are the original's.
    """
    model, original, graphs = pairs.model, pairs.original, pairs.graphs
    unknown = lacking(model.model) | lacking(original.model)
    whole, candidates = (model.model.graph, original.model.graph), _candidates(pairs)
    kept = {
        node: next((each for each in found if kind_of(each) == kind_of(node)), None)
        for node, found in candidates.items()
        if WRITTEN_FOR_KEY not in node.metadata_props or node.op_identifier()[:2] in unknown
    }
    paired = set(kept.values())
    replaced = [node for node in original.nodes if node not in paired]
    kinds = {node.op_type for node in replaced}
    constants = model.constants
    unrun = set(_beside(model.model.graph, unknown) if run else model.nodes)
    written: set[str | None] = set()
    sizing = _sizing(original.nodes)
    crops: list[ir.Node] = []
    untold: dict[str | None, ir.Node] = {}
    for node, found in candidates.items():
        other = kept.get(node)
        is_unknown = node.op_identifier()[:2] in unknown
        written_for = node.metadata_props.get(WRITTEN_FOR_KEY)
        if other is not None:
            if kind_of(node) != _CONSTANT:
                yield from _check_attributes(node, other, exact=is_unknown)
            if node in unrun and computes(node, constants) and _is_elsewhere(node, other, graphs, whole):
                yield _finding(
                    node, _named(other.graph), _named(node.graph), "is in another graph than in the original"
                )
            results, wanted = _results(node), _results(other)
            if not _are_all(results, other) if is_unknown else _are_exchanged(results, wanted):
                yield _finding(node, ", ".join(wanted), ", ".join(results), "has other results")
        elif written_for in kinds:
            written.add(written_for)
            if node in unrun and computes(node, constants):
                untold.setdefault(str(written_for), node)
        elif (node.domain not in _OWN and node.op_identifier()[:2] in own) or (
            is_unknown and declared_facts(node) is not None
        ):
            continue
        elif is_unknown or (node in unrun and computes(node, constants)) or _picks(node, constants):
            if fuses and not is_unknown:
                if node in unrun:
                    untold.setdefault(found[0].op_type if found else "", node)
                continue
            is_fused = fuses and not any(kind_of(each) in unknown for each in found)
            kind = "::".join(kind_of(found[0])) if found else _NO_OTHER
            finding = _finding(node, kind, "::".join(kind_of(node)), "is not the original's")
            yield finding.model_copy(update={"severity": "warning"}) if is_fused else finding
        elif node.op_type in _CROPS and node.domain == "" and not constants.issuperset(node.outputs):
            crops += [node] if node in unrun else []
        if other is None and not fuses and node.domain == "" and node.op_type in MOVES and written_for not in kinds:
            yield from _check_numbers(node, kept, constants, sizing)
    if crops:
        message = f"no run compares the elements that the model's own Pad and Slice take (nodes: {len(crops)})"
        yield Finding(rule="operator", severity="note", node=node_label(crops[0]), message=message)
    for replaced_kind, node in untold.items():
        place = f"in place of a {replaced_kind} with it" if replaced_kind else "that the backend's post-pass adds"
        message = f"no run compares the operators {place}"
        shown = "::".join(filter(None, kind_of(node)))
        yield Finding(rule="operator", severity="note", node=node_label(node), found=shown, message=message)
    # A rewrite drops what no output depends on.
    read = {value.producer() for value in ancestors(original.model.graph.outputs)}
    for node in replaced:
        if node in read and node.op_identifier()[:2] in unknown and node.op_type not in written:
            yield _finding(node, "::".join(kind_of(node)), "none", "is gone")
    for domain in sorted({"", *(node.domain for node in original.nodes if node.op_identifier()[:2] in unknown)}):
        mine, other_version = (each.model.graph.opset_imports.get(domain) for each in (model, original))
        if mine != other_version:
            # A run compares what the operators of ONNX compute.
            severity: Severity = "error" if domain else "warning"
            whose = f"domain {domain}" if domain else "ONNX"
            message = f"the operators of {whose} are of another version than in the original"
            yield Finding(
                rule="operator", severity=severity, expected=str(other_version), found=str(mine), message=message
            )


def _candidates(pairs: Counterparts) -> dict[ir.Node, list[ir.Node]]:
    """For each node of the model the original's nodes that have the name of its first result, in the graph that its own
    stands for or else in any, or that have its own name; and those behind these where they are view ops."""
    theirs = [(node, value.name) for node in pairs.original.nodes for value in node.outputs if value.name]
    inside, anywhere = {(node.graph, name): node for node, name in theirs}, {name: node for node, name in theirs}
    named = pairs.original.by_name
    found: dict[ir.Node, list[ir.Node]] = {}
    for node in pairs.model.nodes:
        result, graph = first_result(node), node.graph and pairs.graphs.get(node.graph)
        alike = inside.get((graph, result)), anywhere.get(result), named.get(COPY.sub("", node_name(node)))
        found[node] = [each for each in alike if each is not None]
        found[node] += [behind for each in found[node] if (behind := behind_views(each)) is not each]
    return found


def _is_elsewhere(
    node: ir.Node, other: ir.Node, graphs: Mapping[ir.Graph, ir.Graph], whole: tuple[ir.Graph, ir.Graph]
) -> bool:
    """Whether two nodes are in graphs inside nodes that do not stand for each other, such as both branches of an If.
    `whole` are the graphs of the models."""
    stands_for = graphs.get(node.graph) if isinstance(node.graph, ir.Graph) else None
    is_inner = node.graph is not whole[0] and other.graph is not whole[1]
    return is_inner and stands_for is not None and stands_for is not other.graph


def _named(graph: object) -> str:
    return str(getattr(graph, "name", None) or "the graph")


def _results(node: ir.Node) -> list[str]:
    return [source_name(value) for value in node.outputs] or [""]


def _are_all(results: Sequence[str], other: ir.Node) -> bool:
    """Whether these names are those of the node's results, in order. A result may have the name of its copy by an
    Identity: a rewrite drops an Identity, and an output of the graph keeps its name."""
    return len(results) == len(_results(other)) and all(map(_is_copy, results, other.outputs))


def _is_copy(name: str, value: ir.Value) -> bool:
    readers = (use.node for use in value.uses())
    return name == source_name(value) or any(
        _is_copy(name, node.outputs[0]) for node in readers if kind_of(node) == _IDENTITY
    )


def _are_exchanged(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether a name has another place among these results of one operator than among those."""
    places = {name: n for n, name in enumerate(theirs) if name}
    return any(places.get(name, n) != n for n, name in enumerate(mine))


def kind_of(node: ir.Node) -> tuple[str, str]:
    """The domain and the name. An operator of relayout is ONNX's, and its name may end with layouts."""
    if node.domain == OURS:
        return "", node.op_type.partition("_")[0]
    return "" if node.domain in _OWN else node.domain, node.op_type


def _beside(graph: ir.Graph, unknown: Operators) -> Iterator[ir.Node]:
    """The nodes inside a node that also holds one of these operators: no runtime runs it."""
    for node in graph:
        inside = [inner for body in graphs_of(node) for inner in walk(body)]
        if any(inner.op_identifier()[:2] in unknown for inner in inside):
            yield from inside


def computes(node: ir.Node, constants: Set[ir.Value]) -> bool:
    """Whether a result is computed at run time and may be data: integers that are made of integers alone, or of the
    shape of a value, may be a shape or indices."""
    results = [value for value in node.outputs if value not in constants]
    if not results or (node.domain in _OWN and node.op_type in MOVES):
        return False
    if any(value.dtype is None or not value.dtype.is_integer() for value in results):
        return True
    read = [value.dtype for value in node.inputs if value is not None and value not in constants]
    return node.op_type not in _OF_SHAPES and any(dtype is not None and not dtype.is_integer() for dtype in read)


def _picks(node: ir.Node, constants: Set[ir.Value]) -> bool:
    """Whether a node picks elements of data as no conversion does. Integers may be a shape, and the scales of a Resize
    are put in the order of its data."""
    is_data = any(value not in constants and value.dtype not in (*_INTEGERS_OF_SHAPES, None) for value in node.outputs)
    if not is_data or node.domain != "" or node.op_type not in MOVES - _CONVERTS:
        return False
    uses = [use for value in node.outputs for use in value.uses()]
    return not uses or any(use.node.op_type not in _MOVED_BY_NUMBERS or use.idx == 0 for use in uses)


def _sizing(nodes: Iterable[ir.Node]) -> set[str]:
    """The names of the values that say how operators move elements, and of those that these are made of."""
    moving = (node for node in nodes if node.domain == "" and node.op_type in _MOVED_BY_NUMBERS)
    moved_by = [value for node in moving for value in node.inputs[1:]]
    return {str(value.name) for value, _ in _numbers(moved_by)}


def _numbers(values: Iterable[ir.Value | None]) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """The values, and those that they are computed from, each with its node; the shape of a value is not its data."""
    pending = [value for value in values if value is not None]
    seen = set(pending)
    while pending:
        value = pending.pop()
        node = value.producer()
        yield value, node
        for read in node.inputs if node is not None and node.op_type not in _OF_SHAPES else ():
            if read is not None and read not in seen:
                seen.add(read)
                pending.append(read)


def _check_numbers(
    node: ir.Node, kept: Mapping[ir.Node, ir.Node | None], constants: Set[ir.Value], sizing: Set[str]
) -> Iterator[Finding]:
    """Yield a finding where data decides which elements a node of the model's own takes: a fault in it may show for
    few inputs alone."""
    for value, maker in _numbers(node.inputs[1:] if node.op_type != "Concat" else ()):
        if value in constants or source_name(value) in sizing or (maker is not None and maker.op_type in _OF_SHAPES):
            continue
        if maker is None or kept.get(maker) is not None or computes(maker, constants):
            yield _finding(node, "numbers that are known, or made of shapes", str(value.name), "takes elements by data")
            return


def _finding(node: ir.Node, expected: str, found: str, what: str) -> Finding:
    message = f"this {node.op_type} {what}"
    return Finding(rule="operator", node=node_label(node), expected=expected, found=found, message=message)


def _check_attributes(node: ir.Node, other: ir.Node, *, exact: bool) -> Iterator[Finding]:
    """Yield a finding for each attribute that differs. Those of ONNX's operators that have one entry for each axis may
    be permuted (unless `exact`), and an absent one has its default."""
    defaults = {} if exact else _defaults(*kind_of(node))
    for name in sorted({*node.attributes, *other.attributes}):
        mine, theirs = (_shown(each.attributes.get(name, defaults.get(name)), exact) for each in (node, other))
        if mine == theirs or None in (mine, theirs) or (not exact and _BY_LAYOUT.search(name)):
            continue
        message = f"this {node.op_type} has another {name} than in the original"
        expected, found = (f"{name} = {text}" for text in (theirs, mine))
        yield Finding(rule="attribute", node=node_label(node), expected=expected, found=found, message=message)


def _shown(attribute: ir.Attr | None, exact: bool) -> str | None:
    """The value as a text; None for a graph, whose nodes are compared, and for a reference."""
    if attribute is None:
        return "absent"
    if attribute.is_ref() or attribute.type in _GRAPHS:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        # Texts have no bytes of their own.
        is_text = tensor.dtype == ir.DataType.STRING
        data = tuple(tensor.numpy().flat) if is_text else tensor.tobytes()
        return f"{tensor.dtype} {list(tensor.shape)} {hash(data)}"
    is_by_axis = not exact and attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS)
    return repr(sorted(attribute.value) if is_by_axis else attribute.value)


@lru_cache(maxsize=256)
def _defaults(domain: str, name: str) -> Mapping[str, ir.Attr]:
    """The defaults of the attributes of an operator."""
    if not onnx.defs.has(name, domain):
        return {}
    written = onnx.defs.get_schema(name, domain=domain).attributes.values()
    return {
        each.name: ir.serde.deserialize_attribute(each.default_value) for each in written if each.default_value.type
    }
