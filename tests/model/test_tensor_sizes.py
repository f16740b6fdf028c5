"""The sizes that are counted for dims that are not known before the run."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from relayout.model.io import read_model
from relayout.model.tensor_sizes import DimSizes


@pytest.mark.parametrize(("operator", "kernel"), [("Conv", "16, 3, 1, 1"), ("ConvTranspose", "3, 16, 1, 1")])
def test_a_batch_that_is_named_anew_behind_a_convolution_keeps_its_size(operator: str, kernel: str) -> None:
    model = read_model(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, 3, 8, 8] x, float[{kernel}] w) => (float[k, 16, 8, 8] y) <float[m, 16, 8, 8] c> {{
              c = {operator}(x, w)  y = Relu(c) }}"""
        )
    )
    counted = DimSizes(model, {"n": 5})
    assert [counted(ir.Shape([name])) for name in ("m", "k")] == [5, 5]
