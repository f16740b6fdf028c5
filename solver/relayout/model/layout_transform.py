"""Transposes without a permutation: the permutation is deduced from a source and a target layout.

    Transpose         source_layout="NHWC", target_layout="NCHW"      Glow's document: "remove shuffle arrays"
    layout_transform  src_layout="NCHW", dst_layout="NCHW16c"         TVM's operator, blocks included

Both are operators of the domain `relayout`, accepted in the standard one too, with either pair of attributes. A pure
permutation becomes a Transpose. Packing or unpacking of an axis becomes Reshape, Transpose, Reshape, which need known
extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import helper

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.model.emit import fresh_name
from relayout.model.graph_structure import Kind
from relayout.model.operator_schema import LAYOUT_PAIRS
from relayout.model.proto_graphs import copied, replace_entries, subgraphs_of
from relayout.ops.operand_roles import OWN_DOMAIN

__all__ = ["deduce_permutations"]

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
    names = _value_names(proto) if packing is not None else set()
    while packing is not None:
        # A chain of them is written out one after the other: each makes the shape of the next one known.
        shapes = _shapes(infer(copied(proto)))
        written = [_write_out(graph, shapes, names) for graph in subgraphs_of(proto.graph)]
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


def _value_names(proto: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    for graph in subgraphs_of(proto.graph):
        names.update(value.name for value in (*graph.input, *graph.initializer))
        names.update(output for node in graph.node for output in node.output)
    return names


def _shapes(inferred: onnx.ModelProto) -> dict[str, Extents]:
    """The extents of every value of known rank; None for a symbol."""
    found: dict[str, Extents] = {}
    for graph in subgraphs_of(inferred.graph):
        found.update({tensor.name: list(tensor.dims) for tensor in graph.initializer})
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                found[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    return found


def _write_out(graph: onnx.GraphProto, shapes: Mapping[str, Extents], names: set[str]) -> bool:
    """Write out the nodes whose operand has a known shape; whether there was one."""
    ready = [(node.domain, node.op_type) == PACKING and node.input[0] in shapes for node in graph.node]
    if not any(ready):
        return False
    made: list[onnx.NodeProto] = []
    for node, now in zip(graph.node, ready, strict=True):
        copy = copied(node)
        made += _steps(copy, shapes[copy.input[0]], names) if now else [copy]
    replace_entries(graph.node, made)
    return True


def _steps(node: onnx.NodeProto, extents: Extents, names: set[str]) -> Iterator[onnx.NodeProto]:
    """Reshape to one dimension for each atom, Transpose, and Reshape to the dimensions of the target."""
    source, target = _layouts(node)
    if len(extents) != source.rank:
        raise _wrong(node, f"a tensor of {source.rank} dimensions, as in '{source}'", f"{len(extents)}")
    tiles, target_tiles = _tiles(source), _tiles(target)
    for i in range(source.rank):
        tile, extent = source.tile(i), extents[i]
        if tile is not None and extent not in (None, tile):
            raise _wrong(node, f"{tile} in dimension {i}, as in '{source}'", str(extent))
    if any(tiles.get(name, size) != size for name, size in target_tiles.items()):
        # No layout has two tile sizes of one axis, so the conversion goes by way of the whole axis.
        between = Layout.from_names(_axes(source))
        first, second = copied(node), copied(node)
        for copy, ends in ((first, (source, between)), (second, (between, target))):
            layouts = zip(LAYOUT_PAIRS[0], map(str, ends), strict=True)
            replace_entries(copy.attribute, (helper.make_attribute(*layout) for layout in layouts))
        first.output[0] = second.input[0] = fresh_name(f"{node.output[0]}_unpacked", names)
        first.name = fresh_name(f"{node.name or node.output[0]}_unpack", names)
        yield from _steps(first, extents, names)
        unpacked = [_times(_extent(source, extents, name), tiles.get(name, 1)) for name in between.names]
        yield from _steps(second, unpacked, names)
        return
    both = tiles | target_tiles
    atoms, sizes = _atoms(node, source, extents, both)
    wanted, _ = _atoms(node, target, [None] * target.rank, both, check=False)
    perm = [atoms.index(atom) for atom in wanted]
    moved = [sizes[p] for p in perm]
    merged: list[int | None] = []
    place = 0
    for i in range(target.rank):
        name = target.names[i]
        width = 2 if name in both and name not in target_tiles else 1
        merged.append(_times(*moved[place : place + width]) if width == 2 else moved[place])
        place += width
    value = node.input[0]
    steps: list[tuple[str, Extents | list[int]]] = []
    if len(sizes) != len(extents):
        steps.append(("Reshape", sizes))
    steps.append(("Transpose", perm))
    if len(merged) != len(moved):
        steps.append(("Reshape", merged))
    before = list(extents)
    for number, (operator, how) in enumerate(steps):
        last = number == len(steps) - 1
        result = node.output[0] if last else fresh_name(f"{node.output[0]}_step", names)
        name = node.name if last else fresh_name(f"{node.name or node.output[0]}_{operator}", names)
        if operator == "Transpose":
            yield helper.make_node("Transpose", [value], [result], name=name, perm=perm)
            before = moved
        else:
            shape = fresh_name(f"{node.output[0]}_shape", names)
            tensor = helper.make_tensor("shape", onnx.TensorProto.INT64, [len(how)], _reshape_target(node, how, before))
            yield helper.make_node("Constant", [], [shape], name=shape, value=tensor)
            yield helper.make_node("Reshape", [value, shape], [result], name=name)
            before = list(how)
        value = result


def _tiles(layout: Layout) -> dict[str, int]:
    """The size of the inner part of each dimension that has one."""
    sized = ((layout.names[i].upper(), layout.tile(i)) for i in range(layout.rank))
    return {name: size for name, size in sized if size is not None}


def _extent(layout: Layout, extents: Extents, name: str) -> int | None:
    return extents[layout.names.index(name)]


def _times(one: int | None, other: int | None) -> int | None:
    return one * other if one is not None and other is not None else None


def _atoms(
    node: onnx.NodeProto, layout: Layout, extents: Extents, tiles: Mapping[str, int], *, check: bool = True
) -> tuple[list[str], list[int | None]]:
    """The dimensions of a layout and their extents; a dimension that the other layout packs is split in two."""
    own = _tiles(layout)
    atoms: list[str] = []
    sizes: list[int | None] = []
    for i, (name, extent) in enumerate(zip(layout.names, extents, strict=True)):
        tile = tiles.get(name)
        if tile is None or name in own:
            atoms.append(name)
            sizes.append(layout.tile(i) or extent)
            continue
        if check and (extent is None or extent % tile):
            expected = f"a known multiple of {tile} in dimension {i}, '{name}'"
            raise _wrong(node, expected, "an unknown extent" if extent is None else str(extent))
        atoms += [name, name.lower()]
        sizes += [extent // tile if extent is not None else None, tile]
    return atoms, sizes


def _reshape_target(node: onnx.NodeProto, sizes: Extents, before: Extents) -> list[int]:
    """A Reshape's target: 0 for a dimension of unknown extent that keeps its index, -1 for one that does not."""
    asked = []
    for place, size in enumerate(sizes):
        stays = list(sizes[: place + 1]) == list(before[: place + 1])
        asked.append(size if size is not None else 0 if stays else -1)
    if asked.count(-1) > 1:
        raise _wrong(node, "extents that are known, of all dimensions but one", f"shape {list(before)}")
    return asked
