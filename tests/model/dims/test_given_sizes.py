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


def test_sizes_with_another_product_are_an_error() -> None:
    with pytest.raises(UsageError, match="the sizes fit no run") as caught:
        legalize(MODEL, "nhwc", dims={"h": 9, "w": 9})
    assert caught.value.expected == "h*w = 36, with which alone the model runs"
    assert caught.value.found == "h*w = 81"
