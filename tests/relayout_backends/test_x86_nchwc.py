"""`x86-nchwc`: each operator that it writes computes in onnxruntime the same as the standard operator."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import session
from onnx import helper, numpy_helper, shape_inference
from single_node_rewriter import OneNode, from_layout, to_layout

from relayout.backend import Implementation, TensorType
from relayout.backend.calls import ask
from relayout.errors import BackendError, UsageError
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc import X86Nchwc
from relayout_backends.x86_nchwc.blocks import Blocks, probe
from relayout_backends.x86_nchwc.pooling import upsampling

pytest.importorskip("onnxruntime")

BLOCK = probe()
BLOCKED = Layout.parse(f"NCHWc[tile:{BLOCK}]")
NCHW, NHWC = Layout.parse("NCHW"), Layout.parse("NHWC")
Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    """Numbers whose mean differs from channel to channel and from place to place."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + rng.standard_normal(shape[1:2] + (1,) * (len(shape) - 2))).astype(np.float32)


class One:
    """One standard node on `x`, with constant operands; `expected` is what onnxruntime makes of it."""

    def __init__(
        self, operator: str, x: Array, *constants: Array | None, opset: int = 17, domain: str = "", **attributes: Any
    ) -> None:
        names = ["x", *("" if array is None else f"c{i}" for i, array in enumerate(constants))]
        graph = helper.make_graph(
            [helper.make_node(operator, names, ["y"], name="node", domain=domain, **attributes)],
            "one",
            [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
            [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(x.dtype), None)],
            [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants) if array is not None],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
        (self.expected,) = session(proto).run(None, {"x": x})
        self.x = x
        model = ir.from_proto(shape_inference.infer_shapes(proto))
        self.node = model.graph[0]
        self.node.outputs[0].shape = ir.Shape(self.expected.shape)
        self.model = model

    def ways(self) -> tuple[Implementation, ...]:
        return ask(X86Nchwc(), self.node)

    def written(self) -> list[Implementation]:
        return [way for way in self.ways() if way.rewrite is not None]

    def run(self, way: Implementation) -> Array:
        return OneNode(self.node, way).run({0: self.x})[0]


def assert_blocked_equals_plain(one: One, ways: int = 1) -> None:
    written = one.written()
    assert len(written) == ways
    for way in written:
        np.testing.assert_allclose(one.run(way), one.expected, rtol=2e-4, atol=2e-4)


SPATIAL = [
    {},
    {"pads": [1, 1, 1, 1]},
    {"pads": [0, 1, 2, 0], "strides": [2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "VALID"},
    {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
]


@pytest.mark.parametrize("attributes", SPATIAL, ids=str)
@pytest.mark.parametrize(
    ("channels", "outputs"), [(32, 48), (24, 40), (17, 19), (64, 3), (16, 16)], ids=lambda n: str(n)
)
def test_a_convolution_of_one_group_reads_and_gives_blocks(
    channels: int, outputs: int, attributes: dict[str, Any]
) -> None:
    kernel = draw(outputs, channels, 3, 3, seed=1)
    assert_blocked_equals_plain(One("Conv", draw(2, channels, 9, 11), kernel, **attributes))
    bias = draw(outputs, seed=2)
    assert_blocked_equals_plain(One("Conv", draw(2, channels, 9, 11), kernel, bias, **attributes))


@pytest.mark.parametrize("attributes", SPATIAL, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(3, 32), (1, 24), (7, 5)], ids=lambda n: str(n))
def test_a_convolution_of_few_channels_reads_plain_data_or_padded_blocks(
    channels: int, outputs: int, attributes: dict[str, Any]
) -> None:
    one = One("Conv", draw(2, channels, 9, 11), draw(outputs, channels, 3, 3, seed=1), draw(outputs), **attributes)
    assert_blocked_equals_plain(one, ways=2)
    assert {str(way.inputs[0]) for way in one.written()} == {"NCHW", str(BLOCKED)}


@pytest.mark.parametrize("attributes", SPATIAL, ids=str)
@pytest.mark.parametrize("channels", [32, 24, 6])
def test_a_depthwise_convolution_may_pad_its_channels(channels: int, attributes: dict[str, Any]) -> None:
    kernel = draw(channels, 1, 3, 3, seed=1)
    assert_blocked_equals_plain(
        One("Conv", draw(2, channels, 9, 11), kernel, draw(channels), group=channels, **attributes)
    )


def test_groups_of_whole_blocks_are_blocked_and_others_are_not() -> None:
    whole = One("Conv", draw(1, 4 * BLOCK, 7, 7), draw(2 * BLOCK, 2 * BLOCK, 3, 3), draw(2 * BLOCK), group=2)
    assert_blocked_equals_plain(whole)
    parted = One("Conv", draw(1, 4 * BLOCK, 7, 7), draw(2 * BLOCK, BLOCK // 2, 3, 3), group=8)
    assert not parted.written()


def test_a_convolution_whose_kernel_is_not_known_before_stays_plain() -> None:
    one = One("Conv", draw(1, 32, 7, 7), draw(16, 32, 3, 3))
    one.node.inputs[1].const_value = None  # type: ignore[union-attr]
    assert not one.written()


@pytest.mark.parametrize("outputs", [32, 20])
@pytest.mark.parametrize("opset", [9, 17])
def test_a_bias_may_be_given_when_the_model_runs(outputs: int, opset: int) -> None:
    bias = draw(outputs)
    one = One("Conv", draw(1, 32, 7, 7), draw(outputs, 32, 3, 3), bias, opset=opset)
    value = one.node.inputs[2]
    assert value is not None
    value.const_value = None
    (way,) = one.written()
    found = OneNode(one.node, way, opset=opset).run({0: one.x, 2: bias})[0]
    np.testing.assert_allclose(found, one.expected, rtol=2e-4, atol=2e-4)


POOLS = [
    {},
    {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"strides": [2, 2], "ceil_mode": 1},
    {"strides": [2, 1], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
]


@pytest.mark.parametrize("attributes", POOLS, ids=str)
@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("channels", [32, 20])
def test_a_pool_gives_the_same_on_blocks(operator: str, channels: int, attributes: dict[str, Any]) -> None:
    assert_blocked_equals_plain(One(operator, draw(2, channels, 8, 11), kernel_shape=[3, 2], **attributes))


def test_a_max_pool_may_be_dilated_and_an_average_may_count_its_padding() -> None:
    assert_blocked_equals_plain(One("MaxPool", draw(1, 32, 9, 9), kernel_shape=[3, 3], dilations=[2, 2]))
    counting = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    assert_blocked_equals_plain(One("AveragePool", draw(1, 32, 9, 9), **counting))


def test_a_pool_that_the_blocked_operator_computes_differently_stays_plain() -> None:
    counting = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    assert not One("AveragePool", draw(1, 32, 8, 8), **counting).written()
    assert not One("AveragePool", draw(1, 32, 8, 8), kernel_shape=[2, 2], dilations=[2, 2], opset=19).written()


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("channels", [32, 10])
def test_a_global_pool_gives_the_same_on_blocks(operator: str, channels: int) -> None:
    assert_blocked_equals_plain(One(operator, draw(2, channels, 5, 7)))


@pytest.mark.parametrize("channels", [32, 10])
def test_a_batch_normalization_is_a_depthwise_convolution(channels: int) -> None:
    scale, shift, mean = (draw(channels, seed=seed) for seed in range(3))
    variance = np.abs(draw(channels, seed=3)) + np.float32(0.1)
    assert_blocked_equals_plain(
        One("BatchNormalization", draw(2, channels, 5, 7), scale, shift, mean, variance, epsilon=1e-3)
    )


@pytest.mark.parametrize("channels", [32, 10])
def test_the_parameters_of_a_batch_normalization_may_be_given_when_the_model_runs(channels: int) -> None:
    scale, shift, mean = (draw(channels, seed=seed) for seed in range(3))
    variance = np.abs(draw(channels, seed=3)) + np.float32(0.1)
    one = One("BatchNormalization", draw(2, channels, 5, 7), scale, shift, mean, variance)
    for value in one.node.inputs[2:4]:
        assert value is not None
        value.const_value = None
    (way,) = one.written()
    found = OneNode(one.node, way).run({0: one.x, 2: shift, 3: mean})[0]
    np.testing.assert_allclose(found, one.expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "nearest"},
        {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ],
    ids=str,
)
def test_a_resize_by_whole_numbers_is_an_upsample(attributes: dict[str, Any]) -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    assert_blocked_equals_plain(One("Resize", draw(2, 20, 5, 7), None, scales, **attributes))
    sizes = np.array([2, 20, 10, 21], np.int64)
    assert_blocked_equals_plain(One("Resize", draw(2, 20, 5, 7), None, None, sizes, **attributes))


@pytest.mark.parametrize(
    ("scales", "attributes"),
    [
        ([1, 1, 1.5, 2], {"mode": "nearest"}),
        ([1, 2, 2, 2], {"mode": "nearest"}),
        ([1, 1, 2, 2], {"mode": "cubic"}),
        ([1, 1, 2, 2], {"mode": "nearest", "nearest_mode": "ceil"}),
    ],
)
def test_any_other_resize_stays_plain(scales: list[float], attributes: dict[str, Any]) -> None:
    assert not One("Resize", draw(1, 16, 4, 4), None, np.array(scales, np.float32), **attributes).written()


@pytest.mark.parametrize("sizes", [[1, 32, 8, 4], [1, 16, 8, 6], [1, 32, 8, 8]])
def test_a_resize_of_other_axes_than_rows_and_columns_stays_plain(sizes: list[int]) -> None:
    """As that of an image whose channels are last."""
    node = One("Resize", draw(1, 16, 4, 4), None, None, np.array(sizes, np.int64), mode="nearest")
    assert not node.written()


@pytest.mark.parametrize(
    ("source", "result", "is_blocked"),
    [
        (["n", 16, 4, 4], ["n", 16, 8, 8], True),
        (["n", 16, "h", 4], ["n", 16, "h", 8], True),
        (["n", 16, "h", 4], ["n", 16, "k", 8], False),
        ([1, 16, None, 4], [1, 16, None, 8], False),
        ([None, 16, 4, 4], [None, 16, 8, 8], False),
    ],
)
def test_a_resize_of_extents_that_are_not_known_stays_plain(
    source: list[int | str | None], result: list[int | str | None], is_blocked: bool
) -> None:
    """Two dims without a name may have any extents."""
    values = [
        ir.Value(name=name, shape=ir.Shape(own), type=ir.TensorType(ir.DataType.FLOAT))
        for name, own in (("x", source), ("y", result))
    ]
    sizes = ir.Value(name="s", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.INT64))
    node = ir.node("Resize", [values[0], None, None, sizes], {"mode": "nearest"}, outputs=[values[1]])
    assert (upsampling(node, Blocks(16)) is not None) == is_blocked


def test_a_tensor_that_is_not_float32_stays_plain() -> None:
    assert not One("MaxPool", draw(1, 32, 8, 8).astype(np.uint8), kernel_shape=[2, 2]).written()


def quantized(operator: str, x: Array, *constants: Array, **attributes: Any) -> One:
    return One(operator, x, *constants, domain="" if operator == "QLinearConv" else "com.microsoft", **attributes)


SCALE, ZERO = np.array(0.05, np.float32), np.array(3, np.uint8)


@pytest.mark.parametrize("group", [1, 8])
def test_a_quantized_convolution_runs_on_channels_last(group: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (2, 8, 9, 7)).astype(np.uint8)
    kernel = rng.integers(-9, 9, (16 if group == 1 else 8, 8 // group, 3, 3)).astype(np.int8)
    bias = rng.integers(-99, 99, kernel.shape[:1]).astype(np.int32)
    operands = (SCALE, ZERO, kernel, SCALE, np.array(0, np.int8), SCALE, ZERO, bias)
    one = quantized("QLinearConv", x, *operands, pads=[1, 0, 1, 2], strides=[2, 1], group=group)
    (way,) = one.written()
    assert (str(way.inputs[0]), str(way.results[0])) == ("NHWC", "NHWC")
    np.testing.assert_array_equal(one.run(way), one.expected)
    assert one.ways()[0].cost > way.cost == 0


@pytest.mark.parametrize("operator", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_quantized_pool_costs_least_with_channels_last(operator: str, is_last: bool) -> None:
    x = np.random.default_rng(0).integers(0, 255, (2, 8, 9, 8)).astype(np.uint8)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]} if operator == "QLinearAveragePool" else {}
    node = quantized(operator, x, SCALE, ZERO, SCALE, ZERO, channels_last=int(is_last), **window).node
    first, last = ((0, 3, 1, 2), (0, 1, 2, 3)) if is_last else ((0, 1, 2, 3), (0, 2, 3, 1))
    assert X86Nchwc().order_cost(node, last, 0, is_rewritten=False) == 0
    moved = x.size + (x.size if window else 16)
    assert X86Nchwc().order_cost(node, first, 0, is_rewritten=False) == 2 * moved


def padded_blocks(zeros: int) -> Layout:
    """The blocked layout with so many channels of zeros."""
    return Layout.parse(f"NC[pad:{zeros}]HWc[tile:{BLOCK}]") if zeros else BLOCKED


@pytest.mark.parametrize("plain", [NCHW, NHWC], ids=str)
@pytest.mark.parametrize("channels", [32, 20, 4, 5, 19])
def test_blocks_are_made_and_unmade_by_one_operator(plain: Layout, channels: int) -> None:
    x = draw(2, channels, 5, 7)
    blocked = padded_blocks(-channels % BLOCK)
    there = X86Nchwc().conversion(TensorType(4, to_layout(x, "NCHW", plain).shape), plain, blocked)
    back = X86Nchwc().conversion(TensorType(4, to_layout(x, "NCHW", BLOCKED).shape), blocked, plain)
    for found, source, target in ((there, plain, BLOCKED), (back, BLOCKED, plain)):
        assert found is not None
        one = One("Identity", x)
        way = Implementation((source,), (target,), rewrite=found.rewrite, pads=True)
        writing = OneNode(one.node, way)
        np.testing.assert_array_equal(writing.run({0: x})[0], x)
        assert [node.op_type for node in writing.nodes if node.op_type not in ("Reshape", "Pad")] == [
            "ReorderInput" if target == BLOCKED else "ReorderOutput"
        ]


@pytest.mark.parametrize("plain", [NCHW, NHWC], ids=str)
@pytest.mark.parametrize("channels", [3, 4, BLOCK - 4])
def test_less_than_a_block_is_channels_last_and_padded(plain: Layout, channels: int) -> None:
    x = draw(2, channels, 5, 7)
    padded = Layout.parse(f"NHWC[pad:{BLOCK - channels}]")
    there = X86Nchwc().conversion(TensorType(4, to_layout(x, "NCHW", plain).shape), plain, padded)
    back = X86Nchwc().conversion(TensorType(4, (2, 5, 7, BLOCK)), padded, plain)
    for found, source, target in ((there, plain, BLOCKED), (back, BLOCKED, plain)):
        assert found is not None
        # The same memory: a dimension of one block is all that the blocked layout has more.
        writing = OneNode(
            One("Identity", x).node, Implementation((source,), (target,), rewrite=found.rewrite, pads=True)
        )
        np.testing.assert_array_equal(writing.run({0: x})[0], x)


def test_other_padding_is_no_block() -> None:
    backend = X86Nchwc()
    plain = TensorType(4, (2, 4, 5, 7))
    assert backend.conversion(plain, NCHW, Layout.parse("NHWC[pad:3]")) is None
    assert backend.conversion(plain, NCHW, Layout.parse(f"NWHC[pad:{BLOCK - 4}]")) is None
    assert backend.conversion(TensorType(4, (2, 5, 7, 7)), Layout.parse("NHWC[pad:3]"), NCHW) is None
    assert backend.conversion(plain, NCHW, Layout.parse(f"NH[pad:1]WC[pad:{BLOCK - 4}]")) is None


def test_more_zeros_than_fill_the_last_block_are_no_block() -> None:
    backend = X86Nchwc()
    plain, padded = TensorType(4, (2, 4, 5, 7)), padded_blocks(2 * BLOCK - 4)
    assert backend.conversion(plain, NCHW, padded_blocks(BLOCK - 4)) is not None
    assert backend.conversion(plain, NCHW, padded) is None
    assert backend.conversion(TensorType(4, (2, 2, 5, 7, BLOCK)), padded, NCHW) is None
    assert backend.conversion(plain, NCHW, BLOCKED) is None
    rows = Layout.parse(f"NC[pad:{BLOCK - 4}]H[pad:1]Wc[tile:{BLOCK}]")
    assert backend.conversion(plain, NCHW, rows) is None


def test_a_conversion_that_no_reorder_does_is_a_transpose() -> None:
    backend = X86Nchwc()
    assert backend.conversion(TensorType(2, (1, 32, 8, 8)), NCHW, BLOCKED) is None
    assert backend.conversion(TensorType(4, (1, "C", 8, 8)), NCHW, BLOCKED) is None
    assert backend.conversion(TensorType(4, (1, 32, 8, 8)), NCHW, NHWC) is None
    assert backend.conversion(TensorType(4, (1, 2, 8, 8, BLOCK)), BLOCKED, Layout.parse("HWNC")) is None


def test_a_transpose_has_no_price_by_the_names_of_its_axes() -> None:
    """A legal model whose axes have lost their names would cost another amount."""
    backend, blocked = X86Nchwc(), TensorType(4, (1, 2, 8, 8, BLOCK))
    assert backend.conversion_cost(blocked, BLOCKED, NCHW) is None
    assert backend.conversion_cost(blocked, BLOCKED, Layout.parse("HWNC")) is None
    assert backend.conversion_cost(blocked, BLOCKED, Layout.parse("Nc[tile:2]CHW")) is None


@pytest.mark.parametrize(
    ("shape", "perm", "is_dear"),
    [
        ((1, 8, 12, 28, 28), "02134", False),  # a shuffle of channels copies whole pictures
        ((1, 8, 6, 2, 28, 28), "034521", True),  # the same into blocks
        ((2, 4, 64, 16), "2013", False),  # blocks to tokens: the channels of a block stay a row
        ((1, 4, 6, 28, 28), "03412", False),  # neighbours move as one axis
        ((1, 1, 1, 1), "0231", False),
        ((1, 64, 28, 28), "0231", False),
        ((1, 1, 64, 784), "0132", False),
        ((2, 12, 64, 64), "0213", False),
        ((8, 1, 6, 5), "3210", True),
    ],
)
def test_a_transpose_that_leaves_no_row_whole_is_dear(shape: tuple[int, ...], perm: str, is_dear: bool) -> None:
    source, target = Layout.from_names("012345"[: len(shape)]), Layout.from_names(perm)
    cost = X86Nchwc().conversion_cost(TensorType(4, shape), source, target)
    assert cost == (15 * 2 * 4 * math.prod(shape) if is_dear else None)


def test_a_plain_convolution_costs_more_and_a_depthwise_one_much_more() -> None:
    dense = One("Conv", draw(1, 64, 14, 14), draw(64, 64, 3, 3))
    plain, blocked = dense.ways()
    assert plain.cost > blocked.cost == 0
    depthwise = One("Conv", draw(1, 64, 14, 14), draw(64, 1, 3, 3), group=64)
    multiplications = 64 * 12 * 12 * 9
    assert depthwise.ways()[0].cost / multiplications > 10 * plain.cost / (64 * multiplications)


def test_blocks_that_are_mostly_padding_cost_more_than_a_plain_convolution() -> None:
    plain, *_ = One("Conv", draw(1, 64, 14, 14), draw(2, 64, 3, 3)).ways()
    assert plain.cost == 0


def test_each_blocked_node_notes_its_block_and_its_channels() -> None:
    one = One("Conv", draw(1, 20, 8, 8), draw(24, 20, 3, 3))
    (way,) = one.written()
    writing = OneNode(one.node, way)
    writing.run({0: one.x})
    (conv,) = [node for node in writing.nodes if node.domain]
    assert conv.metadata_props == {"relayout.block": str(BLOCK), "relayout.channels": "24"}


def test_the_block_is_an_option() -> None:
    one = One("Conv", draw(1, 32, 8, 8), draw(24, 32, 3, 3))
    _, way = ask(X86Nchwc(block=8), one.node)
    assert str(way.inputs[0]) == "NCHWc[tile:8]"
    with pytest.raises(UsageError, match="unknown size of a block"):
        X86Nchwc(block=12)


def test_without_onnxruntime_the_error_asks_for_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    one = One("MaxPool", draw(1, 32, 8, 8), kernel_shape=[2, 2])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    probe.cache_clear()
    with pytest.raises(BackendError, match="give the option"):
        ask(X86Nchwc(), one.node)
    assert len(ask(X86Nchwc(block=16), one.node)) == 2


class Broken:
    """A finder for an onnxruntime whose import fails with `error`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return ModuleSpec(name, self) if name == "onnxruntime" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        raise ImportError("initialization failed") from self.error


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broken]:
    finder = Broken(OSError("libc.so.9: no such file"))
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    probe.cache_clear()
    yield finder
    probe.cache_clear()


def test_an_onnxruntime_that_does_not_load_is_not_said_to_be_missing(broken: Broken) -> None:
    with pytest.raises(BackendError, match="onnxruntime cannot be imported") as caught:
        probe()
    assert caught.value.found == "ImportError: initialization failed"


def test_an_interrupt_while_onnxruntime_loads_is_one(broken: Broken) -> None:
    broken.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        probe()


def test_the_harness_lays_out_and_back() -> None:
    x = draw(2, 20, 3, 5)
    for layout in (NCHW, NHWC, BLOCKED, Layout.parse("NHWC")):
        assert np.array_equal(from_layout(to_layout(x, "NCHW", layout), "NCHW", layout, x.shape), x)
