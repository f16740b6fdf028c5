"""onnxruntime's quantized operators take part in the choice of layouts, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers, run
from legalization_checks import checked
from random_quantized import draw_quantized

from relayout.legalization import legalize
from relayout.verification.verifier import verify

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
DOMAIN = "com.microsoft"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_random_graphs_compute_the_same_bits_at_the_least_cost(seed: int, backend: str) -> None:
    model, feeds = draw_quantized(seed)
    legal, report = legalize(model, backend)
    assert report.status == "optimal"
    assert report.after.bytes <= report.before.bytes
    for expected, found in zip(run(model, feeds), run(legal, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
    again, second = legalize(legal, backend)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)
    assert legalize(model, backend, engine="cp-sat")[1].cost == report.cost


def quantized_net(net: Net) -> str:
    """A network with a gate, a skip connection and pools, as onnxruntime's quantizer writes them; its result."""
    scale, zero = net.constant(np.array(0.04, np.float32)), net.constant(np.array(120, np.uint8))
    triple = (scale, zero)

    def own(operator: str, *names: str, **attributes: int | list[int]) -> str:
        return str(net.node(operator, *names, domain=DOMAIN, **attributes))

    def conv(value: str, inputs: int, outputs: int) -> str:
        kernel = net.rng.integers(-9, 9, (outputs, inputs, 3, 3)).astype(np.int8)
        weight = (net.constant(kernel), scale, net.constant(np.array(0, np.int8)))
        return str(net.node("QLinearConv", value, *triple, *weight, *triple, pads=[1, 1, 1, 1]))

    first = conv(net.node("QuantizeLinear", net.input("x", (1, 8, 12, 12)), *triple), 8, 16)
    gated = own("QLinearMul", first, *triple, own("QLinearSigmoid", first, *triple, *triple), *triple, *triple)
    inner = conv(own("QLinearAveragePool", gated, *triple, *triple, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 16, 16)
    skip = own("QLinearConcat", *triple, inner, *triple, gated, *triple, axis=1)
    last = conv(own("QLinearLeakyRelu", skip, *triple, *triple), 32, 8)
    pooled = own("QLinearGlobalAveragePool", last, *triple, *triple)
    total = own("QLinearAdd", last, *triple, pooled, *triple, *triple)
    return str(net.node("DequantizeLinear", total, *triple))


@pytest.mark.parametrize("backend", ["nhwc", "tpu"])
def test_a_quantized_network_is_channels_last_from_end_to_end(backend: str) -> None:
    net = Net()
    image = quantized_net(net)
    net.output(image)
    model = net.model()
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(image, onnx.TensorProto.FLOAT, [1, 8, 12, 12]))
    legal, report = legalize(model, backend, input_layouts={"x": "any"}, output_layouts={image: "any"})
    assert report.after.transposes == 0
    pools = [node for node in legal.graph.node if node.op_type.endswith("AveragePool")]
    assert [[a.i for a in node.attribute if a.name == "channels_last"] for node in pools] == [[1], [1]]
    assert verify(legal, backend, against=model).passed


def test_a_pool_of_the_model_may_get_its_channels_second() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (uint8[1,6,5,4] x) => (uint8[1,6,3,4] y) {
            s = Constant <value = float {0.5}> () z = Constant <value = uint8 {3}> ()
            t = Transpose <perm = [0,2,3,1]> (x)
            p = com.microsoft.QLinearAveragePool <kernel_shape = [3,1], channels_last = 1> (t, s, z, s, z)
            y = Transpose <perm = [0,3,1,2]> (p) }""")
    legal, report = legalize(model)
    assert report.after.transposes == 0
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (1, 6, 5, 4)).astype(np.uint8)}
    np.testing.assert_array_equal(run(legal, feeds)[0], run(model, feeds)[0])


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param("QLinearAdd (x, scales, z, x, s, z, s, z)", id="a scale for each column"),
        pytest.param("Stranger (x)", id="an operator without a row"),
    ],
)
def test_an_operator_that_is_not_known_stays_as_it_is(operator: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (uint8[2,3,5,4] a) => (uint8[2,3,5,4] y) {{
            s = Constant <value = float {{0.5}}> () z = Constant <value = uint8 {{3}}> ()
            scales = Constant <value = float[4] {{0.5, 0.25, 0.1, 0.2}}> ()
            x = Transpose <perm = [0,2,1,3]> (a)
            q = com.microsoft.{operator}
            y = Transpose <perm = [0,2,1,3]> (q) }}""")
    legal, report = legalize(model)
    assert report.after.transposes == 2
    assert [node.op_type for node in legal.graph.node if node.op_type != "Constant"][1] == operator.split()[0]


@pytest.mark.parametrize("opset", [19, 20, 21])
@pytest.mark.parametrize("backend", ["onnx", "nhwc", "canonical"])
def test_a_type_is_transposed_where_onnx_can_transpose_it(opset: int, backend: str) -> None:
    """A tensor of float8 is the smallest, but before opset 21 Transpose takes none."""
    net = Net(opset)
    small = net.node("Cast", net.input("x", (2, 3, 4, 5)), to=onnx.TensorProto.FLOAT8E4M3FN)
    net.output(net.transpose(net.node("Cast", small, to=onnx.TensorProto.FLOAT), 0, 2, 3, 1))
    model = net.model()
    legal, report = checked(model, backend)
    assert_same_numbers(model, legal)
    assert report.cost == 2 * 120 * (4 if opset < 21 else 1)


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_a_quantized_convolution_names_the_axes_of_what_others_read(backend: str) -> None:
    """The verifier knew the names and refused the Softmax, which reads NHWC data there."""
    kernel = ",".join("1" * 32)
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[2,4,4,8] x) => (y, z)
        <float s = {{0.5}}, uint8 zero = {{3}}, int8 none = {{0}}, int8[8,4,1,1] w = {{{kernel}}}> {{
        y = Softmax <axis = 0> (x)
        q = QuantizeLinear (x, s, zero)
        z = com.microsoft.QLinearConv (q, s, zero, w, s, none, s, zero) }}""")
    legal, _ = checked(model, backend)
    assert_same_numbers(model, legal)
