"""Layout annotations: the format of each value that differs from the source's, in the value's metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod

import onnx_ir as ir

from relayout.candidates.alternatives import in_source
from relayout.candidates.boundary_options import is_wildcard
from relayout.layout.conversion import Dims, flat
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, has_open_stride
from relayout.layout.metadata_keys import ATOMS_KEY, BOUNDARY_LAYOUT_KEY, LAYOUT_KEY, ORDER_KEY
from relayout.layout.view import View
from relayout.model.serialization import QUANTIZATION

_ATOM = re.compile(r"(\d{1,18})(?::(\d{1,18}):(\d{1,18}))?", re.ASCII)


def annotation_of(own: Dims, extents: Sequence[Extent], earlier: View | None, layout: Layout | None) -> dict[str, str]:
    """The annotation of a value with these dimensions, in atoms of the source's axes of these extents, by metadata key.
    It is composed with `earlier`, that of the source's value by an earlier run. Where a stride is open there is none:
    the annotation has numbers."""
    own = _with_whole_units(own, extents)
    if any(map(has_open_stride, flat(own))):
        return {}
    composed = tuple(_of_earlier(group, earlier) for group in own) if earlier is not None else own
    groups = [group for group in composed if group is not None]
    if len(groups) < len(composed):
        return {}
    found: dict[str, str] = {}
    if composed == in_source(len(extents) if earlier is None else len(earlier.base_extents)):
        if layout is None or not any(layout.boxes(i) for i in range(layout.rank)):
            return {}
    elif all(len(group) == 1 and group[0].is_whole for group in groups):
        found[ORDER_KEY] = ",".join(str(group[0].axis) for group in groups)
    else:
        # A tile that is the whole axis has an outer tile of extent 1, which has no position.
        kept = [[atom for atom in group if atom.inner != atom.outer] for group in groups]
        found[ATOMS_KEY] = ",".join("+".join(map(_text, group)) for group in kept)
    if layout is not None and layout.rank == len(own):
        found[LAYOUT_KEY] = str(layout)
    return found


def _with_whole_units(own: Dims, extents: Sequence[Extent]) -> Dims:
    """The dimensions in which an axis of extent 1 is one whole: of its tiles, all of one element, the first stands for
    the axis."""
    seen: set[int] = set()
    found: list[MemoryFormat] = []
    for group in own:
        kept: list[Atom] = []
        for atom in group:
            is_unit = extents[atom.axis] == 1
            if not is_unit or atom.axis not in seen:
                kept.append(Atom(atom.axis) if is_unit else atom)
            seen.add(atom.axis)
        found.append(tuple(kept))
    return tuple(found)


def forget(value: ir.Value) -> None:
    """Remove the annotation of an earlier run."""
    props = value.metadata_props
    for key in (ORDER_KEY, ATOMS_KEY, LAYOUT_KEY) if props else ():
        props.pop(key, None)


def keep_notes(made: ir.Value | ir.Node, source: ir.Value | ir.Node) -> None:
    """Give a value that takes over the name of the source's, or a node in a node's place, the notes of other tools."""
    made.doc_string = made.doc_string or source.doc_string
    noted = {key: text for key, text in source.metadata_props.items() if not key.startswith("relayout.")}
    made.metadata_props.update(noted)
    if QUANTIZATION in source.meta:
        made.meta[QUANTIZATION] = source.meta[QUANTIZATION]


def annotate_boundary(
    graph: ir.Graph, layouts: Mapping[tuple[str, str], str | None], wanted: Mapping[tuple[str, str], str]
) -> None:
    """Replace the declared layout of each input and output that the solver chose, or that is spelled by axis numbers,
    by the chosen layout, or remove it. A wanted layout with black boxes is always written.

    `layouts` and `wanted` are by side, "input" or "output", and name.
    """
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            key, props = (side, value.name or ""), value.metadata_props
            if _has_boxes(wanted.get(key, "")):
                props[BOUNDARY_LAYOUT_KEY] = wanted[key]
                continue
            declared = props.get(BOUNDARY_LAYOUT_KEY, "")
            if not (is_wildcard(declared) or declared.lstrip().startswith("{")):
                continue
            chosen = layouts.get(key) or ""
            if chosen.isalpha() and len(chosen) == len(value.shape or ()):
                props[BOUNDARY_LAYOUT_KEY] = chosen
            else:
                del props[BOUNDARY_LAYOUT_KEY]


def annotate_run(model: ir.Model, facts: Mapping[str, str | int | None]) -> None:
    """Replace the facts of an earlier run in the model's metadata by these, by key; None: not known."""
    for key, fact in facts.items():
        model.metadata_props.pop(key, None)
        if fact is not None:
            model.metadata_props[key] = str(fact)


def _has_boxes(wanted: str) -> bool:
    layout = Layout.any(0) if not wanted or is_wildcard(wanted) else Layout.parse(wanted)
    return any(layout.boxes(i) for i in range(layout.rank))


def noted_view(value: ir.Value, extents: tuple[Extent, ...]) -> View | None:
    """The annotation of an earlier run, as a view of that run's source. None without a valid annotation, and where the
    source's extents cannot be derived from the value's."""
    props = value.metadata_props
    groups = _noted(props.get(ORDER_KEY) or props.get(ATOMS_KEY, "")) if props else None
    if groups is None or len(groups) != len(extents):
        return None
    atoms = sorted(chain.from_iterable(groups))
    ends: dict[int, Extent] = {}
    reached = dict.fromkeys(range(len({atom.axis for atom in atoms})), 1)
    for atom in atoms:
        if reached.get(atom.axis) != atom.inner:
            return None
        reached[atom.axis] = atom.outer
    if any(reached.values()):
        return None
    for group, extent in zip(groups, extents, strict=True):
        closed = prod(atom.outer // atom.inner for atom in group if atom.outer)
        for atom in group:
            if group == (atom,) and atom.is_whole:
                ends[atom.axis] = extent
            elif not atom.outer:
                # The one atom of unknown extent in a dimension has the rest of the extent.
                alone = isinstance(extent, int) and sum(not other.outer for other in group) == 1
                ends[atom.axis] = extent // closed * atom.inner if alone else None  # type: ignore[operator]
    return View.of(groups, extents, tuple(ends[axis] for axis in range(len(ends))))


def _noted(text: str) -> Dims | None:
    """The dimensions of an annotation."""
    if not text:
        return None
    found: list[MemoryFormat] = []
    for part in text.split(","):
        matches = [_ATOM.fullmatch(atom) for atom in part.split("+")] if part else []
        atoms = [Atom(*(int(number) for number in match.groups() if number is not None)) for match in matches if match]
        if len(atoms) != len(matches) or any(atom.inner < 1 for atom in atoms):
            return None
        found.append(tuple(atoms))
    return tuple(found)


def _of_earlier(group: MemoryFormat, earlier: View) -> MemoryFormat | None:
    """A group of a value's atoms in the axes of the earlier source; None where they do not nest."""
    if len(group) == 1 and group[0].is_whole:
        return earlier.axes[group[0].axis]
    units = [earlier.axes[atom.axis] for atom in group if earlier.extents[atom.axis] == 1]
    rest = earlier.to_base(tuple(atom for atom in group if earlier.extents[atom.axis] != 1))
    return (*rest, *chain.from_iterable(units)) if rest is not None else None


def _text(atom: Atom) -> str:
    return str(atom.axis) if atom.is_whole else f"{atom.axis}:{atom.inner}:{atom.outer}"
