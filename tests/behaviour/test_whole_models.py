"""Whole models as exporters write them, legalized for each backend: unknown ranks, symbolic dims, Q/DQ chains."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from equivalence import assert_legal_and_equivalent, drawn
from graphs import Net, run
from onnx import TensorProto, numpy_helper

from relayout import legalize

BACKENDS = ["onnx", "nhwc", "canonical"]
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64

# Symbolic dims


def with_symbols() -> Net:
    """An image of any size and batch: upsampled by the size of another value, pooled, and reshaped by its own shape."""
    net = Net(opset=18)
    image = net.input("x", ("N", "H", "W", 3))
    value = net.node("Relu", net.conv(net.transpose(image, *TO_NCHW), 3, 8))
    small = net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    sizes = net.node("Shape", value)
    large = net.node("Resize", small, "", "", sizes, mode="nearest")
    value = net.node("Concat", value, large, axis=1)
    scale = net.node("ReduceMean", value, net.constant([2, 3]), keepdims=1)
    value = net.node("Mul", value, net.node("Sigmoid", scale))
    rows = net.node("Reshape", net.transpose(value, *TO_NHWC), net.constant([0, -1, 16]))
    net.output(net.node("Softmax", rows, axis=-1))
    net.output(net.transpose(net.conv(value, 16, 4), *TO_NHWC))
    return net


@pytest.mark.parametrize("backend", BACKENDS)
def test_symbols_may_stand_for_any_size(backend: str) -> None:
    feeds = [{"x": drawn(*size, 3)} for size in ((1, 8, 8), (2, 6, 10), (3, 14, 4))]
    report = assert_legal_and_equivalent(with_symbols().model(), backend, feeds)
    assert report.after.transposes <= report.before.transposes


def test_channels_are_packed_where_neither_batch_nor_picture_has_a_known_size() -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", ("N", 8, "H", "W")), 8, 8))
    value = net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.conv(value, 8, 4))
    layouts = {"Conv": ["NCHW4c", "OIHW4i4o"]}
    legal, report = legalize(net.model(), "convert-layout", backend_options={"desired_layouts": layouts}, check=True)
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert report.verification is not None
    assert report.verification.findings == ()
    for seed, shape in enumerate(((1, 8, 6, 4), (3, 8, 4, 10))):
        feeds = {"x": drawn(*shape, seed=seed)}
        np.testing.assert_allclose(run(legal, feeds)[0], run(net.model(), feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_is_unknown_and_without_a_name(backend: str) -> None:
    net = Net()
    value = net.input("x", ("N", 3, 8, 8))
    net.inputs[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    value = net.transpose(net.conv(value, 3, 4), *TO_NHWC)
    value = net.node("Add", value, net.weight(4))
    net.output(net.node("Flatten", net.transpose(value, *TO_NCHW)))
    assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(n, 3, 8, 8)} for n in (1, 4)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shape_computed_at_run_time(backend: str) -> None:
    net = Net()
    value = net.conv(net.input("x", ("N", 3, "H", "W")), 3, 6)
    shape = net.node("Shape", value)
    batch, height, width = (net.node("Gather", shape, net.constant([axis])) for axis in (0, 2, 3))
    grouped = net.node("Concat", batch, net.constant([2, 3]), height, width, axis=0)
    shuffled = net.node("Transpose", net.node("Reshape", value, grouped), perm=[0, 2, 1, 3, 4])
    value = net.node("Reshape", shuffled, net.node("Concat", batch, net.constant([6]), height, width, axis=0))
    net.output(net.conv(value, 6, 4))
    feeds = [{"x": drawn(n, 3, *size)} for n, size in ((1, (5, 7)), (2, (6, 4)))]
    assert_legal_and_equivalent(net.model(), backend, feeds)


def attention(*, batch: int | str, length: int | str) -> Net:
    """Scores of two heads, as torch's exporter writes them for any batch and length: it transposes the keys a second
    time as matrices, [batch * heads, length, size]."""
    net = Net(opset=18)
    x = net.input("x", (batch, length, 16))
    sizes = [net.node("Shape", x, start=n, end=n + 1) for n in (0, 1)]
    split = net.node("Concat", *sizes, net.constant([-1]), net.constant([8]), axis=0)

    def heads() -> str:
        value = net.node("Relu", net.node("MatMul", x, net.weight(16, 16)))
        return net.transpose(net.node("Reshape", value, split), 0, 2, 1, 3)

    queries, keys = heads(), heads()
    shape = net.node("Shape", keys, start=0)
    bounds = [net.constant([bound]) for bound in (-(1 << 62), -2, -1, 1 << 62)]
    outer, last, size = (net.node("Slice", shape, *bounds[n : n + 2]) for n in range(3))
    rows = net.node("Reshape", keys, net.node("Concat", net.constant([-1]), last, size, axis=0))
    columns = net.node("Reshape", net.transpose(rows, 0, 2, 1), net.node("Concat", outer, size, last, axis=0))
    half = net.constant(np.float32(0.5))
    net.output(net.node("MatMul", net.node("Mul", queries, half), net.node("Mul", columns, half)))
    return net


@pytest.mark.parametrize("length", [5, "length"])
@pytest.mark.parametrize("batch", [2, "batch"])
def test_keys_are_transposed_once_whatever_dims_are_known(batch: int | str, length: int | str) -> None:
    model = attention(batch=batch, length=length).model()
    legal, report = legalize(model, "onnx", check=True)
    assert (report.before.transposes, report.after.transposes) == (3, 2)
    assert report.verification is not None
    assert report.verification.passed
    assert "Shape" not in [node.op_type for node in legal.graph.node]


@pytest.mark.parametrize("bounds", [{}, {"start": 0}, {"start": 1}, {"end": -1}, {"start": -2, "end": 9}], ids=str)
def test_a_part_of_a_shape_is_read_in_any_layout(bounds: dict[str, int]) -> None:
    net = Net(opset=18)
    value = net.conv(net.transpose(net.input("x", ("n", "h", "w", 3)), *TO_NCHW), 3, 8)
    net.output(net.node("Shape", value, **bounds), INT64)
    net.output(net.transpose(net.conv(value, 8, 4), *TO_NHWC))
    legal, report = legalize(net.model(), "nhwc", check=True)
    assert (report.before.transposes, report.after.transposes) == (2, 0)
    assert report.verification is not None
    assert report.verification.passed
    onnx.checker.check_model(legal, full_check=True)
    assert not any(each.attribute for each in legal.graph.node if each.op_type == "Shape")


# Unknown ranks


def without_shapes(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model, which no longer says the shapes of these values, or of any but the inputs."""
    values = [*model.graph.value_info, *model.graph.output]
    for value in [*values, *(value for value in model.graph.input if value.name in names)]:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_whose_input_has_no_rank(backend: str) -> None:
    net = Net()
    value = net.node("Relu", net.input("x", (1, 3, 8, 8)))
    value = net.transpose(net.conv(value, 3, 4), *TO_NHWC)
    net.output(net.transpose(net.node("Mul", value, net.weight(4)), *TO_NCHW))
    model = without_shapes(net.model(), "x")
    assert_legal_and_equivalent(model, backend, [{"x": drawn(2, 3, 8, 6)}])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_whose_rank_is_known_only_at_run_time(backend: str) -> None:
    """A reshape to a shape that arrives as an input: what follows it is left as it is."""
    net = Net()
    value = net.conv(net.transpose(net.input("x", (1, 8, 8, 3)), *TO_NCHW), 3, 4)
    shape = net.input("shape", ("R",), INT64)
    free = net.node("Relu", net.node("Reshape", value, shape))
    net.output(net.node("Add", free, net.node("Reshape", net.node("Neg", value), shape)))
    net.output(net.transpose(value, *TO_NHWC))
    feeds = [{"x": drawn(1, 8, 8, 3), "shape": np.array(shape)} for shape in ([4, 64], [2, 2, 8, 8], [256])]
    assert_legal_and_equivalent(net.model(), backend, feeds)


def test_an_axis_of_unknown_extent_that_the_model_declares_as_1_keeps_its_position() -> None:
    """The input has an axis that onnx knows nothing of, and a view of it is declared without."""
    net = Net()
    value = net.node("Compress", net.input("x", (1, 4, 6, 6)), net.constant(np.array([True])), axis=0)
    value = net.node("Relu", value)
    turned = net.transpose(value, *TO_NHWC)
    seen = net.node("Reshape", turned, net.constant([6, 1, 6, 4]))
    net.output(net.transpose(net.node("Neg", net.transpose(seen, 3, 1, 0, 2)), 2, 1, 3, 0))
    net.output(net.conv(value, 4, 4))
    model = net.model()
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(turned, FLOAT, [1, 6, 6, 4]))
    for backend in BACKENDS:
        assert_legal_and_equivalent(model, backend, [{"x": drawn(1, 4, 6, 6)}])


# Quantised


def quantised(net: Net, value: str, scale: float = 0.05) -> str:
    """QuantizeLinear and DequantizeLinear, as quantisers put them around everything."""
    ends = net.constant(np.array(scale, np.float32)), net.constant(np.array(128, np.uint8))
    return str(net.node("DequantizeLinear", net.node("QuantizeLinear", value, *ends), *ends))


def quantised_conv(net: Net, value: str, inputs: int, outputs: int, *, group: int = 1) -> str:
    weight = net.rng.integers(-127, 127, (outputs, inputs // group, 3, 3)).astype(np.int8)
    scales = (net.rng.random(outputs) * 0.02 + 0.01).astype(np.float32)
    zeros = np.zeros(outputs, np.int8)
    kernel = net.node("DequantizeLinear", *map(net.constant, (weight, scales, zeros)), axis=0)
    biases = net.constant(net.rng.integers(-500, 500, outputs).astype(np.int32)), net.constant(scales * 0.05)
    bias = net.node("DequantizeLinear", *biases, net.constant(np.zeros(outputs, np.int32)), axis=0)
    return str(net.node("Conv", value, kernel, bias, pads=[1] * 4, group=group))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [1, 4])
def test_a_chain_of_quantised_convolutions(group: int, backend: str) -> None:
    net = Net()
    value = quantised(net, net.input("x", ("N", 8, 8, 4)))
    value = net.transpose(value, *TO_NCHW)
    skip = value = quantised(net, net.node("Relu", quantised_conv(net, value, 4, 8, group=1)))
    value = quantised(net, quantised_conv(net, value, 8, 8, group=group))
    value = quantised(net, net.node("Add", value, skip))
    value = quantised(net, net.node("GlobalAveragePool", value))
    net.output(net.node("Gemm", net.node("Flatten", value), net.weight(8, 5)))
    report = assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(n, 8, 8, 4)} for n in (1, 3)])
    assert report.after.transposes <= 1


# Odds and ends of exporters


@pytest.mark.parametrize("backend", BACKENDS)
def test_constants_are_nodes_initialisers_and_inputs_that_can_be_overridden(backend: str) -> None:
    net = Net()
    weight, scale = drawn(4, 3, 3, 3), drawn(4)
    kernel = net.node("Constant", value=numpy_helper.from_array(weight))
    value = net.node("Conv", net.input("x", (1, 3, 8, 8)), kernel, pads=[1] * 4)
    net.constants.append(numpy_helper.from_array(scale, "scale"))
    net.input("scale", (4,))
    net.output(net.transpose(net.node("Mul", net.transpose(value, *TO_NHWC), "scale"), *TO_NCHW))
    image = drawn(1, 3, 8, 8)
    assert_legal_and_equivalent(net.model(), backend, [{"x": image}, {"x": image, "scale": drawn(4, seed=1)}])


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_nobody_reads_and_operands_that_are_left_out(backend: str) -> None:
    net = Net()
    value = net.conv(net.input("x", ("N", 3, 9, 9)), 3, 4)
    pooled, _ = net.node("MaxPool", value, results=2, kernel_shape=[2, 2])
    clipped = net.node("Clip", pooled, "", net.constant(np.array(1, np.float32)))
    parts = net.node("Split", clipped, results=2, axis=1)
    net.output(net.node("TopK", parts[0], net.constant([1]), results=2, axis=1)[0])
    net.output(net.node("Pad", parts[1], net.constant([0, 0, 1, 0, 0, 0, 0, 2])))
    assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(2, 3, 9, 9)}])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_that_is_output_and_operand_at_once_under_several_names(backend: str) -> None:
    net = Net()
    value = net.transpose(net.conv(net.input("x", (2, 3, 6, 6)), 3, 4), *TO_NHWC)
    net.output(value)
    net.output(net.node("Identity", value))
    again = net.transpose(value, *TO_NCHW)
    net.output(again)
    net.output(net.conv(again, 4, 4))
    assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(2, 3, 6, 6)}])


def test_a_gather_of_strings_is_unchanged() -> None:
    """onnxruntime gathers one string of each block, so that the last axis has to stay the last one."""
    net = Net()
    value = net.transpose(net.input("x", (2, 3, 4, 5), TensorProto.STRING), 0, 2, 3, 1)
    value = net.node("Gather", value, net.constant(np.array([2, 0, 1])), axis=3)
    net.output(net.transpose(value, 0, 3, 1, 2), TensorProto.STRING)
    _, report = legalize(net.model(), "onnx", check=True)
    assert report.verification is not None
    assert report.verification.passed


@pytest.mark.parametrize("backend", [*BACKENDS, "x86-nchwc", "tpu"])
def test_tensors_of_strings_are_converted_like_any_other(backend: str) -> None:
    net = Net()
    value = net.transpose(net.input("x", (2, 3, 4, 5), TensorProto.STRING), 0, 2, 3, 1)
    value = net.node("Concat", net.node("Identity", value), value, axis=3)
    net.output(net.transpose(value, 0, 3, 1, 2), TensorProto.STRING)
    legal, report = legalize(net.model(), backend, check=True)
    assert report.after.transposes == 0
    assert report.verification is not None
    assert report.verification.passed
    texts = np.array([f"text {number}" for number in range(120)], object).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(run(legal, {"x": texts})[0], texts[:, [0, 1, 2, 0, 1, 2]])
