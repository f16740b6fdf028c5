"""Every row of the table of extensions is parsed, bound to a memory format, and met or not met by tensors."""

from __future__ import annotations

import pytest

from relayout.backend import Backend, TensorType
from relayout.errors import LayoutSyntaxError
from relayout.layout.binding import bind
from relayout.layout.extensions import EXTENSIONS, Extension
from relayout.layout.layout import Layout

# For each prefix: a layout with the extension, its dimension and number, the layout without it, and shapes of float32
# tensors that meet it and do not.
EXAMPLES = {
    "a=": ("N[a=32]C", 0, 32, "NC", (5, 8), (5, 3)),
    "tile:": ("NCc[tile:4]", 2, 4, "NC", (5, 2, 4), (5, 2, 3)),
}


def test_every_extension_has_an_example() -> None:
    assert EXAMPLES.keys() == {row.prefix for row in EXTENSIONS}


@pytest.mark.parametrize("row", EXTENSIONS, ids=lambda row: row.prefix)
def test_an_extension_is_parsed_once_a_dimension_with_a_number(row: Extension) -> None:
    text, index, number, *_ = EXAMPLES[row.prefix]
    assert Layout.parse(text).numbers == ((index, row, number),)
    assert str(Layout.parse(text)) == text
    for wrong in (f"{row.prefix}0", f"{row.prefix}x", f"{row.prefix}{number}][{row.prefix}{number}"):
        with pytest.raises(LayoutSyntaxError):
            Layout.parse(text.replace(f"{row.prefix}{number}", wrong))


@pytest.mark.parametrize("row", EXTENSIONS, ids=lambda row: row.prefix)
def test_an_extension_changes_the_memory_format_of_a_tensor_that_lacks_it(row: Extension) -> None:
    text, _, _, plain, *_ = EXAMPLES[row.prefix]
    bound = bind(Layout.parse(text), "NC", (5, 6), 4, pads=True)
    assert bound is not None
    assert bound != bind(Layout.parse(plain), "NC", (5, 6), 4, pads=True)


@pytest.mark.parametrize("row", EXTENSIONS, ids=lambda row: row.prefix)
def test_an_extension_is_met_by_some_tensors_and_not_by_others(row: Extension) -> None:
    text, *_, meets, fails = EXAMPLES[row.prefix]
    required = Layout.parse(text)
    backend = Backend()
    assert backend.is_satisfied_by(TensorType(4, meets), required, required)
    assert not backend.is_satisfied_by(TensorType(4, fails), required, required)


def test_a_tile_is_not_met_by_another_tile() -> None:
    required, current = Layout.parse("NCc[tile:4]"), Layout.parse("NCc[tile:8]")
    assert not Backend().is_satisfied_by(TensorType(4, (5, 2, 4)), required, current)
