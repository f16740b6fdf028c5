"""Distances of results: which numbers are equal, and which are not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayout.verification.numeric.tolerance import difference, has_numbers


@pytest.mark.parametrize(
    ("right", "found"),
    [
        (np.array([2**60, 1]), np.array([2**60 + 3, 1])),
        (np.array([2**63], np.uint64), np.array([2**63 + 1], np.uint64)),
        (np.array([7, 1], ml_dtypes.int4), np.array([6, 1], ml_dtypes.int4)),
        (np.array([15], ml_dtypes.uint4), np.array([14], ml_dtypes.uint4)),
        (np.array([True]), np.array([False])),
        (np.array([3], np.int32), np.array([3], np.int64)),
    ],
)
def test_integers_are_right_or_wrong(right: np.ndarray, found: np.ndarray) -> None:
    assert not difference("y", [[right]], [[found]], quantized=False).passed
    assert difference("y", [[right]], [[right.copy()]], quantized=False).passed


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.int4])
def test_a_quantized_result_may_be_one_step_off(dtype: type) -> None:
    right, near, far = (np.array([number], dtype) for number in (5, 6, 7))
    assert difference("y", [[right]], [[near]], quantized=True).passed
    assert not difference("y", [[right]], [[far]], quantized=True).passed
    assert not difference("y", [[right]], [[near]], quantized=True, exact=True).passed


@pytest.mark.parametrize("value", [np.array([1], ml_dtypes.int4), np.array(["a"]), np.array([0.5, np.nan])])
def test_a_result_with_numbers_or_text_can_be_compared(value: np.ndarray) -> None:
    assert has_numbers([[value]])


@pytest.mark.parametrize("value", [np.array([np.nan]), np.zeros(0)])
def test_a_result_of_nan_alone_cannot(value: np.ndarray) -> None:
    assert not has_numbers([[value]])
