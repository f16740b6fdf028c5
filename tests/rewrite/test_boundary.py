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


@pytest.mark.parametrize("layout", ["NHWC", "NCHW4c", "NCHW", "any"])
def test_the_default_of_an_input_has_the_inputs_layout(layout: str) -> None:
    values = ", ".join(map(str, range(3 * 2)))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[1,6,4,5] x, float[1,3,1,2] c) => (float[1,3,4,2] y)
            <float[1,3,1,2] c = {{{values}}}, int64[4] s = {{0,0,0,0}}, int64[4] e = {{1,3,4,2}}> {{
            a = Slice (x, s, e) y = Add (a, c) }}"""
    )
    legal, report = relayout.legalize(model, "onnx", input_layouts={"c": layout}, check=True)
    assert report.ok
    assert report.verification is not None
    assert report.verification.numeric is not None
    assert report.verification.numeric.status == "compared"
    (given,) = (value for value in legal.graph.input if value.name == "c")
    (default,) = (tensor for tensor in legal.graph.initializer if tensor.name == "c")
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == list(default.dims)
