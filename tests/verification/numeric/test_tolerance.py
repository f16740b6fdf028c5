"""Distances of results: which numbers are equal, and which are not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayout.verification.numeric.tolerance import difference, has_numbers, quantizes


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


@pytest.mark.parametrize(
    "operator",
    ["QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QGemm", "QLinearConv"],
)
def test_operators_that_quantize_what_they_read_or_give_have_a_grid(operator: str) -> None:
    assert quantizes(operator)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_large_numbers_do_not_hide_a_slice_of_small_ones(dtype: type, axis: int) -> None:
    draw = np.random.default_rng(0).normal
    large, small, other = draw(size=(3, 6, 6)) * 1e4, draw(size=(3, 6, 6)), draw(size=(3, 6, 6))
    right, near, far = (np.concatenate([large, part], axis).astype(dtype) for part in (small, small * 1.01, other))
    assert difference("y", [[right]], [[near]], quantized=False).passed
    found = difference("y", [[right]], [[far]], quantized=False)
    assert not found.passed
    assert found.in_slice > 0.5
    assert found.max_rel <= found.tolerance or dtype is np.float32


def test_a_slice_that_noise_changes_as_much_is_not_compared() -> None:
    draw = np.random.default_rng(0).normal
    large = draw(size=(3, 36)) * 1e4
    right, far, noisy = (np.concatenate([large, draw(size=(3, 36))]).astype(np.float32) for _ in range(3))
    assert not difference("y", [[right]], [[far]], quantized=False).passed
    assert difference("y", [[right]], [[far]], [[noisy]], quantized=False).passed


def test_a_slice_of_few_numbers_may_be_rounding_alone() -> None:
    right, far = (np.array([[1e4] * 20, [part] * 15 + [0.0] * 5], np.float32) for part in (1e-2, 2e-2))
    assert difference("y", [[right]], [[far]], quantized=False).passed


def test_noise_in_one_sample_allows_nothing_in_another() -> None:
    """The sensitivity is 1, so that noise of 1 % may explain a difference where it is."""
    first, second = np.array([1.0, 2.0], np.float32), np.array([2.0, -1.0], np.float32)
    noisy = [[first * np.float32(1.01)], [second]]
    for wrong in (0, 1):
        found = [[first], [second]]
        found[wrong] = [found[wrong][0] * np.float32(1.05)]
        difference_ = difference("y", [[first], [second]], found, noisy, quantized=False)
        assert difference_.passed is (wrong == 0)
        assert (difference_.max_rel <= difference_.tolerance) is (wrong == 0)


def test_noise_that_moves_a_result_as_much_as_other_inputs_do_explains_nothing() -> None:
    right = [[np.array([[1.0, 2.0]], np.float32)], [np.array([[2.0, 1.0]], np.float32)]]
    noisy = [[np.array([[1.0, 1.9]], np.float32)], right[1]]
    wrong = [[np.array([[2.0, 1.0]], np.float32)], right[1]]
    assert difference("y", right, right, noisy, quantized=False).passed
    found = difference("y", right, wrong, noisy, quantized=False)
    assert found.max_rel < found.tolerance
    assert not found.passed


def test_no_noise_explains_another_text() -> None:
    right, wrong = np.array(["1.25", "2.5"]), np.array(["2.5", "1.25"])
    assert not difference("y", [[right]], [[wrong]], [[np.array(["1.2500001", "2.5"])]], quantized=False).passed


@pytest.mark.parametrize("order", [1, -1])
def test_the_figures_of_integers_are_those_of_the_sample_that_is_wrong(order: int) -> None:
    right, wrong = np.array([1, 2]), np.array([1, 3])
    samples = [[right], [wrong]][::order]
    found = difference("y", [[right], [right]], samples, quantized=False)
    assert (found.passed, found.max_rel, found.tolerance) == (False, 0.5, 0.0)
