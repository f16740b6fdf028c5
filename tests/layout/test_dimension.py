"""A dimension is built from a name and extensions, which are checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strings import assert_points_into, texts

from relayout.errors import LayoutSyntaxError
from relayout.layout.dimension import Dim
from relayout.layout.extensions import ALIGNMENT, TILE
from relayout.layout.layout import Layout


@given(st.text(st.characters(), max_size=3), st.lists(texts, max_size=3))
def test_a_dimension_can_be_read_back_or_is_rejected(name: str, extensions: list[str]) -> None:
    try:
        dim = Dim(name, tuple(extensions))
    except LayoutSyntaxError as error:
        assert_points_into(error, error.text)
    else:
        assert dim.name.isdecimal() or Layout.parse(str(dim)).dims == (dim,)


@pytest.mark.parametrize(
    ("name", "extensions", "column"),
    [
        ("", (), 1),
        ("NC", (), 1),
        ("10", (), 1),
        ("8", (), 1),
        ("é", (), 1),
        ("N", ("x:a]b",), 6),
        ("N", ("a=32", "a=64"), 9),
        ("N", ("a=32", "x:", "b"), 13),
        ("N", ("a=0",), 5),
    ],
)
def test_a_dimension_that_could_not_be_parsed_cannot_be_built(
    name: str, extensions: tuple[str, ...], column: int
) -> None:
    with pytest.raises(LayoutSyntaxError) as caught:
        Dim(name, extensions)
    assert_points_into(caught.value, caught.value.text)
    assert caught.value.column == column


def test_a_dimension_has_numbers_and_black_boxes() -> None:
    dim = Dim("c", ("tile:016", "a=32", "acme:x", "acme:y"))
    assert (dim.value(TILE), dim.value(ALIGNMENT), dim.alignment) == (16, 32, 32)
    assert dim.boxes == (("tile", "016"), ("acme", "x"), ("acme", "y"))
    assert dim.attribute("acme") == "x"
    assert Dim("N").alignment == 1


def test_dimensions_are_equal_if_their_extensions_mean_the_same() -> None:
    assert Dim("N", ("a=032",)) == Dim("N", ("a=32",))
    assert Dim("N", ("acme:032",)) != Dim("N", ("acme:32",))


def test_a_replaced_extension_is_the_last_one() -> None:
    assert str(Dim("N", ("a=16", "acme:x")).replacing("a=", "32")) == "N[acme:x][a=32]"
