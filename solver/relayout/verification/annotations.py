"""The annotations of values: the memory format relative to the source, and the layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import onnx_ir as ir
from msgspec import Struct

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import ATOMS_KEY, BOUNDARY_LAYOUT_KEY, LAYOUT_KEY, ORDER_KEY
from relayout.ops.node_reader import extents_of
from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import Derivation
from relayout.verification.memory_format import MemoryFormat, memory_format_of
from relayout.verification.model_index import ModelIndex, OperatorClass
from relayout.verification.operator_facts import OURS, AxisNames, with_whole_parts
from relayout.verification.requirements import node_label


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
    marks = value.metadata_props
    if ORDER_KEY in marks or ATOMS_KEY in marks:
        yield from _check_arrangement(value)
    for key in (LAYOUT_KEY, BOUNDARY_LAYOUT_KEY):
        layout = _parsed(value, key) if key in marks else None
        if isinstance(layout, Finding):
            yield layout
        elif layout is not None and key == LAYOUT_KEY:
            # Derivation starts from the declared layout of an input; its readers may still read it otherwise.
            yield from _check_layout(value, layout, namings, names.of(value))


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


def _parsed(value: ir.Value, key: str) -> Layout | Finding:
    """The layout that an annotation is, or a finding where it is none of the value's rank."""
    text = value.metadata_props[key]
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        return _annotation(value, error.expected, f"{error.found} in {text!r}", f"{key} is not a layout")
    rank = sum(1 for i in range(layout.rank) if layout.outer(i) is None)
    # A tiled value has a dimension for each tile, or, for operators with opaque blocks, one for each axis.
    if value.shape is not None and len(value.shape) not in (rank, layout.rank):
        return _annotation(value, f"a layout of rank {len(value.shape)}", text, f"{key} does not fit the value")
    return layout


def _check_layout(
    value: ir.Value, layout: Layout, namings: Sequence[AxisNames], common: Sequence[Set[str]]
) -> Iterator[Finding]:
    """Yield a finding where a layout has other tiles than the memory format, or other names than the graph.

    `common` are the names of each axis elsewhere.
    """
    text, format_ = value.metadata_props[LAYOUT_KEY], memory_format_of(value)
    if format_ is not None and len(format_.dims) != layout.rank:
        format_ = None
    exchanges_tiles = format_ is not None and _has_tiles_exchanged(layout, format_)
    if exchanges_tiles:
        expected = f"{ATOMS_KEY} {value.metadata_props[ATOMS_KEY]}"
        yield _annotation(value, expected, text, "the annotation has other tiles of axes")
    if value.shape is None or len(value.shape) != layout.rank:
        return
    extents = extents_of(value) or ()
    known = "".join(min(each, default="*") for each in common)
    if _has_others_beside_tiles(layout, extents, common):
        message = "the annotation contradicts the names of the axes that are not tiled"
        yield _annotation(value, known, str(layout), message)
    candidates = [naming for naming in namings if len(set(naming) - {None}) == len(naming) - naming.count(None)]
    if not candidates:
        if _has_axes_exchanged(layout, extents, common, format_):
            yield _annotation(value, known, str(layout), "the annotation exchanges axes of the value")
        return
    tiles = [(extents[i], layout.tile(i)) for i in range(layout.rank)]
    if any(tile is not None and isinstance(extent, int) and extent not in (1, tile) for extent, tile in tiles):
        yield _annotation(value, text, f"shape {list(extents)}", "the annotation has tiles of another size")
    graph = _Names(candidates, common, extents, None if exchanges_tiles else format_)
    own = with_whole_parts(tuple(layout.names), value.shape)
    if not all(graph.allow(layout, place, name) for place, name in enumerate(own)):
        shown = " or ".join("".join(name or "*" for name in naming) for naming in candidates[:2])
        yield _annotation(value, shown, text, "the annotation contradicts the names of the value's axes")


class _Names(Struct, frozen=True):
    """The names of a value's axes by the graph: `candidates` by its producer and readers, `common` by any operator.

    `format_` is the memory format where it distinguishes the tiles that a layout may have exchanged.
    """

    candidates: Sequence[AxisNames]
    common: Sequence[Set[str]]
    extents: Sequence[int | str | None]
    format_: MemoryFormat | None

    def allow(self, layout: Layout, place: int, name: str | None) -> bool:
        """Whether the axis at a place of the layout may have this name: that of the layout, or, for a tile that is all
        of an axis, the axis's."""
        known = {each for naming in self.candidates if (each := naming[place]) is not None}
        # An axis of extent 1 may be anywhere, under any name.
        if name is None or name == "*" or self.extents[place] == 1 or not known or name in known:
            return True
        return (
            layout.names[place] in self.common[place]
            or (known == {name.swapcase()} and self._has_no_other_part(layout, name))
            or self._is_tile_of_fused(layout, place, known)
            or self._is_told_by_format(layout, place, known)
        )

    def _has_no_other_part(self, layout: Layout, name: str) -> bool:
        """Whether the graph has no name, or none yet, for the part of an axis that it does not take this one for.

        Then the two names may be the axis and its inner tile: tiles are fused along another dimension, the outer part.
        """
        if name.isupper():
            return all(name not in naming for naming in self.candidates)
        return name.upper() in layout.names and self._is_unnamed(layout, name.upper())

    def _is_tile_of_fused(self, layout: Layout, place: int, known: Set[str]) -> bool:
        """Whether a tile of an axis has the name of another axis, of extent 1, with which the graph fuses it: the rows
        of a block are the channels where an image has one channel."""
        units = {name for name, extent in zip(layout.names, self.extents, strict=True) if extent == 1}
        is_tile = layout.outer(place) is not None
        return is_tile and all(name in units and self._is_unnamed(layout, name) for name in known)

    def _is_told_by_format(self, layout: Layout, place: int, known: Set[str]) -> bool:
        """Whether the memory format says which tile of an axis this is, and the graph names it as another.

        As the axis's other tile: an operator that accepts the tiles of an axis in any order reads the first as the
        outer one. Or as an axis of its own, which the layout does not have: the source splits it off by a Reshape that
        the legal model does not need.
        """
        own = layout.names[place]
        other = own.swapcase()
        if self.format_ is None or len(self.format_.dims[place]) != 1 or other == own or other not in layout.names:
            return False
        return known == {other} or (not self.format_.dims[place][0].is_whole and known.isdisjoint(layout.names))

    def _is_unnamed(self, layout: Layout, name: str) -> bool:
        """Whether the graph has no name for the layout's axis of this name."""
        return all(naming[layout.names.index(name)] is None for naming in self.candidates)


def _has_axes_exchanged(
    layout: Layout, extents: Sequence[int | str | None], common: Sequence[Set[str]], format_: MemoryFormat | None
) -> bool:
    """Whether an axis has a name that operators give another axis of the value, and not this one.

    This is for values whose own producers and readers name no axis, as between a Reshape that fuses tiles and an Add.
    An axis whose extent is or may be 1 may be anywhere. Two tiles of one axis may have each other's names where the
    memory format tells their order.
    """
    wide = [i for i, extent in enumerate(extents) if isinstance(extent, int) and extent != 1]
    dims = () if format_ is None else format_.dims
    told = {i for i, group in enumerate(dims) if len(group) == 1 and not group[0].is_whole}
    return any(
        layout.names[i] in common[j] and not ({i, j} <= told and (layout.outer(i) == j or layout.outer(j) == i))
        for i in wide
        if common[i] and layout.names[i] not in common[i]
        for j in wide
    )


def _has_others_beside_tiles(layout: Layout, extents: Sequence[int | str | None], common: Sequence[Set[str]]) -> bool:
    """Whether an untiled axis beside tiles of another one has other names elsewhere."""
    tiled = {name.upper() for i, name in enumerate(layout.names) if layout.outer(i) is not None}
    return bool(tiled) and any(
        name.upper() not in tiled | {"*"} and extents[i] != 1 and common[i] and name not in common[i]
        for i, name in enumerate(layout.names)
    )


def _has_tiles_exchanged(layout: Layout, format_: MemoryFormat) -> bool:
    """Whether the layout has tiles of an axis where the memory format has none, or has its outer tile as the inner one.
    Tiles that the source has as axes are whole there."""
    for i, group in enumerate(format_.dims):
        outer = layout.outer(i)
        other = format_.dims[outer] if outer is not None else ()
        if len(group) != 1 or len(other) != 1 or (group[0].is_whole and other[0].is_whole):
            continue
        if group[0].axis != other[0].axis or group[0].inner > other[0].inner:
            return True
    return False


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
            yield from _pooled(names) if is_open else [names]


def _pooled(names: AxisNames) -> Iterator[AxisNames]:
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
