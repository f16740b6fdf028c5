"""The annotations of values: the memory format relative to the source, and the layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import onnx_ir as ir

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import ATOMS_KEY, BOUNDARY_LAYOUT_KEY, LAYOUT_KEY, ORDER_KEY
from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import Derivation
from relayout.verification.memory_format import MemoryFormat, memory_format_of
from relayout.verification.model_index import ModelIndex, OperatorClass
from relayout.verification.operator_facts import OURS, AxisNames, with_whole_parts
from relayout.verification.requirements import known_extents, node_label

__all__ = ["check_annotations"]


def check_annotations(index: ModelIndex, derivation: Derivation, common: CommonNames) -> Iterator[Finding]:
    """Yield a finding for each annotation that does not parse, does not fit its value, or names other axes."""
    outer = index.model.graph
    names = common.beside_pieces
    inner = [graph for inside in index.nesting.values() for graph in inside]
    inward = [value for graph in inner for value in (*graph.inputs, *graph.initializers.values())]
    made = [value for node in index.nodes for value in node.outputs]
    sound: set[object] = set()
    for value in dict.fromkeys([*outer.inputs, *inward, *outer.initializers.values(), *made]):
        marks = index.marks_of(value)
        if not marks:
            continue
        # The checks below read no more of a value than this, except its name for a finding.
        namings = _namings(value, index, derivation)
        key = marks, index.type_of(value), namings, names.of(value)
        if key not in sound:
            found = list(_check_annotations(value, namings, names))
            if not found:
                sound.add(key)
            yield from found


def _check_annotations(value: ir.Value, namings: Sequence[AxisNames], names: CommonNames) -> Iterator[Finding]:
    if ORDER_KEY in value.metadata_props or ATOMS_KEY in value.metadata_props:
        yield from _check_arrangement(value)
    for key in (LAYOUT_KEY, BOUNDARY_LAYOUT_KEY):
        if key in value.metadata_props:
            # Derivation starts from the declared layout of an input; its readers may still read it otherwise.
            yield from _check_layout(value, key, namings if key == LAYOUT_KEY else (), names)


def _namings(value: ir.Value, index: ModelIndex, derivation: Derivation) -> tuple[AxisNames, ...]:
    """The names of the value's axes, also those that an operator gives and does not pass on; none where none are
    derived."""
    namings = derivation.candidates(value)
    return (*namings, *_stated(value, index)) if namings else ()


def _check_arrangement(value: ir.Value) -> Iterator[Finding]:
    key = ATOMS_KEY if ATOMS_KEY in value.metadata_props else ORDER_KEY
    text, format_ = value.metadata_props[key], memory_format_of(value)
    if ATOMS_KEY in value.metadata_props and ORDER_KEY in value.metadata_props:
        yield _annotation(value, ATOMS_KEY, f"{ORDER_KEY} as well", "the value has two memory formats")
    elif format_ is None and key == ORDER_KEY:
        yield _annotation(value, "axes such as 0,2,3,1", text, "the order is not a list of axes")
    elif format_ is None:
        yield _annotation(value, "atoms such as 0,1:16:0,2,1:1:16", text, "the order is not a list of atoms")
    elif key == ORDER_KEY and format_.permutation is None:
        yield _annotation(value, "each axis once", text, "the order does not fit the value")
    elif (fault := format_.fault()) is not None:
        yield _annotation(value, "all digits of every axis", f"{text}: {fault}", "the order is not one of all atoms")
    elif value.shape is not None and not format_.may_have(tuple(value.shape)):
        yield _annotation(value, f"an order that leads to {value.shape}", text, "the order does not fit the value")


def _is_part_and_whole(
    layout: Layout, name: str | None, known: set[str | None], candidates: Sequence[AxisNames]
) -> bool:
    """Whether the one may be the inner tile of the axis that the other names. Tiles are fused along another dimension:
    the axis's outer part, for which the graph has no name or none yet."""
    if name is None:
        return False
    if known == {name.upper()} and name != name.upper():
        place = layout.names.find(name.upper())
        return place >= 0 and all(naming[place] is None for naming in candidates)
    return known == {name.lower()} and all(name not in naming for naming in candidates)


def _is_joined(
    layout: Layout,
    place: int,
    known: set[str | None],
    candidates: Sequence[AxisNames],
    extents: Sequence[int | str | None],
) -> bool:
    """Whether a tile of an axis has the name of another axis, of extent 1, with which the graph fuses it: the rows of a
    block are the channels where an image has one channel."""
    if layout.outer(place) is None:
        return False
    units = {layout.names[i] for i in range(layout.rank) if extents[i] == 1}
    return all(
        name in units and all(naming[layout.names.index(name)] is None for naming in candidates)
        for name in known
        if name is not None
    )


def _check_layout(value: ir.Value, key: str, namings: Sequence[AxisNames], names: CommonNames) -> Iterator[Finding]:
    text = value.metadata_props[key]
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        yield _annotation(value, error.expected, f"{error.found} in {text!r}", f"{key} is not a layout")
        return
    rank = sum(1 for i in range(layout.rank) if layout.outer(i) is None)
    # A tiled value has a dimension for each tile, or, for operators with opaque blocks, one for each axis.
    if value.shape is not None and len(value.shape) not in (rank, layout.rank):
        yield _annotation(value, f"a layout of rank {len(value.shape)}", text, f"{key} does not fit the value")
        return
    if key == LAYOUT_KEY and _has_parts_exchanged(layout, memory_format_of(value)):
        expected = f"{ATOMS_KEY} {value.metadata_props[ATOMS_KEY]}"
        yield _annotation(value, expected, text, "the annotation has other tiles of axes")
    if key == LAYOUT_KEY:
        yield from _check_whole(value, layout, names)
    candidates = [naming for naming in namings if len(set(naming) - {None}) == len(naming) - naming.count(None)]
    extents = known_extents(value)
    if value.shape is None or layout.rank != len(extents):
        return
    common = names.of(value)
    if not candidates and key == LAYOUT_KEY:
        yield from _check_exchanged(value, layout, common)
    if not candidates:
        return
    tiles = [(extents[i], layout.tile(i)) for i in range(layout.rank)]
    if any(tile is not None and isinstance(extent, int) and extent not in (1, tile) for extent, tile in tiles):
        yield _annotation(value, text, f"shape {list(extents)}", "the annotation has tiles of another size")
    # An axis of extent 1 may be anywhere, under any name.
    clash = [
        i
        for i, name in enumerate(with_whole_parts(tuple(layout.names), value.shape))
        if name not in (None, "*") and extents[i] != 1
        if (known := {naming[i] for naming in candidates} - {None})
        and name not in known
        and not _is_part_and_whole(layout, name, known, candidates)
        and not _is_joined(layout, i, known, candidates, extents)
        and not _is_scrambled(layout, i, known, memory_format_of(value))
        and not _is_split_off(layout, i, known, memory_format_of(value))
    ]
    # The annotation may give any of the names of an axis.
    clash = [i for i in clash if layout.names[i] not in common[i]]
    if clash:
        shown = " or ".join("".join(name or "*" for name in naming) for naming in candidates[:2])
        yield _annotation(value, shown, text, "the annotation contradicts the names of the value's axes")


def _check_exchanged(value: ir.Value, layout: Layout, common: Sequence[Set[str]]) -> Iterator[Finding]:
    """Yield a finding where an axis has a name that operators give another axis of the value, and not this one.

    This is for values whose own producers and readers name no axis, as between a Reshape that fuses tiles and an Add.
    An axis whose extent is or may be 1 may be anywhere.
    """
    wide = [i for i, extent in enumerate(known_extents(value)) if isinstance(extent, int) and extent != 1]
    format_ = memory_format_of(value)
    exchanged = [
        i
        for i in wide
        if common[i]
        and layout.names[i] not in common[i]
        and any(layout.names[i] in common[j] and not _are_parts(layout, i, j, format_) for j in wide)
    ]
    if exchanged:
        expected = "".join(min(each, default="*") for each in common)
        yield _annotation(value, expected, str(layout), "the annotation exchanges axes of the value")


def _are_parts(layout: Layout, i: int, j: int, format_: MemoryFormat | None) -> bool:
    """Whether two dimensions are parts of one axis, by the layout and by the memory format, which tells their order."""
    if format_ is None or len(format_.dims) != layout.rank or (layout.outer(i) != j and layout.outer(j) != i):
        return False
    return all(len(format_.dims[k]) == 1 and not format_.dims[k][0].is_whole for k in (i, j))


def _check_whole(value: ir.Value, layout: Layout, names: CommonNames) -> Iterator[Finding]:
    """Yield a finding for tiles of an axis that are adjacent to an untiled axis that has other names elsewhere."""
    tiled = {name.upper() for i, name in enumerate(layout.names) if layout.outer(i) is not None}
    if not tiled or value.shape is None or len(value.shape) != layout.rank:
        return
    known = names.of(value)
    for i, name in enumerate(layout.names):
        if name.upper() not in tiled | {"*"} and value.shape[i] != 1 and known[i] and name not in known[i]:
            shown = "".join(min(each, default="*") for each in known)
            message = "the annotation contradicts the names of the axes that are not tiled"
            yield _annotation(value, shown, str(layout), message)
            return


def _has_parts_exchanged(layout: Layout, format_: MemoryFormat | None) -> bool:
    """Whether the layout has tiles of an axis where the memory format has none, or has its outer tile as the inner one.
    Tiles that the source has as axes are whole there."""
    if format_ is None or len(format_.dims) != layout.rank:
        return False
    for i, group in enumerate(format_.dims):
        outer = layout.outer(i)
        other = format_.dims[outer] if outer is not None else ()
        if len(group) != 1 or len(other) != 1 or (group[0].is_whole and other[0].is_whole):
            continue
        if group[0].axis != other[0].axis or group[0].inner > other[0].inner:
            return True
    return False


def _is_scrambled(layout: Layout, place: int, known: set[str | None], format_: MemoryFormat | None) -> bool:
    """Whether the graph names a tile of an axis as the axis's other tile, and the memory format distinguishes the two.

    An operator that accepts the tiles of an axis in any order reads the first as the outer one.
    """
    if format_ is None or len(format_.dims) != layout.rank or _has_parts_exchanged(layout, format_):
        return False
    other = layout.names[place].swapcase()
    return other in layout.names and known == {other} and len(format_.dims[place]) == 1


def _is_split_off(layout: Layout, place: int, known: set[str | None], format_: MemoryFormat | None) -> bool:
    """Whether the graph names a tile of an axis as an axis of its own, which the layout does not have: the source
    splits it off by a Reshape that the legal model does not need."""
    is_tiled = layout.outer(place) is not None or any(layout.outer(i) == place for i in range(layout.rank))
    if not is_tiled or format_ is None or len(format_.dims) != layout.rank:
        return False
    (tile, *others), is_free = format_.dims[place] or (None,), known.isdisjoint(layout.names)
    is_tile = tile is not None and not others and not tile.is_whole
    return is_tile and is_free and not _has_parts_exchanged(layout, format_)


def _stated(value: ir.Value, index: ModelIndex) -> Iterator[AxisNames]:
    """The names that the operators that make and read the value give its axes, also those that do not pass them on."""
    maker = value.producer()
    ends: list[tuple[OperatorClass, AxisNames | None]] = []
    if maker is not None:
        kind = index.class_of(maker)
        ends.append((kind, kind.results[maker.outputs.index(value)]))
    for reader, n in value.uses():
        kind = index.class_of(reader)
        ends.append((kind, kind.inputs[n]))
    for kind, names in ends:
        if names is not None:
            is_open = kind.facts is not None and kind.facts.pooled and kind.node.domain != OURS
            yield from _exchanged(names) if is_open else [names]


def _exchanged(names: AxisNames) -> Iterator[AxisNames]:
    """The possible names of a globally pooled value.

    ONNX's operator determines neither which of the kept axes is which, nor of the reduced ones. One of `relayout` does.
    """
    kept = [i for i, name in enumerate(names) if name in ("N", "C")]
    reduced = [i for i in range(len(names)) if i not in kept]
    for step in range(max(len(kept), len(reduced))):
        places = {group[i]: group[(i + step) % len(group)] for group in (kept, reduced) for i in range(len(group))}
        yield tuple(names[places[i]] for i in range(len(names)))


def _annotation(value: ir.Value, expected: str, found: str, message: str) -> Finding:
    producer = value.producer()
    return Finding(
        rule="layout-annotation",
        node=node_label(producer) if producer is not None else value.name,
        expected=expected,
        found=found,
        message=f"{message} ({value.name})",
    )
