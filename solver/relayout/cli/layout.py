"""`relayout layout`."""

from __future__ import annotations

from relayout.cli.exit_status import DONE
from relayout.cli.terminal import print_result
from relayout.errors import InputError
from relayout.layout.layout import Layout

__all__ = ["show_layout"]

_NATIVE = ("NCW", "NCHW", "NCDHW", "OIW", "OIHW", "OIDHW")


def show_layout(text: str, *, tvm: bool) -> int:
    """Print the dimensions that `text` writes, and the layout in TVM's words. Raises LayoutSyntaxError."""
    layout = Layout.from_tvm(text) if tvm else Layout.parse(text)
    rows = [("dim", "name", "alignment", "tile", "extensions")]
    for index, dim in enumerate(layout.dims):
        tile = layout.tile(index)
        boxes = " ".join(f"{namespace}:{data}" for namespace, data in layout.boxes(index))
        rows.append((str(index), dim.name, str(layout.alignment(index)), "" if tile is None else str(tile), boxes))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    words = [f"layout  {layout}", f"rank    {layout.rank}", f"TVM     {_in_tvm(layout)}", f"XLA     {_in_xla(layout)}"]
    print_result("\n".join([*words, "", *lines]))
    return DONE


def _in_xla(layout: Layout) -> str:
    """Minor to major, by the numbers that axes have in ONNX's own order of these names."""
    axes = next((own for own in _NATIVE if sorted(own) == sorted(layout.names)), None)
    if axes is None and not layout.is_numbered and layout.dims:
        return "depends on the tensor's axes"
    try:
        return layout.to_minor_to_major(axes) + (f" of {axes}" if axes else "")
    except InputError as error:
        return f"has no word for it: {error.found}"


def _in_tvm(layout: Layout) -> str:
    try:
        return layout.to_tvm()
    except InputError as error:
        return f"has no word for it: {error.found}"
