"""The extensions that have a meaning, one row each. An extension in any other namespace is a black box.

`binding` gives each its memory format; a test demands an example of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["ALIGNMENT", "EXTENSIONS", "TILE", "Extension", "Found", "extension_of"]


class Found(NamedTuple):
    """What a tensor has in one dimension: its extent, a number of bytes that divides its stride, and the extension's
    value in the layout that the tensor is known to be in."""

    extent: int | str | None
    stride_factor: int
    value: int | None


class Extension(NamedTuple):
    """An extension: its text is `prefix` and a number of `unit`. A dimension has one `subject` at most."""

    prefix: str
    subject: str
    unit: str
    is_met: Callable[[int, Found], bool]
    """Whether a dimension meets the number that is required."""


ALIGNMENT = Extension("a=", "alignment", "bytes", lambda wanted, found: found.stride_factor % wanted == 0)
"""The stride of the dimension is a multiple of the number."""

TILE = Extension(
    "tile:", "tile size", "elements", lambda wanted, found: found.extent == wanted and found.value in (None, wanted)
)
"""The dimension is the inner part of another, with that extent."""

EXTENSIONS = (ALIGNMENT, TILE)


def extension_of(text: str) -> Extension | None:
    """The row for what stands between two brackets; None for a black box."""
    return next((row for row in EXTENSIONS if text.startswith(row.prefix)), None)
