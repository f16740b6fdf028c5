"""The table of layout extensions that relayout interprets. An extension in any other namespace is a black box.

`binding` maps each to a memory format; a test demands an example of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Found(NamedTuple):
    """One dimension of a tensor: its extent, a number of bytes that divides its stride, and the value of the extension
    in the tensor's present layout."""

    extent: int | str | None
    stride_factor: int
    value: int | None


class Extension(NamedTuple):
    """An extension: its text is `prefix` and a number of `unit`. A dimension has at most one `subject`."""

    prefix: str
    subject: str
    unit: str
    is_met: Callable[[int, Found], bool]
    """Whether a dimension meets the required number."""


ALIGNMENT = Extension("a=", "alignment", "bytes", lambda wanted, found: found.stride_factor % wanted == 0)
"""The stride of the dimension is a multiple of the number."""

TILE = Extension(
    "tile:", "tile size", "elements", lambda wanted, found: found.extent == wanted and found.value in (None, wanted)
)
"""The dimension is the inner part of another, with that extent."""

EXTENSIONS = (ALIGNMENT, TILE)


def extension_of(text: str) -> Extension | None:
    """The row of an extension, given as the text between its brackets; None for a black box."""
    return next((row for row in EXTENSIONS if text.startswith(row.prefix)), None)
