"""Transposes without a permutation: the permutation is deduced from a source and a target layout.

    Transpose         source_layout="NHWC", target_layout="NCHW"      Glow's document: "remove shuffle arrays"
    layout_transform  src_layout="NCHW", dst_layout="NCHW16c"         TVM's operator, blocks included

Both are operators of the domain `relayout`, accepted in the standard one too, with either pair of attributes. A pure
permutation becomes a Transpose. Packing or unpacking of an axis becomes Reshape, Transpose, Reshape; an axis that is
packed needs a known extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx import helper

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.binding import bind
from relayout.layout.conversion import Dims
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, normal_form
from relayout.model.emit import Emitter, Physical
from relayout.model.graph_structure import Kind
from relayout.model.operator_schema import LAYOUT_PAIRS
from relayout.model.proto_graphs import copied, extents_by_name, opset_of, replace_entries, subgraphs_of, value_names
from relayout.ops.operand_roles import OWN_DOMAIN

OPERATORS = {(domain, operator) for domain in ("", OWN_DOMAIN) for operator in ("Transpose", "layout_transform")}
PACKING = (OWN_DOMAIN, "layout_transform")
NAMES = frozenset(name for pair in LAYOUT_PAIRS for name in pair)

Infer = Callable[[onnx.ModelProto], onnx.ModelProto]
Extents = Sequence[int | None]


def deduce_permutations(proto: onnx.ModelProto, infer: Infer, kinds: Iterable[Kind]) -> onnx.ModelProto:
    """`proto` with a `perm` for every Transpose that is given by layouts; unchanged if there is none.

    `infer` fills in shapes, and is called only if axes are packed or unpacked. `kinds` are those of the nodes. Raises
    InputError with the node, the expectation and the finding.
    """
    if not any(_may_say_layouts(domain, operator, given) for domain, operator, *_, given in kinds):
        return proto
    asked = [node for graph in subgraphs_of(proto.graph) for node in graph.node if _says_layouts(node)]
    packing = None
    for node in asked:
        source, target = _layouts(node)
        if _is_plain(source) and _is_plain(target):
            _become_transpose(node, source, target)
        else:
            node.domain, node.op_type = PACKING
            packing = packing or node
    names, opset = set[str]().union(*map(value_names, subgraphs_of(proto.graph))), opset_of(proto.opset_import)
    while packing is not None:
        # A chain of them is written out one after the other: each makes the shape of the next one known.
        shapes = _shapes(infer(copied(proto)))
        written = [_write_out(graph, shapes, names, opset) for graph in subgraphs_of(proto.graph)]
        left = [n for graph in subgraphs_of(proto.graph) for n in graph.node if (n.domain, n.op_type) == PACKING]
        packing = left[0] if left else None
        if packing is not None and not any(written):
            raise _wrong(packing, "a tensor of known rank", f"'{packing.input[0]}', of which no shape is known")
    return proto


def _says_layouts(node: onnx.NodeProto) -> bool:
    given = [(attribute.name, attribute.type) for attribute in node.attribute]
    return (node.domain, node.op_type) in OPERATORS and _may_say_layouts(node.domain, node.op_type, given)


def _may_say_layouts(domain: str, operator: str, given: Iterable[tuple[str, int]]) -> bool:
    """Whether a node with these attributes has layouts in place of a permutation, if it is one of `OPERATORS`."""
    if operator != "Transpose" or domain == OWN_DOMAIN:
        return operator in ("Transpose", "layout_transform")
    return not NAMES.isdisjoint(name for name, _ in given)


def _layouts(node: onnx.NodeProto) -> tuple[Layout, Layout]:
    """The layouts that a node names, each dimension of one a dimension of the other."""
    given = {attribute.name: attribute for attribute in node.attribute}
    pair = next((pair for pair in LAYOUT_PAIRS if any(name in given for name in pair)), LAYOUT_PAIRS[0])
    found = [_layout(node, name, given.get(name)) for name in pair]
    source, target = found
    if len(node.input) != 1 or len(node.output) != 1:
        raise _wrong(node, "one input and one output", f"{len(node.input)} and {len(node.output)}")
    if sorted(_axes(source)) != sorted(_axes(target)):
        expected = f"the dimensions of {pair[0]} '{source}' in another order"
        raise _wrong(node, expected, f"'{target}'", pair[1])
    return source, target


def _layout(node: onnx.NodeProto, name: str, attribute: onnx.AttributeProto | None) -> Layout:
    if attribute is None or attribute.type != onnx.AttributeProto.STRING:
        raise _wrong(node, "a layout, such as NHWC", "no such attribute" if attribute is None else "no string", name)
    text = attribute.s.decode("utf-8", "replace")
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        raise _wrong(node, error.expected, f"{error.found} in {text!r}, column {error.column}", name) from error
    if "*" in layout.names or any(layout.alignment(i) > 1 or layout.boxes(i) for i in range(layout.rank)):
        raise _wrong(node, "a name for each dimension, and no alignment or black box", f"'{text}'", name)
    inner = [layout.names[i].upper() for i in range(layout.rank) if layout.tile(i) is not None]
    if len(set(inner)) != len(inner):
        raise _wrong(node, "one inner part a dimension", f"'{text}'", name)
    return layout


def _wrong(node: onnx.NodeProto, expected: str, found: str, attribute: str = "") -> InputError:
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    where = f"node '{node.name}' ({kind}) of '{node.output[0] if node.output else ''}'"
    where += f", attribute '{attribute}'" if attribute else ""
    return InputError("the layouts do not describe a transposition", where=where, expected=expected, found=found)


def _is_plain(layout: Layout) -> bool:
    return all(layout.tile(i) is None for i in range(layout.rank))


def _axes(layout: Layout) -> str:
    """The names of the dimensions without those of inner parts."""
    return "".join([layout.names[i] for i in range(layout.rank) if layout.tile(i) is None])


def _become_transpose(node: onnx.NodeProto, source: Layout, target: Layout) -> None:
    perm = [source.names.index(name) for name in target.names]
    said = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), perm)
    if said != perm:
        raise _wrong(node, f"{perm}, which permutes {source} to {target}, or none", str(said), "perm")
    node.domain, node.op_type = "", "Transpose"
    replace_entries(node.attribute, [helper.make_attribute("perm", perm)])


# --- blocks ----------------------------------------------------------------------------------------------------------


def _shapes(inferred: onnx.ModelProto) -> dict[str, Extents]:
    """The extents of every value of known rank; None for a symbol."""
    found: dict[str, Extents] = {}
    for graph in subgraphs_of(inferred.graph):
        found.update({tensor.name: list(tensor.dims) for tensor in graph.initializer})
        found.update(extents_by_name(graph))
    return found


def _write_out(graph: onnx.GraphProto, shapes: Mapping[str, Extents], names: set[str], opset: int) -> bool:
    """Write out the nodes whose operand has a known shape; whether there was one."""
    ready = [(node.domain, node.op_type) == PACKING and node.input[0] in shapes for node in graph.node]
    if not any(ready):
        return False
    made: list[onnx.NodeProto] = []
    for node, now in zip(graph.node, ready, strict=True):
        copy = copied(node)
        made += _nodes(copy, shapes[copy.input[0]], Emitter(names, opset, in_function=True)) if now else [copy]
    replace_entries(graph.node, made)
    return True


def _nodes(node: onnx.NodeProto, extents: Extents, emitter: Emitter) -> Iterator[onnx.NodeProto]:
    """The nodes that convert between the layouts of a node, whose operand has these extents."""
    source, target = _layouts(node)
    if len(extents) != source.rank:
        raise _wrong(node, f"a tensor of {source.rank} dimensions, as in '{source}'", f"{len(extents)}")
    for i in range(source.rank):
        tile, extent = source.tile(i), extents[i]
        if tile is not None and extent not in (None, tile):
            raise _wrong(node, f"{tile} in dimension {i}, as in '{source}'", str(extent))
    if 0 in extents:
        # A Reshape to an extent of 0 would copy one.
        raise _wrong(node, "a tensor with elements", f"shape {list(extents)}")
    axes, read, made = _axes(source), _tiles(source), _tiles(target)
    sizes = {name: _whole(extents[source.names.index(name)], read.get(name, 1)) for name in axes}
    for name, tile in made.items():
        size = sizes[name]
        if tile != read.get(name) and (size is None or size % tile):
            expected = f"a known multiple of {tile} in dimension {source.names.index(name)}, '{name}'"
            raise _wrong(node, expected, "an unknown extent" if size is None else str(size))
    whole = tuple(sizes.values())
    before, after = (_dims(layout, axes, whole) for layout in (source, target))
    value = ir.Value(name=node.input[0])
    try:
        result = emitter.convert(Physical(value, before), after, whole, f"{node.output[0]}_step").value
    except ValueError as error:
        raise _wrong(node, "extents that are known, or can be read off one", f"shape {list(extents)}") from error
    if result is value:
        result = emitter.node("Identity", [value], {}, value, (), f"{node.output[0]}_step")
    result.name, emitter.emitted[-1].name = node.output[0], node.name
    yield from map(ir.serde.serialize_node, emitter.emitted)


def _tiles(layout: Layout) -> dict[str, int]:
    """The size of the inner part of each dimension that has one."""
    sized = ((layout.names[i].upper(), layout.tile(i)) for i in range(layout.rank))
    return {name: size for name, size in sized if size is not None}


def _whole(extent: int | None, tile: int) -> int | None:
    return None if extent is None else extent * tile


def _dims(layout: Layout, axes: str, extents: tuple[Extent, ...]) -> Dims:
    """The dimensions of a tensor in a layout, each a group of atoms of the axes."""
    atoms = bind(layout, axes, None, 1)
    assert atoms is not None  # the layout names each axis, and its inner part once
    return tuple(normal_form((atom,), extents) for atom in atoms)
