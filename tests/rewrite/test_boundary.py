"""Inputs and outputs keep what the source declares for their axes, in any layout."""

from __future__ import annotations

import onnx
import pytest

import relayout

AXES = {"N": "DATA_BATCH", "C": "DATA_CHANNEL", "H": "DATA_FEATURE_HEIGHT", "W": "DATA_FEATURE_WIDTH"}
MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4, 6, 8] x) => (float[N, 4, 6, 8] y) <float[4, 4, 1, 1] w = {%s}> { c = Conv(x, w) y = Relu(c) }"""


def denoted() -> onnx.ModelProto:
    """A model that denotes the dims of its input and output."""
    model = onnx.parser.parse_model(MODEL % ", ".join(map(str, range(16))))
    for value in (*model.graph.input, *model.graph.output):
        for dim, denotation in zip(value.type.tensor_type.shape.dim, AXES.values(), strict=True):
            dim.denotation = denotation
    return model


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize(("x", "y"), [("NCHW", "NCHW"), ("NHWC", "NHWC"), ("NCHW", "CHWN")])
def test_dims_keep_their_denotations(backend: str, x: str, y: str) -> None:
    legal, _ = relayout.legalize(denoted(), backend, input_layouts={"x": x}, output_layouts={"y": y}, check=True)
    for value, layout in ((legal.graph.input[0], x), (legal.graph.output[0], y)):
        dims = value.type.tensor_type.shape.dim
        assert [dim.denotation for dim in dims] == [AXES[name] for name in layout]


def test_outputs_and_weights_keep_the_notes_of_other_tools() -> None:
    source = denoted()
    source.graph.node.pop()
    source.graph.node[0].output[0] = "y"
    output = source.graph.output[0]
    output.doc_string = "probabilities"
    output.metadata_props.add(key="vendor.range", value="0..1")
    for name in ("y", "w"):
        annotation = source.graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    legal, _ = relayout.legalize(source, "nhwc")
    assert legal.graph.node[-1].op_type == "Transpose"
    (result,) = legal.graph.output
    assert result.doc_string == "probabilities"
    assert {prop.key: prop.value for prop in result.metadata_props} == {"vendor.range": "0..1"}
    # The weights are laid out anew, under their own name.
    assert {"y", "w"} <= {each.tensor_name for each in legal.graph.quantization_annotation}
