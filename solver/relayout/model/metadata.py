"""The black boxes in the layout that a value's metadata notes."""

from __future__ import annotations

import onnx_ir as ir

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Box
from relayout.layout.metadata_keys import LAYOUT_KEY

__all__ = ["LAYOUT_KEY", "black_boxes_on"]


def black_boxes_on(value: ir.Value) -> tuple[Box, ...]:
    """The black boxes by the value's own axes; empty if the metadata has no layout."""
    try:
        layout = Layout.parse(value.metadata_props.get(LAYOUT_KEY, ""))
    except LayoutSyntaxError:
        return ()
    return tuple(sorted((i, 1, *box) for i in range(layout.rank) for box in layout.boxes(i)))
