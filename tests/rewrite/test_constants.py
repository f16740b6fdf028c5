"""Constants in the layouts of the legal model: one copy for each layout, with distinct names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from onnx import TensorProto, helper, numpy_helper

from relayout import Backend, InfeasibleError, Layout, legalize, verify
from relayout.backend import Writing
from relayout.model.io import read_model, to_json


def uniform(number: float = 0.25) -> Net:
    """A convolution by a kernel of one number, and a multiplication of its result by another such image."""
    net = Net()
    value = numpy_helper.from_array(np.array([number], np.float32))
    kernel = net.node("ConstantOfShape", net.constant([64, 32, 5, 5]), value=value)
    mask = net.node("ConstantOfShape", net.constant([64, 9, 7]), value=value)
    net.output(net.node("Mul", net.node("Conv", net.input("x", (1, 32, 13, 11)), kernel), mask))
    return net


@pytest.mark.parametrize("backend", ["canonical", "nhwc", "opencl"])
def test_a_uniform_constant_is_shared_by_all_layouts(backend: str) -> None:
    model = uniform().model()
    legal, report = legalize(model, backend)
    assert legal.ByteSize() < 5_000
    assert sum(node.op_type == "ConstantOfShape" for node in legal.graph.node) == 2
    assert report.status == "optimal"
    assert_same_numbers(model, legal)


def in_two_layouts() -> dict[str, Any]:
    """A weight that stays at home, read by an operator that takes any order and by one that does not."""
    conv = {"op": "Conv", "inputs": ["x", "w"], "outputs": ["c"]}
    mul = {"op": "Mul", "inputs": ["c", "w"], "outputs": ["m"]}
    add = {"op": "Add", "inputs": ["z", "w"], "outputs": ["y"]}
    return {
        "opset": 20,
        "inputs": [
            {"name": "x", "dtype": "float", "shape": [8, 8, 10, 10]},
            {"name": "z", "dtype": "float", "shape": [8, 8, 10, 10]},
        ],
        "outputs": [{"name": "m"}, {"name": "y"}],
        "constants": [{"name": "w", "dtype": "float", "shape": [8, 8, 1, 1]}],
        "nodes": [conv, mul, add],
    }


def test_copies_of_a_constant_name_their_original() -> None:
    source = in_two_layouts()
    legal, _ = legalize(source, "nhwc")
    made = {constant["name"]: constant for constant in legal["constants"]}
    assert {name for name in made if "transform" in made[name]} == {name for name in made if "source" in made[name]}
    others = [constant for constant in made.values() if "source" in constant]
    assert len(others) > 0
    assert {constant["source"] for constant in others} == {"w"}
    again = to_json(read_model(legal))
    assert again["constants"] == legal["constants"]


def test_an_absent_constant_has_equal_data_in_all_layouts_of_a_check() -> None:
    source = in_two_layouts()
    legal, _ = legalize(source, "nhwc")
    assert sum("source" in constant for constant in legal["constants"]) > 0
    verification = verify(legal, "nhwc", against=source)
    assert verification.findings == ()
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_a_constant_is_annotated_once(backend: str) -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 4, 8, 8)), 4, 4, 1))
    model = net.model()
    for tensor in model.graph.initializer:
        tensor.metadata_props.add(key="from", value="a file")
    model.graph.initializer[0].ClearField("raw_data")  # absent
    for _ in range(3):
        model, _ = legalize(model, backend)
        assert len(model.graph.initializer) == 2
        for tensor in model.graph.initializer:
            noted = [entry.key for entry in tensor.metadata_props if entry.key != "relayout.transform"]
            assert noted == ["from"]
            assert len(tensor.metadata_props) <= 2


def test_a_constant_in_one_layout_keeps_its_name_and_needs_no_other() -> None:
    source = in_two_layouts()
    source["nodes"] = source["nodes"][:1]
    source["outputs"] = [{"name": "c"}]
    source["inputs"] = source["inputs"][:1]
    source["constants"][0]["shape"] = [8, 8, 3, 3]
    legal, _ = legalize(source, "canonical")
    (constant,) = legal["constants"]
    assert constant["name"] == "w"
    assert constant["transform"] == [{"op": "transpose", "perm": [0, 2, 3, 1]}]
    assert "source" not in constant


def test_parameters_without_data_are_not_folded() -> None:
    net = Net()
    value = net.transpose(net.input("x", (2, 6, 6, 8)), 0, 3, 1, 2)
    value = net.node("BatchNormalization", value, *[net.constant(np.full(8, i, np.float32)) for i in range(1, 5)])
    net.output(net.transpose(value, 0, 2, 3, 1))
    told = to_json(read_model(net.model()))
    _, report = legalize(told)
    assert report.after.transposes == 0
    for constant in told["constants"]:
        del constant["data"]
    _, report = legalize(told)
    assert report.after.transposes == 2


# Values that are computed from constants


def test_computed_strings_are_transposed_at_run_time() -> None:
    net = Net(19)
    words = net.transpose(net.node("Cast", net.constant(np.arange(6).reshape(2, 3)), to=TensorProto.STRING), 1, 0)
    given = net.transpose(net.input("x", (2, 3), TensorProto.STRING), 1, 0)
    net.output(net.transpose(net.node("Equal", words, given), 1, 0), TensorProto.BOOL)
    model = net.model()
    legal, _ = legalize(model)
    feeds = {"x": np.array([["0", "1", "2"], ["3", "x", "5"]], object)}
    assert_same_numbers(model, legal, feeds)


@pytest.mark.parametrize("backend", ["nhwc", "canonical", "auto-nhwc", "x86-nchwc", "xla-cpu"])
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_kernel_with_a_shape_known_at_run_time_is_transposed(backend: str, is_stored: bool) -> None:
    """All its extents are alike: nothing but the numbers would tell that it lies otherwise."""
    net = Net()
    flat = net.weight(4**4)
    flat = flat if is_stored else net.node("Neg", flat)
    kernel = net.node("Reshape", flat, net.input("shape", (4,), TensorProto.INT64))
    net.output(net.node("Conv", net.input("x", (1, 4, 6, 6)), kernel))
    model = net.model()
    model.graph.value_info.append(helper.make_tensor_value_info(kernel, TensorProto.FLOAT, [4, 4, 4, 4]))
    legal, _ = legalize(model, backend)
    feeds = {"shape": np.array([4, 4, 4, 4]), "x": np.random.default_rng(0).standard_normal((1, 4, 6, 6))}
    assert_same_numbers(model, legal, {**feeds, "x": feeds["x"].astype(np.float32)})


@pytest.mark.parametrize("operator", ["Compress", "Unique"])
@pytest.mark.parametrize("perm", [(0, 2, 1), (2, 1, 0)])
def test_a_constant_of_uninferred_extent_is_transposed(operator: str, perm: tuple[int, ...]) -> None:
    net = Net()
    vector = net.constant(np.array([0.5, 0.25, 2, 3], np.float32))
    extra = [net.constant(np.array([True, True, False, True]))] if operator == "Compress" else []
    chosen = net.node(operator, vector, *extra)
    if operator == "Unique":
        chosen = net.node("Slice", chosen, net.constant([0]), net.constant([3]))
    turned = net.transpose(net.input("x", [(2, 4, 3)[p] for p in np.argsort(perm)]), *perm)
    net.output(net.transpose(net.node("Mul", turned, chosen), *np.argsort(perm).tolist()))
    model = net.model()
    legal, report = legalize(model)
    assert report.after.transposes == 0
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize("shape", [(39, 1, 1), (1, 39, 32, 32)])
def test_a_constant_that_is_not_folded_is_padded_at_run_time(opset: int, shape: tuple[int, ...]) -> None:
    net = Net(opset)
    factor = net.node("Softmax", net.weight(*shape), axis=len(shape) - 3)
    value = net.conv(net.input("x", (1, 64, 32, 32)), 64, 39)
    value = net.node("Mul", net.node("Relu", value), factor)
    value = net.conv(net.node("Relu", value), 39, 64)
    net.output(net.conv(value, 64, 64))
    model = net.model()
    legal, _ = legalize(model, "x86-nchwc", check=True)
    assert "Pad" in [node.op_type for node in legal.graph.node]
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc"])
def test_a_branch_computes_a_kernel_from_one_that_is_computed_outside(backend: str) -> None:
    net = Net(17)
    outside = net.node("Neg", net.weight(16, 16, 3, 3))
    x = net.input("x", (1, 16, 8, 8))
    branches = {}
    for name, scale in (("then_branch", 2.0), ("else_branch", 3.0)):
        branch = Net(17, prefix=f"{name}_")
        kernel = branch.node("Mul", outside, branch.constant(np.array(scale, np.float32)))
        branch.output(branch.node("Conv", x, kernel))
        branches[name] = helper.make_graph(branch.nodes, name, [], branch.outputs, branch.constants)
    net.output(net.node("If", net.input("flag", (), TensorProto.BOOL), **branches))
    model = net.model()
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(model, legal)


# Shapes that are known


def test_a_computed_constant_is_not_transposed_back() -> None:
    net = Net(opset=17)
    value = net.transpose(net.input("x", (2, 8, 9)), 0, 2, 1)
    weight = net.node("DequantizeLinear", net.constant(np.ones((6, 8), np.int8)), net.constant(np.float32(0.5)))
    product = net.node("MatMul", value, net.transpose(weight, 1, 0))
    net.output(net.transpose(net.node("Relu", product), 0, 2, 1))
    legal, _ = legalize(net.model(), "onnx", check=True)
    assert [node.op_type for node in legal.graph.node] == ["DequantizeLinear", "MatMul", "Relu"]


@pytest.mark.parametrize("operator", ["Shape", "Size"])
def test_a_value_read_only_for_its_known_shape_is_not_computed(operator: str) -> None:
    net = Net()
    x = net.input("x", (2, 8, 6, 10))
    net.output(net.node("Relu", x))
    image = net.transpose(net.node("Conv", net.transpose(x, 0, 2, 1, 3), net.weight(4, 6, 3, 3)), 0, 2, 3, 1)
    net.output(net.node(operator, image), TensorProto.INT64)
    model = net.model()
    legal, report = legalize(model, "nhwc", check=True)
    assert [node.op_type for node in legal.graph.node] == ["Relu", "Identity"]
    assert report.cost == report.after.transposes == 0
    assert [value.name for value in legal.graph.output] == [value.name for value in model.graph.output]
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("bounds", [{}, {"start": 1}, {"start": -3, "end": -1}, {"start": -9, "end": 9}])
def test_a_known_shape_is_that_of_the_source_in_any_layout(bounds: dict[str, int]) -> None:
    net = Net()
    value = net.conv(net.input("x", (2, 8, 6, 10)), 8, 8)
    net.output(net.conv(net.node("Relu", value), 8, 8))
    net.output(net.node("Shape", value, **bounds), TensorProto.INT64)
    model = net.model()
    for backend in ("nhwc", "x86-nchwc"):
        legal, _ = legalize(model, backend)
        assert_same_numbers(model, legal)


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc"])
def test_a_known_extent_beside_unknown_ones_is_read_from_no_tensor(backend: str) -> None:
    net = Net()
    image = net.conv(net.input("x", ("n", 16, 6, 10)), 16, 16)
    shape = net.node("Shape", image)
    wide = net.node("Gather", shape, net.constant([3]))
    net.output(wide, TensorProto.INT64)
    pads = net.node("Concat", net.constant([0, 0, 0]), wide, net.constant([0] * 4), axis=0)
    net.output(net.conv(net.node("Pad", net.conv(image, 16, 16), pads), 16, 16))
    model = net.model()
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert "Shape" not in {node.op_type for node in legal.graph.node}
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert again == legal


def test_a_computed_scale_of_two_unknown_extents_is_elementwise() -> None:
    def unknown(net: Net) -> Any:
        pooled, places = net.node("MaxPool", net.weight(1, 1, 4, 5), kernel_shape=[1, 1], results=2)
        unpooled = net.node("MaxUnpool", pooled, places, net.constant([1, 1, 4, 5]), kernel_shape=[1, 1])
        return net.node("Squeeze", unpooled, net.constant([0, 1]))

    net = Net(opset=17)
    x = net.transpose(net.input("x", (4, 5, 6, 3)), 2, 3, 0, 1)
    normal = net.node("LayerNormalization", x, unknown(net), unknown(net), axis=-2, epsilon=1e-3)
    net.output(net.transpose(normal, 2, 3, 0, 1))
    model = net.model()
    legal, report = legalize(model, objective="transposes")
    assert report.after.transposes == 0
    assert_same_numbers(model, legal)


def test_a_computed_scale_of_unknown_extent_is_per_channel() -> None:
    net = Net(opset=17)
    pooled, places = net.node("MaxPool", net.weight(3, 1, 2, 4), kernel_shape=[2, 2], strides=[2, 2], results=2)
    unpooled = net.node("MaxUnpool", pooled, places, net.constant([3, 1, 2, 4]), kernel_shape=[2, 2], strides=[2, 2])
    scale = net.node("Slice", net.node("Reshape", unpooled, net.constant([-1])), net.constant([0]), net.constant([5]))
    x = net.transpose(net.input("x", (3, 2, 3, 5)), 0, 3, 1, 2)
    net.output(net.transpose(net.node("InstanceNormalization", x, scale, net.weight(5)), 0, 2, 3, 1))
    model = net.model()
    legal, _ = legalize(model, objective="transposes")
    assert_same_numbers(model, legal)


class Tiled(Backend):
    """A convolution reads its kernel in tiles, which it unpacks again: so the numbers say in which order it lies."""

    name = "tiled"

    def implementations(self, node: ir.Node) -> Any:
        [usual] = super().implementations(node)
        if node.op_type != "Conv" or "unpacked" in (node.name or ""):
            return [usual]
        return [replace(usual, inputs=(Layout.any(4), Layout.parse("OIHW4i4o")), rewrite=unpack)]


def unpack(writing: Writing) -> None:
    blocks, depth, height, width, inner, outer = writing.shape_of(1)
    tiles = writing.read(1)
    assert tuple(tiles.shape or ()) == writing.shape_of(1)
    assert tuple(writing.read(1, shape=(2, 36, 16)).shape or ()) == (2, 36, 16)
    perm = [0, 5, 1, 4, 2, 3]
    split = writing.emit("Transpose", [tiles], {"perm": perm}, shape=(blocks, outer, depth, inner, height, width))
    whole = writing.constant("shape", np.array([8, 16, 3, 3], np.int64))
    kernel = writing.emit("Reshape", [split, whole], shape=(8, 16, 3, 3))
    made = writing.emit("Conv", [writing.read(0), kernel], shape=writing.shape_of(0, is_result=True))
    writing.set_result(0, made)


def kernels() -> Iterator[tuple[str, Callable[[Net], str]]]:
    yield "stored", lambda net: net.weight(8, 16, 3, 3)
    numbers, scale = (np.arange(8 * 16 * 9) % 100).astype(np.int8).reshape(8, 16, 3, 3), np.float32(0.5)
    yield "dequantized", lambda net: net.node("DequantizeLinear", net.constant(numbers), net.constant(scale))
    yield "negated", lambda net: net.node("Neg", net.weight(8, 16, 3, 3))
    yield "transposed", lambda net: net.transpose(net.weight(3, 3, 16, 8), 3, 2, 0, 1)
    yield "an input", lambda net: net.input("w", (8, 16, 3, 3))


@pytest.mark.parametrize(("kernel"), [make for _, make in kernels()], ids=[name for name, _ in kernels()])
def test_a_rewrite_reads_a_constant_in_the_layout_that_its_implementation_requires(
    kernel: Callable[[Net], str],
) -> None:
    net = Net()
    net.output(net.node("Conv", net.input("x", (1, 16, 7, 9)), kernel(net)))
    model = net.model()
    legal, _ = legalize(model, Tiled())
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("pads", [False, True])
def test_an_implementation_by_a_rewrite_does_not_fit_a_constant_whose_layout_does_not_bind(pads: bool) -> None:
    class Padded(Tiled):
        def implementations(self, node: ir.Node) -> Any:
            return [replace(each, pads=pads, rewrite=each.rewrite and write) for each in super().implementations(node)]

    def write(writing: Writing) -> None:
        made = writing.emit("Tiled", [writing.read(0), writing.read(1)], shape=(1, 6, 5, 7), domain="com.acme")
        writing.set_result(0, made)

    net = Net()
    net.output(net.node("Conv", net.input("x", (1, 3, 7, 9)), net.weight(6, 3, 3, 3)))
    if not pads:
        with pytest.raises(InfeasibleError):
            legalize(net.model(), Padded())
        return
    legal, _ = legalize(net.model(), Padded())
    [tiles] = legal.graph.initializer
    assert numpy_helper.to_array(tiles).shape == (2, 1, 3, 3, 4, 4)


@pytest.mark.parametrize(("operator", "most"), [("DequantizeLinear", 1), ("Cast", 2)])
def test_compressed_weights_behind_a_transpose_stay_compressed(operator: str, most: int) -> None:
    """Exporters write the weights of a layer as `DequantizeLinear`, `Transpose`; as numbers they take several times the
    bytes."""
    net = Net(21)
    generator = np.random.default_rng(0)
    if operator == "Cast":
        halves = generator.random((32, 64, 3, 3)).astype(np.float16)
        plain = net.node("Cast", net.constant(halves), to=TensorProto.FLOAT)
    else:
        bytes_ = generator.integers(-127, 127, (32, 64, 3, 3)).astype(np.int8)
        steps = net.constant(generator.random(64).astype(np.float32))
        plain = net.node("DequantizeLinear", net.constant(bytes_), steps, axis=1)
    net.output(net.node("Conv", net.input("x", (1, 32, 8, 8)), net.transpose(plain, 1, 0, 2, 3)))
    model = net.model()
    legal, report = legalize(model, "nhwc", check=True)
    assert report.status == "optimal"
    assert operator in {node.op_type for node in legal.graph.node}
    assert sum(len(each.raw_data) for each in legal.graph.initializer) < (most + 0.1) * 32 * 64 * 9
    assert report.verification is not None
    assert report.verification.findings == ()


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize("scales", [(), (1,), (24,)], ids=["one scale", "a vector of one", "a scale a channel"])
def test_a_dequantized_kernel_stays_quantized_where_channels_are_shuffled(
    scales: tuple[int, ...], backend: str
) -> None:
    """As in a quantized ShuffleNet, at an opset at which onnx's reference lacks the operator."""
    random = np.random.default_rng(0)

    def dequantized(net: Net, numbers: np.ndarray) -> str:
        steps = net.constant(random.uniform(0.01, 0.05, scales).astype(np.float32))
        zero = net.constant(random.integers(-3, 3, scales).astype(np.int8))
        axis = {"axis": 0} if scales else {}
        return str(net.node("DequantizeLinear", net.constant(numbers), steps, zero, **axis))

    net = Net(13)
    kernel = dequantized(net, random.integers(-99, 99, (24, 8, 3, 3)).astype(np.int8))
    bias = dequantized(net, random.integers(-99, 99, 24).astype(np.int8))
    image = net.node("Conv", net.input("x", (1, 8, 6, 5)), kernel, bias)
    split = net.node("Transpose", net.node("Reshape", image, net.constant([1, 2, 12, 4, 3])), perm=[0, 2, 1, 3, 4])
    net.output(net.conv(net.node("Reshape", split, net.constant([1, 24, 4, 3])), 24, 4, group=4))
    model = net.model()
    legal, report = legalize(model, backend, check=True)
    assert report.after.transposes == {"onnx": 0, "nhwc": 2}[backend]
    assert sum(node.op_type == "Transpose" for node in legal.graph.node) == report.after.transposes
    assert sum(node.op_type == "DequantizeLinear" for node in legal.graph.node) == 2
    assert_same_numbers(model, legal)
    again, _ = legalize(legal, backend)
    assert again == legal
