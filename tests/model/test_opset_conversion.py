"""Models of opset 1 to 6 are lifted, with a note, and compute what their opset says."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from relayout.errors import InputError
from relayout.model.io import read_model, to_proto, warnings_of

OLD = """
<ir_version: 3, opset_import: ["" : {opset}]>
old (float[N,4,2,3] x, float[4] b, float[2,3] c) => (float[N,4,2,3] y) {{
    d = Add <axis = 1, broadcast = 1> (x, b)
    e = Mul <axis = -2, broadcast = 1> (d, c)
    y = Sub <axis = 1, broadcast = 1> (e, b)
}}
"""


def model(opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(OLD.format(opset=opset))


@pytest.mark.parametrize("opset", [1, 6])
def test_an_operand_is_broadcast_along_the_axis_that_the_old_opset_says(opset: int) -> None:
    source = model(opset)
    before = source.SerializeToString()
    lifted = read_model(source)
    assert source.SerializeToString() == before
    assert warnings_of(lifted) == (f"opset {opset} was converted to opset 7 by onnx's version converter",)
    draw = np.random.default_rng(0)
    x, b, c = (draw.normal(size=shape).astype(np.float32) for shape in ((4, 4, 2, 3), (4,), (2, 3)))
    [got] = onnxruntime.InferenceSession(to_proto(lifted).SerializeToString()).run(None, {"x": x, "b": b, "c": c})
    along = b[None, :, None, None]
    np.testing.assert_allclose(got, (x + along) * c - along, rtol=1e-5, atol=1e-5)


def test_lifting_the_opset_is_rejected_on_request_and_if_the_converter_fails() -> None:
    with pytest.raises(InputError, match="unsupported opset"):
        read_model(model(6), convert_opset=False)
    unknown = model(6)
    unknown.graph.node[0].op_type = "NoOperator"
    with pytest.raises(InputError, match="onnx's version converter lifts"):
        read_model(unknown)
