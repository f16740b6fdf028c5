"""Sizes that a caller gives to symbolic dims."""

from __future__ import annotations

import pytest
from onnx import parser

from relayout import legalize, verify
from relayout.errors import UsageError

MODEL = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[4,h,w] x) => (float[36,4] y) <int64[2] s = {4,36}> {
       a = Relu (x)  b = Reshape (a, s)  y = Transpose <perm = [1,0]> (b) }"""
)


@pytest.mark.parametrize("dims", [{"h": 9}, {"h": 9, "w": 4}, {"w": 1}])
def test_sizes_with_the_product_that_a_reshape_asks_for_are_counted_with(dims: dict[str, int]) -> None:
    legal, report = legalize(MODEL, "nhwc", dims=dims)
    assert dims.items() <= report.sizes.items()
    assert report.after.bytes == 2 * 4 * 4 * 36
    assert verify(legal, "nhwc", against=MODEL, report=report, dims=dims).passed


@pytest.mark.parametrize(("dims", "found"), [({"h": 9, "w": 9}, "h*w = 81"), ({"h": 5}, "h = 5")])
def test_sizes_with_another_product_are_an_error(dims: dict[str, int], found: str) -> None:
    with pytest.raises(UsageError, match="the sizes fit no run") as caught:
        legalize(MODEL, "nhwc", dims=dims)
    assert caught.value.expected == "h*w = 36, with which alone the model runs"
    assert caught.value.found == found


BATCHED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    g (float[n,h,h,6] x) => (float[3,6] y) <int64[2] s = {6,3}> {
       a = Reshape (x, s)  y = Transpose <perm = [1,0]> (a) }"""
)


@pytest.mark.parametrize("dims", [{}, {"h": 1}, {"n": 3}])
def test_a_batch_has_the_size_that_a_reshape_leaves_it(dims: dict[str, int]) -> None:
    legal, report = legalize(BATCHED, "onnx", dims=dims)
    assert report.sizes == {"n": 3, "h": 1}
    assert report.after.bytes == 2 * 4 * 18
    assert verify(legal, "onnx", against=BATCHED, report=report, dims=dims).passed
