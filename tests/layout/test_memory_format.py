"""Normal forms of memory formats are compared with the order of elements in NumPy arrays."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from memory_oracle import lay_out

from relayout.layout.memory_format import (
    Atom,
    BlackBoxFormat,
    atom_extent,
    is_padded,
    normal_form,
    order_of,
    padded_extent,
    source_order,
    with_units,
)


@given(st.lists(st.sampled_from((1, 2, 3, 5)), min_size=1, max_size=4).map(tuple))
def test_two_orders_have_one_normal_form_exactly_when_they_are_the_same_memory(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    orders = [order_of(p) for p in permutations(range(len(shape)))]
    for order in orders:
        same_form = normal_form(order, shape) == normal_form(source_order(len(shape)), shape)
        assert same_form == np.array_equal(lay_out(array, order), array.ravel())


def test_consecutive_factors_merge_and_a_factor_to_the_end_has_outer_0() -> None:
    shape = (8, 32)
    assert normal_form((Atom(0), Atom(1, 16), Atom(1, 1, 16)), shape) == source_order(2)
    assert normal_form((Atom(1, 16, 32), Atom(0), Atom(1, 1, 16)), shape) == (Atom(1, 16), Atom(0), Atom(1, 1, 16))


def test_the_outer_part_of_a_symbolic_axis_is_a_quotient() -> None:
    assert atom_extent(Atom(0, 16), ("N",)) == "N//16"
    assert atom_extent(Atom(0, 16), ("32*N",)) == "2*N"
    assert atom_extent(Atom(0, 16), ("unk__0",)) is None
    assert atom_extent(Atom(0, 16), (None,)) is None
    assert atom_extent(Atom(0, 1, 16), ("N",)) == 16
    assert atom_extent(Atom(0), ("N",)) == "N"


def test_unit_axes_are_inserted_after_their_neighbour_in_the_source() -> None:
    assert with_units((Atom(2), Atom(0)), (8, 1, 4)) == (Atom(2), Atom(0), Atom(1))
    assert with_units((Atom(2),), (1, 1, 4)) == source_order(3)


def test_an_outer_stride_beyond_the_extent_is_padding() -> None:
    format_ = (Atom(0, 16, 32), Atom(0, 1, 16))
    assert padded_extent(format_, 0, (24,)) == 32
    assert is_padded(format_, (24,))
    assert not is_padded(format_, (32,))


def test_a_format_with_black_boxes_differs_from_the_one_without() -> None:
    boxed = BlackBoxFormat(source_order(2), [(0, 1, "acme", "x")])
    assert boxed != source_order(2)
    assert boxed == BlackBoxFormat(source_order(2), [(0, 1, "acme", "x")])
    assert len({boxed, BlackBoxFormat(source_order(2), [(0, 1, "acme", "y")])}) == 2
