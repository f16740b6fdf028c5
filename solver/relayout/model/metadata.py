"""What a model's value is noted to carry: the black boxes of the layout in its metadata."""

from __future__ import annotations

import onnx_ir as ir

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Box

__all__ = ["LAYOUT_KEY", "noted_boxes"]

LAYOUT_KEY = "relayout.layout"


def noted_boxes(value: ir.Value) -> tuple[Box, ...]:
    """The boxes by the value's own axes; nothing where the note is no layout."""
    try:
        layout = Layout.parse(value.metadata_props.get(LAYOUT_KEY, ""))
    except LayoutSyntaxError:
        return ()
    return tuple(sorted((i, 1, *box) for i in range(layout.rank) for box in layout.boxes(i)))
