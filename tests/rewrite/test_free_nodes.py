"""Layout-agnostic nodes between operators in a required layout, without Reshapes that only move dims of extent 1."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers

from relayout import legalize


def gated(kind: str, batch: int | str = "batch") -> onnx.ModelProto:
    """A squeeze-and-excitation block, as in EfficientNet."""
    net = Net(17)
    image = net.conv(net.input("x", (batch, 3, 8, 6)), 3, 16)
    gate = net.node("ReduceMean", image, axes=[2, 3], keepdims=1)
    for operator, read, made in (("Relu", 16, 4), ("Sigmoid", 4, 16)):
        gate = net.conv(quantized(net, gate) if kind == "quantized" else gate, read, made, kernel=1)
        gate = net.node("Mul", gate, net.node("Sigmoid", gate)) if kind == "swish" else net.node(operator, gate)
    net.output(net.conv(net.node("Mul", image, gate), 16, 8))
    return net.model()


def quantized(net: Net, value: str) -> str:
    step, zero = net.constant(np.float32(0.05)), net.constant(np.int8(0))
    return str(net.node("DequantizeLinear", net.node("QuantizeLinear", value, step, zero), step, zero))


@pytest.mark.parametrize("backend", ["nhwc", "canonical"])
@pytest.mark.parametrize("kind", ["plain", "quantized", "swish"])
@pytest.mark.parametrize("batch", ["batch", 2, 1])
def test_a_gate_has_its_channels_last_as_its_image(batch: int | str, kind: str, backend: str) -> None:
    """With channels first its Reshapes would cost no bytes, but a node each."""
    model = gated(kind, batch)
    legal, report = legalize(model, backend, check=True)
    assert report.after.transposes == 2
    assert len(legal.graph.node) == len(model.graph.node) + 2
    assert "Reshape" not in {node.op_type for node in legal.graph.node}
    assert report.verification is not None
    assert report.verification.passed
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend)
    assert (again, second.cost) == (legal, report.cost)


def test_a_gate_that_is_an_output_is_as_in_the_source() -> None:
    net = Net(17)
    pooled = net.node("GlobalAveragePool", net.conv(net.input("x", (2, 3, 8, 6)), 3, 16))
    net.output(net.node("Relu", net.conv(pooled, 16, 4, kernel=1)))
    model = net.model()
    legal, _ = legalize(model, "nhwc", check=True)
    assert [dim.dim_value for dim in legal.graph.output[0].type.tensor_type.shape.dim] == [2, 4, 1, 1]
    assert sum(node.op_type == "Reshape" for node in legal.graph.node) == 1
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_an_operator_on_a_view_of_a_scalar_has_the_dims_of_the_source(backend: str) -> None:
    """As in detectors, which compute sizes of images."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[n,3] x) => (float[1] y, float[n,3] z)
        <int64 first = {0}, int64[1] axes = {0}> {
          s = Shape (x)  k = Gather (s, first)  u = Unsqueeze (k, axes)  c = Cast <to = 1> (u)  y = Sqrt (c)
          t = Transpose (x)  r = Relu (t)  z = Transpose (r) }"""
    )
    legal, _ = legalize(model, backend, check=True)
    assert_same_numbers(model, legal, {"x": np.ones((4, 3), np.float32)})
    assert [dim.dim_value for dim in legal.graph.output[0].type.tensor_type.shape.dim] == [1]
