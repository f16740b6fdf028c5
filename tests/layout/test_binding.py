"""Layouts are bound to memory formats by axis names, and memory formats are written as layouts."""

from __future__ import annotations

import pytest

from relayout.layout.binding import bind, carrying, fill, layout_of, names_for
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, BlackBoxFormat, order_of

BLOCKED = (Atom(0), Atom(1, 16), Atom(2), Atom(1, 1, 16))


def test_a_layout_permutes_the_axes_that_it_names() -> None:
    assert bind(Layout.parse("NHWC"), "NCHW", (1, 64, 7, 7), 4) == order_of((0, 2, 3, 1))
    assert bind(Layout.parse("NHWK"), "NCHW", (1, 64, 7, 7), 4) is None


def test_wildcards_take_the_remaining_names_in_native_order() -> None:
    assert fill("N**C", "NCHW") == "NHWC"
    assert fill("N*C", "NCHW") is None
    assert fill("X***", "NCHW") is None
    assert bind(Layout.parse("**"), "CN", None, 4, native="NC") == order_of((1, 0))


def test_numbers_are_bound_without_names() -> None:
    layout = Layout.parse("{0,1}")
    assert names_for(layout, None, "01") == "01"
    assert names_for(layout, None, "012") is None
    assert bind(layout, "01", (3, 4), 4) == order_of((1, 0))


@pytest.mark.parametrize(("channels", "pads", "bound"), [(64, False, True), (24, False, False), ("C", True, False)])
def test_a_tile_divides_its_axis(channels: int | str, pads: bool, bound: bool) -> None:
    found = bind(Layout.parse("NCWc[tile:16]"), "NCW", (1, channels, 7), 4, pads=pads)
    assert found == (BLOCKED if bound else None)


def test_a_tile_that_does_not_divide_is_padded_if_allowed() -> None:
    found = bind(Layout.parse("NCWc[tile:16]"), "NCW", (1, 24, 7), 4, pads=True)
    assert found == (Atom(0), Atom(1, 16, 32), Atom(2), Atom(1, 1, 16))


def test_an_alignment_pads_the_next_inner_dimension() -> None:
    assert bind(Layout.parse("N[a=32]C"), "NC", (4, 6), 4) == (Atom(0), Atom(1, 1, 8))
    assert bind(Layout.parse("N[a=24]C"), "NC", (4, 6), 4) == order_of((0, 1))
    assert bind(Layout.parse("NC[a=8]"), "NC", (4, 6), 4) is None, "the innermost stride is the size of an element"
    assert bind(Layout.parse("N[a=32]C"), "NC", (4, "C"), 4) is None


def test_a_memory_format_is_written_as_a_layout() -> None:
    assert str(layout_of(BLOCKED, "NCW")) == "NCWc[tile:16]"
    assert str(layout_of(order_of((1, 0)), "01")) == "{0,1}"
    assert str(layout_of((Atom(0), Atom(1, 1, 8)), "NC", (4, 6))) == "NC[pad:2]"
    assert layout_of((Atom(0, 16), Atom(0, 4, 16), Atom(0, 1, 4)), "N") is None, "an axis has one inner part at most"


def test_black_boxes_are_written_on_their_dimensions() -> None:
    format_ = BlackBoxFormat(order_of((1, 0)), [(0, 1, "acme", "x")])
    assert str(carrying(Layout.parse("CN"), format_)) == "CN[acme:x]"
