"""How inputs and outputs lie, as the model's own values say it: read before the solver chooses, and settled after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from relayout.boundary_words import is_wildcard, tied_names
from relayout.graph_codec import BOUNDARY_LAYOUT_KEY
from relayout.layout import Layout
from relayout.report import BoundaryValue

__all__ = ["boundary_layouts", "settle"]


def boundary_layouts(
    model: ir.Model, input_layouts: Mapping[str, str] | None, output_layouts: Mapping[str, str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The layouts of the inputs and the outputs: the caller's, and of what no option names those that the model's own
    values declare (graph JSON's `layout`)."""
    asked = dict(input_layouts or {}), dict(output_layouts or {})
    known = [value.name or "" for value in (*model.graph.inputs, *model.graph.outputs)]
    named = {name for key in (*asked[0], *asked[1]) for name in tied_names(key, known)}
    found = []
    for values, layouts in zip((model.graph.inputs, model.graph.outputs), asked, strict=True):
        declared = {v.name: v.metadata_props.get(BOUNDARY_LAYOUT_KEY) for v in values if v.name and v.name not in named}
        found.append({name: layout for name, layout in declared.items() if layout} | layouts)
    return found[0], found[1]


def settle(graph: ir.Graph, boundary: Sequence[BoundaryValue]) -> None:
    """What was left to the solver, or said by the numbers of the source's axes, is said in names, or no longer. What
    was set to a layout with black boxes is said: nothing else of the model tells."""
    lies: dict[tuple[str, str], str | None] = {(value.side, value.name): value.layout for value in boundary}
    boxed: dict[tuple[str, str], str]
    boxed = {(value.side, value.name): value.wanted for value in boundary if value.wanted and _has_boxes(value.wanted)}
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if (side, value.name or "") in boxed:
                value.metadata_props[BOUNDARY_LAYOUT_KEY] = boxed[side, value.name or ""]
                continue
            told = value.metadata_props.get(BOUNDARY_LAYOUT_KEY, "")
            if not (is_wildcard(told) or told.lstrip().startswith("{")):
                continue
            chosen = lies.get((side, value.name or "")) or ""
            if chosen.isalpha() and len(chosen) == len(value.shape or ()):
                value.metadata_props[BOUNDARY_LAYOUT_KEY] = chosen
            else:
                del value.metadata_props[BOUNDARY_LAYOUT_KEY]


def _has_boxes(wanted: str) -> bool:
    if is_wildcard(wanted):
        return False
    layout = Layout.parse(wanted)
    return any(layout.boxes(i) for i in range(layout.rank))
