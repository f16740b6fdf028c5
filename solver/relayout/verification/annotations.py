"""Annotations that say what is so: how a value lies beside the source, and the layout that it is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import ATOMS_KEY, BOUNDARY_LAYOUT_KEY, LAYOUT_KEY, ORDER_KEY
from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import Derivation, walk
from relayout.verification.memory_format import Arrangement, arrangement_of
from relayout.verification.operator_facts import OURS, AxisNames, axis_names, is_pooled, with_whole_parts
from relayout.verification.requirements import known_extents, node_label

__all__ = ["check_annotations"]


def check_annotations(model: ir.Model, derivation: Derivation) -> Iterator[Finding]:
    """Yield a finding for each annotation that is no annotation, does not fit its value, or names other axes."""
    seen: set[ir.Value] = set()
    names = CommonNames(model, beside_pieces=True)
    inward = [value for graph in model.graph.subgraphs() for value in graph.inputs]
    for value in (*model.graph.inputs, *inward, *model.graph.initializers.values(), *_made_values(model)):
        if value in seen:
            continue
        seen.add(value)
        if ORDER_KEY in value.metadata_props or ATOMS_KEY in value.metadata_props:
            yield from _check_arrangement(value)
        for key in (LAYOUT_KEY, BOUNDARY_LAYOUT_KEY):
            if key in value.metadata_props:
                yield from _check_layout(value, key, derivation, names)


def _made_values(model: ir.Model) -> Iterator[ir.Value]:
    for node in walk(model.graph):
        yield from node.outputs


def _check_arrangement(value: ir.Value) -> Iterator[Finding]:
    key = ATOMS_KEY if ATOMS_KEY in value.metadata_props else ORDER_KEY
    text, arrangement = value.metadata_props[key], arrangement_of(value)
    if ATOMS_KEY in value.metadata_props and ORDER_KEY in value.metadata_props:
        yield _annotation(value, ATOMS_KEY, f"{ORDER_KEY} as well", "the value says twice how it lies")
    elif arrangement is None and key == ORDER_KEY:
        yield _annotation(value, "axes such as 0,2,3,1", text, "the order is not a list of axes")
    elif arrangement is None:
        yield _annotation(value, "atoms such as 0,1:16:0,2,1:1:16", text, "the order is not a list of atoms")
    elif key == ORDER_KEY and arrangement.permutation is None:
        yield _annotation(value, "each axis once", text, "the order does not fit the value")
    elif (fault := arrangement.fault()) is not None:
        yield _annotation(value, "all digits of every axis", f"{text}: {fault}", "the order is not one of all atoms")
    elif value.shape is not None and not arrangement.may_have(tuple(value.shape)):
        yield _annotation(value, f"an order that leads to {value.shape}", text, "the order does not fit the value")


def _is_part_and_whole(
    layout: Layout, name: str | None, known: set[str | None], candidates: Sequence[AxisNames]
) -> bool:
    """Whether the one may be the inner part of what the other calls an axis: pieces are put together along another
    dimension, which is the axis's outer part and for which the graph has no name, or which is yet to come."""
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
    """Whether a piece of an axis has the name of another one, of extent 1, with which the graph joins it: the rows of a
    block are the channels where an image has one channel."""
    if layout.outer(place) is None:
        return False
    units = {layout.names[i] for i in range(layout.rank) if extents[i] == 1}
    return all(
        name in units and all(naming[layout.names.index(name)] is None for naming in candidates)
        for name in known
        if name is not None
    )


def _check_layout(
    value: ir.Value, key: str, derivation: Derivation, names: CommonNames
) -> Iterator[Finding]:
    text = value.metadata_props[key]
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        yield _annotation(value, error.expected, f"{error.found} in {text!r}", f"{key} is not a layout")
        return
    rank = sum(1 for i in range(layout.rank) if layout.outer(i) is None)
    # What is tiled has a dimension for each of its parts, or, for operators that hide them, for each axis.
    if value.shape is not None and len(value.shape) not in (rank, layout.rank):
        yield _annotation(value, f"a layout of rank {len(value.shape)}", text, f"{key} does not fit the value")
        return
    if key == LAYOUT_KEY and _has_parts_exchanged(layout, arrangement_of(value)):
        expected = f"{ATOMS_KEY} {value.metadata_props[ATOMS_KEY]}"
        yield _annotation(value, expected, text, "the annotation has other pieces of axes")
    if key == LAYOUT_KEY:
        yield from _check_whole(value, layout, names)
    # The declared layout of an input is what derivation starts from; readers may still take it for something else.
    namings = derivation.candidates(value) if key == LAYOUT_KEY else []
    namings += _said(value) if namings else ()
    candidates = [naming for naming in namings if len(set(naming) - {None}) == len(naming) - naming.count(None)]
    extents = known_extents(value)
    if not candidates or value.shape is None or layout.rank != len(extents):
        return
    tiles = [(extents[i], layout.tile(i)) for i in range(layout.rank)]
    if any(tile is not None and isinstance(extent, int) and extent not in (1, tile) for extent, tile in tiles):
        yield _annotation(value, text, f"shape {list(extents)}", "the annotation has tiles of another size")
    # An axis of extent 1 may stand anywhere, under any name.
    clash = [
        i
        for i, name in enumerate(with_whole_parts(tuple(layout.names), value.shape))
        if name not in (None, "*") and extents[i] != 1
        if (known := {naming[i] for naming in candidates} - {None})
        and name not in known
        and not _is_part_and_whole(layout, name, known, candidates)
        and not _is_joined(layout, i, known, candidates, extents)
        and not _is_scrambled(layout, i, known, arrangement_of(value))
    ]
    # Of an axis with several names the annotation may say any.
    common = names.of(value)
    clash = [i for i in clash if layout.names[i] not in common[i]]
    if clash:
        shown = " or ".join("".join(name or "*" for name in naming) for naming in candidates[:2])
        yield _annotation(value, shown, text, "the annotation disagrees with what the graph says of the value's axes")


def _check_whole(value: ir.Value, layout: Layout, names: CommonNames) -> Iterator[Finding]:
    """Where pieces lie beside an axis that is not cut, that axis has the names that it has elsewhere."""
    pieces = {name.upper() for i, name in enumerate(layout.names) if layout.outer(i) is not None}
    if not pieces or value.shape is None or len(value.shape) != layout.rank:
        return
    known = names.of(value)
    for i, name in enumerate(layout.names):
        if name.upper() not in pieces | {"*"} and value.shape[i] != 1 and known[i] and name not in known[i]:
            shown = "".join(min(each, default="*") for each in known)
            message = "the annotation disagrees with what the graph says of the axes that are not cut"
            yield _annotation(value, shown, str(layout), message)
            return


def _has_parts_exchanged(layout: Layout, arrangement: Arrangement | None) -> bool:
    """Whether the layout has pieces of an axis where the other annotation has none, or has its outer one as the inner.
    Pieces that the source has as axes are whole there."""
    if arrangement is None or len(arrangement.dims) != layout.rank:
        return False
    for i, group in enumerate(arrangement.dims):
        outer = layout.outer(i)
        other = arrangement.dims[outer] if outer is not None else ()
        if len(group) != 1 or len(other) != 1 or (group[0].is_whole and other[0].is_whole):
            continue
        if group[0].axis != other[0].axis or group[0].inner > other[0].inner:
            return True
    return False


def _is_scrambled(layout: Layout, place: int, known: set[str | None], arrangement: Arrangement | None) -> bool:
    """Whether the graph calls a part of an axis by the name of its other part, where the other annotation says which is
    which: what reads an axis in pieces, and minds in no way in which order they come, takes the first for the outer."""
    if arrangement is None or len(arrangement.dims) != layout.rank or _has_parts_exchanged(layout, arrangement):
        return False
    other = layout.names[place].swapcase()
    return other in layout.names and known == {other} and len(arrangement.dims[place]) == 1


def _said(value: ir.Value) -> Iterator[AxisNames]:
    """What the operators that make and read the value take its axes to be, also those that do not hand it on."""
    maker = value.producer()
    ends = [(maker, "result", maker.outputs.index(value))] if maker is not None else []
    for node, side, n in (*ends, *((reader, "input", n) for reader, n in value.uses())):
        if (names := axis_names(node, side, n)) is not None:
            yield from _exchanged(names) if is_pooled(node) and node.domain != OURS else [names]


def _exchanged(names: AxisNames) -> Iterator[AxisNames]:
    """The names of what is pooled as a whole, each of them on each axis that it might be: of the axes that are kept it
    is nothing to ONNX's operator which is which, nor of those that are reduced. One of ours says which."""
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
        message=f"value {value.name}: {message}",
    )
