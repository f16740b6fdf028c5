"""The operands of each operator: the same values as those of its counterpart in the original.

A run shows an operand that was exchanged for another only if the two differ far enough, in a branch that is taken. So
operands are followed back here, through all that only moves elements, to the value that is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from itertools import zip_longest

import onnx_ir as ir

from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY, WRITTEN_FOR_KEY
from relayout.report.schema import Finding
from relayout.verification.counterparts import (
    VIEWS,
    Counterparts,
    ancestors,
    behind_transposes,
    counterpart,
    moved_from,
    source_name,
    through_transposes,
)
from relayout.verification.memory_format import MemoryFormat, memory_format_of, whole
from relayout.verification.operator_facts import OURS, constant_ints
from relayout.verification.operators_kept import MOVES, computes
from relayout.verification.requirements import node_label, noted_order

# A rewrite also pads and crops, and drops an operator that does nothing to its operand.
_PASSED = VIEWS | {"Pad", "Slice", "Dropout", "Expand", "DepthToSpace", "SpaceToDepth"}


def check_dataflow(pairs: Counterparts, *, fuses: bool) -> Iterator[Finding]:
    """Yield a finding for each operand, and each result of a graph, that is another value, and for each order
    that a node notes of an operand and that is not the one that it has.

    `fuses`: the backend has a post-pass, which may add operators.
    """
    scopes, constants = pairs.scopes, pairs.constants
    kept = {node: other for node, other in pairs.nodes.items() if other.op_type == node.op_type}
    added = _added(pairs, kept) if not fuses else set()
    for node, other in kept.items():
        yield from _check_noted_orders(node, other, constants)
        if node.op_type in VIEWS:
            continue
        yield from _check_results(node, other, scopes[other.graph])
        for n, (mine, theirs) in enumerate(zip_longest(node.inputs, other.inputs)):
            if (mine is None) != (theirs is None) and (mine or theirs) not in constants:
                # A constant may be the default of an operand that is left out.
                yield _another(node, n, *(str(each.name) if each else "none" for each in (theirs, mine)))
            if mine is None or theirs is None:
                continue
            if mine in constants and theirs not in constants:
                read = _other_constant(mine, theirs, scopes[other.graph])
            elif mine in constants:
                # Its data is compared. A rewrite may compute a copy of it, in another order.
                read = _added_before(mine, scopes[other.graph], kept, added, copied=True)
            else:
                read = _other_read(mine, theirs, scopes[other.graph], kept, added, constants)
            if read is not None:
                yield _another(node, n, str(theirs.name), read)
    yield from _check_added(added, pairs, kept)
    for graph, source in pairs.graphs.items():
        for mine, theirs in zip(graph.outputs, source.outputs, strict=False):
            read = _other_read(mine, theirs, scopes[source], kept, added, constants)
            if read is not None:
                yield Finding(
                    rule="dataflow",
                    node=mine.name,
                    expected=str(theirs.name),
                    found=read,
                    message=f"the output {mine.name} is computed otherwise than in the original",
                )


def _check_results(node: ir.Node, other: ir.Node, scope: Mapping[str, ir.Value]) -> Iterator[Finding]:
    """Yield a finding for each result that has the name of another value of the original."""
    for mine, theirs in zip(node.outputs, other.outputs, strict=False):
        named = counterpart(mine, scope) if mine.name else None
        if named is not None and not _is_same(named, theirs):
            message = f"this {node.op_type} makes another value than in the original"
            expected, found = str(theirs.name), str(named.name)
            yield Finding(rule="dataflow", node=node_label(node), expected=expected, found=found, message=message)


def _another(node: ir.Node, operand: int, expected: str, found: str) -> Finding:
    message = f"this {node.op_type} reads another value than in the original"
    return Finding(
        rule="dataflow", node=node_label(node), operand=operand, expected=expected, found=found, message=message
    )


def _other_read(
    mine: ir.Value,
    theirs: ir.Value,
    scope: Mapping[str, ir.Value],
    kept: Mapping[ir.Node, ir.Node],
    added: Set[ir.Node],
    constants: Set[ir.Value],
) -> str | None:
    """The value that `mine` is made from, as a text, where the original makes `theirs` from another one."""
    # One that is added may have the name of a value of the original.
    if (found := _added_before(mine, scope, kept, added)) is not None:
        return found
    root = _root(mine, kept)
    if root is None:
        return None
    read, node = counterpart(root, scope), root.producer()
    if read is None and node is not None:
        results = kept[node].outputs if node in kept else ()
        read = results[root.index() or 0] if len(results) == len(node.outputs) else None
    return None if read is None or read in constants or _is_same(read, theirs) else str(read.name)


def _other_constant(mine: ir.Value, theirs: ir.Value, scope: Mapping[str, ir.Value]) -> str | None:
    """The constant of the original that this one is, where the original reads a value that it computes."""
    read = counterpart(_root(mine, ()) or mine, scope)
    if read is None:
        # A rewrite may know a shape that the original computes.
        return str(mine.name) if mine.dtype is not None and not mine.dtype.is_integer() else None
    return None if _is_same(read, theirs) else str(read.name)


def _added_before(
    value: ir.Value,
    scope: Mapping[str, ir.Value],
    kept: Mapping[ir.Node, ir.Node],
    added: Set[ir.Node],
    *,
    copied: bool = False,
) -> str | None:
    """The value that this one is made from by what only moves elements, as a text, where its operator is added and
    cannot be one that computes the value of that name in place of the original's: what makes that one is here too.
    Unless `copied`, the operator is no copy either, of one in the original."""
    root = _root(value, kept)
    node = root.producer() if root is not None else None
    if root is None or node is None or node not in added:
        return None
    named = counterpart(root, scope)
    maker = named.producer() if named is not None else None
    if maker is not None and (maker not in kept.values() or (copied and maker.op_type == node.op_type)):
        return None
    if copied and named is None:
        return None
    return f"{root.name}, of a {node.op_type} that the original does not have"


def _check_added(added: Set[ir.Node], pairs: Counterparts, kept: Mapping[ir.Node, ir.Node]) -> Iterator[Finding]:
    """Yield a finding for each added node that computes data for what the model has of the original, or for what a
    backend wrote: a fault in it may show for few inputs alone. Nodes that make a value in place of the original's
    operator are left to the run."""
    paired = set(kept.values())

    def is_in_place(value: ir.Value) -> bool:
        graph = value.graph
        source = pairs.graphs.get(graph) if graph is not None else None
        named = counterpart(value, pairs.scopes[source]) if source is not None else None
        maker = named.producer() if named is not None else None
        # No operator that computes stands for one that only moves elements.
        return maker is not None and maker not in paired and (maker.domain != "" or maker.op_type not in _PASSED)

    def is_source(reader: ir.Node) -> bool:
        """Whether a reader is the original's, or written for one of the original's."""
        return reader.op_type not in VIEWS and (reader in kept or WRITTEN_FOR_KEY in reader.metadata_props)

    needed: set[ir.Node] = set()
    # Readers come before what they read.
    for node in reversed(pairs.model.nodes) if added else ():
        for value in node.outputs:
            readers = {use.node for use in value.uses()}
            is_read = value.is_graph_output() or not needed.isdisjoint(readers) or any(map(is_source, readers))
            if is_read and not is_in_place(value):
                needed.add(node)
    for node in pairs.model.nodes if added else ():
        if node in added and node in needed and (computes(node, pairs.constants) or _takes_steps(node)):
            message = f"the original does not have this {node.op_type}"
            found = str(node.outputs[0].name)
            yield Finding(rule="dataflow", node=node_label(node), expected="none", found=found, message=message)


def _added(pairs: Counterparts, kept: Mapping[ir.Node, ir.Node]) -> set[ir.Node]:
    """The nodes that compute, or take elements in other steps, and of whose operator the model has more that stand for
    none than the original has that none stands for. Those that a backend writes for another operator are left to the
    run."""
    paired = set(kept.values())
    # A rewrite drops what no output depends on, and writes nothing for it.
    live = {value.producer() for value in ancestors(pairs.original.model.graph.outputs)}
    gone = Counter(node.op_type for node in pairs.original.nodes if node not in paired and node in live)
    new = [node for node in pairs.model.nodes if node not in kept and node.domain in ("", OURS)]
    new = [node for node in new if node.metadata_props.get(WRITTEN_FOR_KEY) not in gone]
    new = [node for node in new if node.op_type not in MOVES or _takes_steps(node)]
    counts = Counter(node.op_type for node in new)
    return {node for node in new if counts[node.op_type] > gone[node.op_type]}


def _root(value: ir.Value, kept: Collection[ir.Node]) -> ir.Value | None:
    """The value that is computed, before all that a rewrite inserts; None behind an operator of unknown meaning."""
    while (node := value.producer()) is not None:
        is_crop = node not in kept and node.op_type in ("Pad", "Slice") and not _takes_steps(node)
        if node.domain == "" and (node.op_type in VIEWS or is_crop):
            source = node.inputs[0]
            if source is None:
                return None
            value = source
        else:
            return value
    return value


def _takes_steps(node: ir.Node) -> bool:
    """Whether a Slice reverses an axis or leaves elements out in between: a rewrite adds only those that crop."""
    steps = constant_ints(node, "steps", 4) if node.op_type == "Slice" and node.domain == "" else None
    return steps is not None and any(step != 1 for step in steps)


def _is_same(read: ir.Value, wanted: ir.Value) -> bool:
    """Whether both are made from one value by what only moves elements, or are the same computation. A rewrite may
    write the parts of a Split as Slices, which are behind what is `read`."""
    sources, wanted_sources = moved_from(read, _PASSED), moved_from(wanted, _PASSED | {"Split"})
    return any(one is other or _are_alike(one, other, 8) for one in wanted_sources for other in sources)


def _are_alike(one: ir.Value | None, other: ir.Value | None, depth: int) -> bool:
    """Whether two values are computed in the same way from the same values, as far down as `depth`."""
    if one is other or one is None or other is None:
        return one is other
    left, right = one.producer(), other.producer()
    if left is None or right is None or depth == 0 or left.op_identifier() != right.op_identifier():
        return False
    if left.outputs.index(one) != right.outputs.index(other) or len(left.inputs) != len(right.inputs):
        return False
    if _attributes(left) != _attributes(right):
        return False
    return all(_are_alike(a, b, depth - 1) for a, b in zip(left.inputs, right.inputs, strict=True))


def _attributes(node: ir.Node) -> dict[str, str]:
    return {each.name: str(each) for each in ir.serde.serialize_node(node).attribute}


def _check_noted_orders(node: ir.Node, other: ir.Node, constants: Set[ir.Value]) -> Iterator[Finding]:
    """Yield a finding for each operand whose order, as the node notes it, is not the one that it has. The data of a
    constant shows its order (see `relayout.verification.constant_data`)."""
    noted = node.metadata_props.get(OPERAND_ORDERS_KEY, "").split(";")
    pairs = [*zip_longest(node.inputs, other.inputs), *zip(node.outputs, other.outputs, strict=False)]
    for n, (text, (mine, theirs)) in enumerate(zip(noted, pairs, strict=False)):
        if not text[:1].isdecimal() or mine is None or theirs is None:
            continue
        # A result is no copy by a Transpose, for its producer is the node.
        at = behind_transposes if n < len(node.inputs) else lambda value: next(through_transposes(value))
        (root, axes), (wanted, counted) = at(mine), at(theirs)
        earlier = noted_order(theirs, other, n) or tuple(map(str, range(len(counted))))
        order = [earlier.index(axis) for axis in text.split(",") if axis in earlier]
        had, was = ((memory_format_of(v) or whole(range(len(axes)))).axes for v in (root, wanted))
        is_known = source_name(root) == source_name(wanted) and len(had) == len(was) == len(axes) == len(counted)
        is_known = is_known and mine not in constants and {*had} == {*was} and None not in had
        made = whole([was.index(had[axis]) for axis in axes]) if is_known else None
        stated = whole([counted[axis] for axis in order if axis < len(counted)])
        if sorted(order) != [*range(len(axes))] or (made is not None and _moving(made, mine) != _moving(stated, mine)):
            yield Finding(
                rule="layout-annotation",
                node=node_label(node),
                operand=n if n < len(node.inputs) else None,
                expected=str(made),
                found=str(stated),
                message=f"the noted order of this operand ({mine.name}) is not the one that it has",
            )


def _moving(format_: MemoryFormat, value: ir.Value) -> list[object]:
    """The dimensions in order, without those of extent 1, which may be anywhere."""
    extents = value.shape or ()
    return [group for group, extent in zip(format_.dims, extents, strict=False) if extent != 1]
