"""The verb `layout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE
from relayout.cli.terminal import print_result
from relayout.errors import InputError
from relayout.report.text_table import aligned

if TYPE_CHECKING:
    from relayout.layout.layout import Layout

_NATIVE = ("NCW", "NCHW", "NCDHW", "OIW", "OIHW", "OIDHW")


def layout(
    layout: Annotated[str, typer.Argument(metavar="LAYOUT", help="Such as 'N[a=32]HWC'.", show_default=False)],
    tvm: Annotated[bool, typer.Option("--tvm", help="Read it as TVM writes it, such as NCHW16c.")] = False,
) -> int:
    """Parse a layout string.

    The layout is printed as TVM and XLA write it, and its dimensions as a table."""
    from relayout.layout.layout import Layout

    parsed = Layout.from_tvm(layout) if tvm else Layout.parse(layout)
    rows = [("dim", "name", "alignment", "tile", "extensions")]
    for index, dim in enumerate(parsed.dims):
        tile = parsed.tile(index)
        boxes = " ".join(f"{namespace}:{data}" for namespace, data in parsed.boxes(index))
        rows.append((str(index), dim.name, str(parsed.alignment(index)), "" if tile is None else str(tile), boxes))
    heads = [f"layout  {parsed}", f"rank    {parsed.rank}", f"TVM     {_in_tvm(parsed)}", f"XLA     {_in_xla(parsed)}"]
    print_result("\n".join([*heads, "", *aligned(rows)]))
    return DONE


def _in_xla(layout: Layout) -> str:
    """The axes from minor to major, numbered in ONNX's order of these names."""
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
