"""Digits are the strides of an array that NumPy views without a copy."""

from __future__ import annotations

import numpy as np

from relayout.verification.order.digits import Digit, composed, elements_at, grouped, places_in, row_major, text_of


def test_digits_are_what_numpy_makes_of_positions() -> None:
    """Reshapes and Transposes drawn at random, executed on positions."""
    draw = np.random.default_rng(5)
    compared = 0
    for _ in range(300):
        shape = tuple(map(int, draw.choice([1, 2, 3, 4, 6], 3)))
        positions = np.arange(np.prod(shape)).reshape(shape)
        array, dims = positions, tuple((digit,) for digit in row_major(shape))
        for _ in range(3):
            perm = draw.permutation(array.ndim)
            array, dims = array.transpose(perm), tuple(dims[axis] for axis in perm)
            factors = [f for extent in array.shape for f in ((2, extent // 2) if extent % 2 == 0 else (extent,))]
            new = tuple(np.multiply.reduceat(factors, sorted({0, *draw.integers(0, len(factors), 2).tolist()})))
            regrouped = grouped([digit for dim in dims for digit in dim], new)
            if regrouped is None:
                break
            array, dims = array.reshape(new), regrouped
        found = elements_at(positions, dims) if len(dims) == array.ndim else None
        compared += found is not None
        assert found is None or (found == array).all()
    assert compared > 200


def test_a_reshape_that_cuts_through_an_index_has_no_digits() -> None:
    assert grouped([Digit(3, 2), Digit(2, 6)], (2, 3)) is None
    assert grouped([Digit(3, 2), Digit(2, 1)], (2, 3)) == ((Digit(2, 3),), (Digit(3, 1),))


def test_places_of_digits_are_an_order_that_another_axis_may_take_over() -> None:
    wanted, read = (Digit(2, 12), Digit(4, 1)), (Digit(4, 1), Digit(2, 12))
    order = places_in(read, wanted)
    assert order == (Digit(4, 1), Digit(2, 4))
    assert composed([order], [(Digit(8, 5),)]) == ((Digit(4, 5), Digit(2, 20)),)
    assert places_in((Digit(8, 1),), wanted) is None


def test_the_text_has_extents_and_strides() -> None:
    assert text_of([(Digit(2, 4), Digit(4, 1)), ()]) == "[2:4+4:1, 1]"
