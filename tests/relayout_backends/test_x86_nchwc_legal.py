"""Whole networks for `x86-nchwc`: the same numbers, no finding, few reorders, and idempotence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from graphs import Net

import relayout
from relayout.report.render import render_text
from relayout_backends.x86_nchwc import X86Nchwc
from relayout_backends.x86_nchwc.blocks import DOMAIN, probe

pytest.importorskip("onnxruntime")

BLOCK = probe()
Network = Callable[[], onnx.ModelProto]


def conv(net: Net, x: str, inputs: int, outputs: int, kernel: int = 3, **attributes: object) -> str:
    """A convolution whose results are about as large as its data, so that deep networks stay in range."""
    groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
    drawn = net.rng.standard_normal((outputs, inputs // groups, kernel, kernel)) / (inputs // groups) ** 0.5 / kernel
    weights = net.constant(drawn.astype(np.float32)), net.weight(outputs)
    return str(net.node("Conv", x, *weights, pads=[kernel // 2] * 4, **attributes))


def residual() -> onnx.ModelProto:
    """Three residual blocks after a convolution of an image, pooled to a vector."""
    net = Net()
    x = net.node("Relu", conv(net, net.input("image", [1, 3, 32, 32]), 3, 2 * BLOCK, strides=[2, 2]))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for _ in range(3):
        y = net.node("Relu", conv(net, x, 2 * BLOCK, BLOCK, 1))
        y = conv(net, y, BLOCK, 2 * BLOCK)
        x = net.node("Relu", net.node("Add", x, y))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    net.output(net.node("MatMul", x, net.weight(2 * BLOCK, 5)))
    return net.model()


def dense() -> onnx.ModelProto:
    """Normalized, convolved and concatenated, with channels that are no whole blocks at the end."""
    net = Net()
    x = conv(net, net.input("image", [2, 3, 16, 16]), 3, BLOCK)
    channels = BLOCK
    for grown in (BLOCK, 2 * BLOCK, 5):
        parameters = [net.weight(channels) for _ in range(3)]
        parameters.append(net.constant(net.rng.uniform(0.5, 2, channels).astype(np.float32)))
        y = net.node("Relu", net.node("BatchNormalization", x, *parameters))
        x = net.node("Concat", x, conv(net, y, channels, grown), axis=1)
        channels += grown
    net.output(net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))
    return net.model()


def gated() -> onnx.ModelProto:
    """Depthwise convolutions, squeeze and excite, channels that are no whole blocks."""
    net = Net()
    x = net.input("image", [1, 20, 12, 12])
    for _ in range(2):
        y = net.node("HardSwish", conv(net, x, 20, 40, 1))
        y = net.node(
            "Clip", conv(net, y, 40, 40, 5, group=40), net.constant(np.float32(0)), net.constant(np.float32(6))
        )
        gate = net.node("GlobalAveragePool", y)
        gate = net.node("Sigmoid", conv(net, net.node("Relu", conv(net, gate, 40, 10, 1)), 10, 40, 1))
        y = conv(net, net.node("Mul", y, gate), 40, 20, 1)
        x = net.node("Add", x, y)
    net.output(x)
    return net.model()


def channels_last() -> onnx.ModelProto:
    """Convolutions between Transposes, element-wise operators on channels-last data, as exporters write them."""
    net = Net()
    x = net.input("image", [1, 16, 16, 8])
    channels = 8
    for outputs in (2 * BLOCK, 3 * BLOCK):
        y = conv(net, net.node("Transpose", x, perm=[0, 3, 1, 2]), channels, outputs)
        y = net.node("Transpose", y, perm=[0, 2, 3, 1])
        y = net.node("Sub", y, net.weight(outputs))
        y = net.node("Relu", net.node("Mul", y, net.weight(1, 1, 1, outputs)))
        x = net.node("Concat", y, y, axis=3)
        channels = 2 * outputs
    net.output(net.node("ReduceMean", x, axes=[1, 2], keepdims=0))
    return net.model()


def dynamic() -> onnx.ModelProto:
    """A batch, a height and a width that are not known."""
    net = Net()
    x = net.node("Relu", conv(net, net.input("image", ["N", 3, "H", "W"]), 3, 2 * BLOCK))
    y = net.node("Sigmoid", conv(net, x, 2 * BLOCK, 2 * BLOCK))
    x = net.node("Mul", net.node("Add", x, y), net.weight(2 * BLOCK, 1, 1))
    x = net.node("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    net.output(conv(net, x, 2 * BLOCK, 4))
    return net.model()


def uniform() -> onnx.ModelProto:
    """Kernels that are one number throughout, as in networks without weights, with normalizations after them."""
    net = Net()
    x, channels = net.input("image", [1, 3, 12, 12]), 3
    for outputs in (2 * BLOCK, 3 * BLOCK):
        shape = net.constant(np.array([outputs, channels, 3, 3], np.int64))
        fill = onnx.numpy_helper.from_array(np.array([0.25 / channels], np.float32))
        x = net.node("Conv", x, net.node("ConstantOfShape", shape, value=fill), pads=[1, 1, 1, 1])
        parameters = [net.weight(outputs) for _ in range(3)]
        parameters.append(net.constant(net.rng.uniform(0.5, 2, outputs).astype(np.float32)))
        x = net.node("Relu", net.node("BatchNormalization", x, *parameters))
        channels = outputs
    net.output(net.node("GlobalAveragePool", x))
    return net.model()


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node)


def reorders(model: onnx.ModelProto) -> int:
    counts = operators(model)
    return counts[f"{DOMAIN}::ReorderInput"] + counts[f"{DOMAIN}::ReorderOutput"] + counts["Transpose"]


@pytest.mark.parametrize("network", [residual, dense, gated, channels_last, dynamic, uniform], ids=lambda n: n.__name__)
def test_a_network_keeps_its_numbers(network: Network) -> None:
    source = network()
    legal, report = relayout.legalize(source, X86Nchwc())
    assert report.status == "optimal"
    verification = relayout.verify(legal, X86Nchwc(), against=source, report=report)
    assert verification.findings == ()
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


@pytest.mark.parametrize("network", [gated, channels_last, dynamic], ids=lambda n: n.__name__)
def test_the_totals_count_reorders_apart_from_transposes(network: Network) -> None:
    legal, report = relayout.legalize(network(), X86Nchwc())
    assert report.before.reorders == 0
    assert report.after.reorders + report.after.transposes == reorders(legal)
    assert report.after.reorders == sum(conversion.kind == "reorder" for conversion in report.conversions)
    assert ("reorders" in render_text(report)) == (report.after.reorders > 0)


@pytest.mark.parametrize(("network", "most"), [(residual, 0), (gated, 4), (channels_last, 1), (dynamic, 1)])
def test_a_network_is_blocked_once(network: Network, most: int) -> None:
    legal, _ = relayout.legalize(network(), X86Nchwc())
    assert reorders(legal) <= most


def narrow(height: int | str | None, width: int | str | None, channels: int) -> onnx.ModelProto:
    """Pictures of unknown size with less than a block of channels at the end, which are their channels last."""
    net = Net()
    x = net.input("image", [1, channels, height, width])
    y = net.node(
        "Add", conv(net, conv(net, x, channels, channels, group=channels), channels, 8, 1), conv(net, x, channels, 8, 1)
    )
    net.output(net.node("GlobalAveragePool", y))
    return net.model()


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("channels", [32, 16])
@pytest.mark.parametrize("extents", [("H", "W"), ("H", 8), (8, "W"), ("S", "S"), (None, None)])
def test_less_than_a_block_of_a_picture_of_unknown_size_is_reshaped_when_the_model_runs(
    extents: tuple[int | str | None, int | str | None], channels: int, block: int
) -> None:
    model = narrow(*extents, channels)
    legal, report = relayout.legalize(model, X86Nchwc(block=block))
    assert report.status == "optimal"
    assert relayout.verify(legal, X86Nchwc(block=block)).findings == ()
    if block == BLOCK:
        assert relayout.verify(legal, X86Nchwc(), against=model).passed


def test_a_convolution_of_few_outputs_is_cheaper_plain() -> None:
    legal, _ = relayout.legalize(dynamic(), X86Nchwc())
    assert [node.output[0] for node in legal.graph.node if node.op_type == "Conv" and not node.domain] == ["conv_7"]


def padded() -> onnx.ModelProto:
    """A convolution of few channels, whose blocks are padded, between reorders; and a Softmax of what it gives."""
    net = Net()
    few = conv(net, net.node("Relu", net.input("image", [1, 2 * BLOCK, 24, 24])), 2 * BLOCK, BLOCK // 2 + 2)
    wide = conv(net, net.node("Sigmoid", few), BLOCK // 2 + 2, 4 * BLOCK)
    net.output(net.node("Softmax", wide, axis=3))
    return net.model()


@pytest.mark.parametrize("network", [residual, dense, gated, channels_last, padded], ids=lambda n: n.__name__)
def test_a_blocked_network_is_legal_already_and_costs_the_same(network: Network) -> None:
    legal, first = relayout.legalize(network(), X86Nchwc())
    again, second = relayout.legalize(legal, X86Nchwc())
    assert again.graph.node == legal.graph.node
    assert first.account is not None
    assert second.account is not None
    assert second.cost == second.account.cost == first.account.cost
    parts = ("transposes", "reorders", "pads", "operators")
    assert [getattr(second.account, part).cost for part in parts] == [
        getattr(first.account, part).cost for part in parts
    ]


def one_place(*, has_offset: bool) -> onnx.ModelProto:
    """An activation behind a convolution of one place, in blocks that are padded."""
    channels = 3 * BLOCK - 4
    net = Net()
    x = net.node("Relu", conv(net, net.input("image", [1, 2 * BLOCK, 24, 24]), 2 * BLOCK, 2 * BLOCK))
    x = conv(net, net.node("GlobalAveragePool", x), 2 * BLOCK, channels, 1)
    x = net.node("Add", x, net.weight(1, channels, 1, 1)) if has_offset else x
    net.output(conv(net, net.node("Relu", x), channels, 2 * BLOCK, 1))
    return net.model()


def filled_up() -> onnx.ModelProto:
    """Channels that are no multiple of four, so that they are filled up before they are put into blocks."""
    net = Net()
    x = net.node("Softmax", conv(net, net.input("image", [1, BLOCK, 9, 9]), BLOCK, BLOCK + 2), axis=1)
    net.output(net.node("Softmax", conv(net, x, BLOCK + 2, 3 * BLOCK), axis=1))
    return net.model()


def part_of_a_block() -> onnx.ModelProto:
    """Channels of less than a block and no multiple of four, of a picture with more rows than a block has places."""
    net = Net()
    image = net.node("Relu", net.input("image", [1, BLOCK - 6, 5 * BLOCK, 5 * BLOCK]))
    net.output(conv(net, image, BLOCK - 6, BLOCK - 6, group=BLOCK - 6))
    return net.model()


def space_to_depth() -> onnx.ModelProto:
    """Squares of pixels as channels, which two Transposes would put into blocks: one in whole rows, one in elements."""
    net = Net()
    split = net.node("Reshape", net.input("image", [1, 3, 224, 224]), net.constant([1, 3, 56, 4, 56, 4]))
    image = net.node("Reshape", net.transpose(split, 0, 3, 5, 1, 2, 4), net.constant([1, 48, 56, 56]))
    net.output(conv(net, image, 48, 4 * BLOCK))
    return net.model()


def attention() -> onnx.ModelProto:
    """Attention over the places of a picture: the parts of the convolution have larger blocks than the backend's."""
    net = Net()
    x = conv(net, net.input("image", [1, 4 * BLOCK, 14, 14]), 4 * BLOCK, 72 * BLOCK, 1)
    heads = net.transpose(net.node("Reshape", x, net.constant([1, 3, 6, 4 * BLOCK, 196])), 1, 0, 2, 4, 3)
    q, k, v = (net.node("Squeeze", part, net.constant([0])) for part in net.node("Split", heads, results=3, axis=0))
    x = net.node("MatMul", net.node("Softmax", net.node("MatMul", q, net.transpose(k, 0, 1, 3, 2)), axis=-1), v)
    x = net.node("Reshape", net.transpose(x, 0, 1, 3, 2), net.constant([1, 24 * BLOCK, 14, 14]))
    net.output(conv(net, x, 24 * BLOCK, 4 * BLOCK, 1))
    return net.model()


@pytest.mark.parametrize(
    "model",
    [
        one_place(has_offset=False),
        one_place(has_offset=True),
        filled_up(),
        part_of_a_block(),
        space_to_depth(),
        attention(),
        narrow(8, "w", 4),
        narrow("h", 8, 3),
    ],
    ids=[
        "one-place",
        "offset",
        "filled-up",
        "part-of-a-block",
        "space-to-depth",
        "attention",
        "width-open",
        "height-open",
    ],
)
def test_a_second_run_changes_nothing(model: onnx.ModelProto) -> None:
    legal, first = relayout.legalize(model, X86Nchwc())
    again, second = relayout.legalize(legal, X86Nchwc())
    assert (again, second.cost) == (legal, first.cost)
    for report in (first, second):
        assert report.verification is not None
        assert report.verification.passed


def test_an_activation_is_blocked_with_its_convolution_and_what_follows_is_as_in_the_source() -> None:
    """The reorder costs as much behind any of them. Abs would have more to compute in blocks, which are padded: 44
    channels are no whole blocks, be they of 8 or of 16."""
    net = Net()
    x = net.node("Relu", conv(net, net.input("image", [1, 64, 12, 12]), 64, 44))
    net.output(net.node("Abs", x))
    legal, report = relayout.legalize(net.model(), X86Nchwc())
    assert [node.op_type for node in legal.graph.node][1:] == ["Conv", "ReorderOutput", "Abs"]
    assert report.account is not None
    assert report.account.operators.cost == 0


def test_convolutions_do_what_follows_them() -> None:
    legal, _ = relayout.legalize(residual(), X86Nchwc())
    counts = operators(legal)
    assert counts["Relu"] == counts["Add"] == 0


def test_a_normalization_goes_into_a_kernel_that_stays_computed() -> None:
    legal, _ = relayout.legalize(uniform(), X86Nchwc())
    assert operators(legal)[f"{DOMAIN}::Conv"] == 2
    assert max(np.prod(tensor.dims) for tensor in legal.graph.initializer) < 3 * BLOCK * 2 * BLOCK * 9


def test_a_model_for_blocks_of_eight_is_found_out() -> None:
    legal, _ = relayout.legalize(residual(), X86Nchwc(block=8))
    assert relayout.verify(legal, X86Nchwc(block=8)).findings == ()
    assert any(f.rule == "blocked-value" for f in relayout.verify(legal, X86Nchwc(block=16)).findings)


def test_a_bias_added_to_blocks_by_channel_is_found() -> None:
    legal, _ = relayout.legalize(residual(), X86Nchwc())
    pool = next(node for node in legal.graph.node if node.op_type == "MaxPool")
    legal.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2 * BLOCK, 1, 1), np.float32), "wrong"))
    place = list(legal.graph.node).index(pool)
    legal.graph.node.insert(place, onnx.helper.make_node("Add", [pool.input[0], "wrong"], ["shifted"], name="shift"))
    pool.input[0] = "shifted"
    legal.graph.node[place + 1].input[0] = "shifted"
    findings = [f for f in relayout.verify(legal, X86Nchwc()).findings if f.rule == "blocked-value"]
    assert [finding.node for finding in findings] == ["shift"]


def test_a_pooled_vector_in_blocks_is_read_as_the_vector_that_it_is() -> None:
    net = Net()
    x = conv(net, net.input("image", [1, BLOCK, 8, 8]), BLOCK, 2 * BLOCK)
    net.output(net.node("Softmax", net.node("GlobalAveragePool", x), axis=1))
    legal, _ = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert [node.op_type for node in legal.graph.node][-3:] == ["Conv", "GlobalAveragePool", "Softmax"]


def test_a_single_block_of_as_many_channels_as_rows_is_the_picture_that_it_is() -> None:
    net = Net()
    net.output(net.node("Relu", conv(net, net.input("image", [1, BLOCK, BLOCK, BLOCK]), BLOCK, BLOCK, 7)))
    legal, _ = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert [node.op_type for node in legal.graph.node][:2] == ["Transpose", "Conv"]


def test_a_picture_of_tokens_in_blocks_is_upsampled_and_divided() -> None:
    net = Net()
    tokens = net.node("MatMul", net.input("a", (1, 64, 16)), net.input("b", (1, 16, 2 * BLOCK)))
    image = net.node("Reshape", net.transpose(tokens, 0, 2, 1), net.constant([1, 2 * BLOCK, 8, 8]))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    placed = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    image = net.node("Resize", image, "", scales, mode="nearest", **placed)
    image = net.node("Mul", image, net.node("Erf", net.node("Div", image, net.constant(np.array(1.4, np.float32)))))
    net.output(conv(net, image, 2 * BLOCK, 2 * BLOCK))
    legal, report = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert [node.op_type for node in legal.graph.node][-6:-1] == ["Upsample", "Div", "Erf", "Mul", "Conv"]
    assert report.verification is not None
    assert report.verification.passed


def test_the_shape_of_blocks_is_read_from_blocks() -> None:
    """The extents of a batch and of channels, which a Resize by size reads, take no reorder: the channels are known."""
    net = Net(18)
    x = conv(net, net.input("image", ["n", 2 * BLOCK, 8, "w"]), 2 * BLOCK, 2 * BLOCK)
    for start, end in ((0, 2), (0, 4), (2, 4)):
        net.output(net.node("Shape", x, start=start, end=end), onnx.TensorProto.INT64)
    net.output(conv(net, x, 2 * BLOCK, 2 * BLOCK))
    legal, report = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert report.after.reorders == 2
    again, second = relayout.legalize(legal, "x86-nchwc", check=True)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_blocks_become_tokens_at_their_traffic() -> None:
    """Beside one more token it is cheaper to turn the blocks before the Concat than the tokens behind it."""
    net = Net(18)
    x = conv(net, net.input("image", ["n", 3, 16, 16]), 3, 2 * BLOCK, strides=[4, 4])
    tokens = net.node("Reshape", x, net.constant([0, 2 * BLOCK, 16]))
    first = net.node(
        "Expand",
        net.weight(1, 1, 2 * BLOCK),
        net.node("Concat", net.node("Shape", x, start=0, end=1), net.constant([1, 2 * BLOCK]), axis=0),
    )
    joined = net.node("Concat", first, net.transpose(tokens, 0, 2, 1), axis=1)
    net.output(net.transpose(net.node("Relu", joined), 1, 0, 2))
    _, report = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert report.after.transposes == 1
    assert report.cost == 2 * 4 * 2 * BLOCK * 16


def test_a_fused_operator_has_the_name_of_a_value_in_another_order() -> None:
    """Of a source with channels last: the result of the blocks is named as the Relu's, whose channels are last."""
    net = Net()
    x = conv(net, net.transpose(net.input("image", [1, 20, 20, 3]), 0, 3, 1, 2), 3, 2 * BLOCK)
    x = net.node("Relu", net.transpose(x, 0, 2, 3, 1))
    x = conv(net, net.transpose(x, 0, 3, 1, 2), 2 * BLOCK, 2 * BLOCK)
    net.output(net.node("Flatten", net.node("GlobalAveragePool", x)))
    original = net.model()
    legal, _ = relayout.legalize(original, "x86-nchwc")
    assert [node.op_type for node in legal.graph.node if node.domain == DOMAIN][:2] == ["Conv", "Conv"]
    assert relayout.verify(legal, "x86-nchwc", against=original).passed
