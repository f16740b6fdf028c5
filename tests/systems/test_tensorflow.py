"""TensorFlow's automatic space-to-depth: its document's example, and the excluded convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers, random_feeds, run
from legalization_checks import TO_NCHW, TO_NHWC, checked, operator, operators

import relayout
from relayout import Report
from relayout.layout.relaid_constant import apply_step
from relayout_backends.tpu import Tpu


def converted(net: Net, backend: object = Tpu, **options: Any) -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal, without a finding of the verifier, and numerically the same."""
    model = net.model()
    legal, report = checked(model, backend, **options)
    if not options:
        assert_same_numbers(model, legal)
    return legal, report


def kernels(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """The shapes of the kernels of the convolutions, in order."""
    shapes = {constant.name: tuple(constant.dims) for constant in model.graph.initializer}
    return [shapes[node.input[1]] for node in model.graph.node if operator(node) == "Conv"]


def strides(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    return [
        tuple(a.ints) for n in model.graph.node if operator(n) == "Conv" for a in n.attribute if a.name == "strides"
    ]


def space_to_depth(images: np.ndarray, block: int) -> np.ndarray:
    """The document's own lines: `images` are NHWC, and what they become has block * block times the channels."""
    batch, height, width, channels = images.shape
    images = images.reshape(batch, height // block, block, width // block, block, channels)
    return images.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // block, width // block, -1)


def fed(report: Report, array: np.ndarray) -> np.ndarray:
    """The source's only input, as the report says to feed it."""
    for step in report.boundary[0].transform:
        array = apply_step(array, step)
    return array


# The document's example: images [2,230,230,3] and a kernel [7,7,3,64], strides 2


def example(*, batch: int = 2, size: int = 230) -> Net:
    """As TensorFlow's models are exported: images channels last, transposed for the convolution, and back."""
    net = Net()
    images = net.transpose(net.input("images", (batch, size, size, 3)), *TO_NCHW)
    value = net.node("Conv", images, net.weight(64, 3, 7, 7), strides=[2, 2])
    net.output(net.transpose(value, *TO_NHWC))
    return net


def test_the_documents_example_runs_over_blocks() -> None:
    legal, report = converted(example())
    assert kernels(legal) == [(4, 4, 12, 64)]
    assert strides(legal) == [(1, 1)]
    # One transpose is left, which makes the blocks: those of the source are gone, its result is channels last already.
    assert report.before.transposes == 2
    assert report.after.transposes == 1
    assert report.after.bytes == 2 * 2 * 230 * 230 * 3 * 4


def test_the_host_may_make_the_blocks() -> None:
    model = example().model()
    legal, report = converted(example(), input_layouts={"images": "any"})
    assert report.after.transposes == 0
    assert kernels(legal) == [(4, 4, 12, 64)]
    (given,) = legal.graph.input
    assert [d.dim_value for d in given.type.tensor_type.shape.dim] == [2, 115, 115, 2, 2, 3]
    feeds = random_feeds(model)
    blocks = fed(report, feeds["images"])
    assert np.array_equal(blocks.reshape(2, 115, 115, 12), space_to_depth(feeds["images"], 2))
    (expected,), (found,) = run(model, feeds), run(legal, {"images": blocks})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_host_fills_up_the_last_blocks_of_an_image_of_odd_size() -> None:
    net = strided((1, 3, 33, 35), (8, 3, 7, 7), strides=[2, 2], pads=[3] * 4)
    legal, report = converted(net, input_layouts={"x": "any"}, output_layouts={"conv_0": "any"})
    assert report.after.transposes == 0
    assert kernels(legal) == [(4, 4, 12, 8)]
    feeds = random_feeds(net.model())
    blocks = fed(report, feeds["x"])
    assert blocks.shape == (1, 17, 18, 2, 2, 3)
    (expected,), (found,) = run(net.model(), feeds), run(legal, {"x": blocks})
    np.testing.assert_allclose(found.transpose(TO_NCHW), expected, rtol=1e-4, atol=1e-4)


def test_the_host_makes_blocks_of_one_axis_of_an_image_of_one_channel() -> None:
    """The rows of a block are all the channels that the convolution has then."""
    net = Net()
    value = net.transpose(net.input("x", (1, 21, 5, 1)), *TO_NCHW)
    net.output(net.node("Conv", value, net.weight(6, 1, 7, 1), strides=[2, 1]))
    legal, report = converted(net, input_layouts={"x": "any"})
    assert report.boundary[0].layout == "NHWCh[tile:2]"
    assert kernels(legal) == [(4, 1, 2, 6)]


def test_the_input_may_be_fed_in_named_blocks() -> None:
    legal, report = converted(example(), input_layouts={"images": "NHWh[tile:2]w[tile:2]C"})
    assert report.after.transposes == 0
    assert kernels(legal) == [(4, 4, 12, 64)]


# When it is not done


@pytest.mark.parametrize(
    ("why", "net", "backend"),
    [
        ("a flag disables it", example(), Tpu(space_to_depth=False)),
        ("the batch is large", example(batch=9, size=30), Tpu),
    ],
)
def test_if_disabled_or_for_large_batches_the_convolution_is_unchanged(why: str, net: Net, backend: object) -> None:
    legal, report = converted(net, backend)
    assert operators(legal) == ["relayout::Conv"], why
    assert kernels(legal) == [(7, 7, 3, 64)]
    assert report.after.transposes == 0


# Operators that TensorFlow's pass leaves out


def strided(shape: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any) -> Net:
    net = Net()
    net.output(net.node("Conv", net.input("x", shape), net.weight(*kernel), net.weight(kernel[0]), **attributes))
    return net


LEFT_OUT: dict[str, tuple[Net, tuple[int, ...]]] = {
    "an image of odd size": (strided((1, 3, 33, 35), (8, 3, 7, 7), strides=[2, 2], pads=[3] * 4), (4, 4, 12, 8)),
    "padding that is no multiple of the block": (
        strided((1, 3, 32, 32), (8, 3, 7, 7), strides=[2, 2], pads=[1, 2, 3, 0]),
        (4, 4, 12, 8),
    ),
    "SAME padding": (strided((1, 3, 32, 32), (8, 3, 7, 7), strides=[2, 2], auto_pad="SAME_UPPER"), (4, 4, 12, 8)),
    "different strides": (strided((1, 3, 32, 33), (8, 3, 6, 7), strides=[2, 3]), (3, 3, 18, 8)),
    "patches": (strided((1, 3, 32, 32), (16, 3, 16, 16), strides=[16, 16]), (1, 1, 768, 16)),
    "video": (strided((1, 3, 8, 20, 20), (8, 3, 7, 7, 7), strides=[2, 2, 2], pads=[3] * 6), (4, 4, 4, 24, 8)),
    "sound": (strided((1, 1, 400), (8, 1, 10), strides=[5]), (2, 5, 8)),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_other_convolutions_run_over_blocks_too(what: str) -> None:
    net, kernel = LEFT_OUT[what]
    assert kernels(converted(net)[0]) == [kernel]


# A network


def network(*, channels_last: bool) -> Net:
    """A residual block behind a first convolution and a pool, and a classifier."""
    net = Net()
    value = net.input("x", (1, 32, 32, 3) if channels_last else (1, 3, 32, 32))
    if channels_last:
        value = net.transpose(value, *TO_NCHW)
    value = net.node("Conv", value, net.weight(8, 3, 7, 7), strides=[2, 2], pads=[3] * 4)
    value = net.node("MaxPool", net.node("Relu", value), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    value = net.node("Add", value, net.conv(net.node("Relu", net.conv(value, 8, 8)), 8, 8))
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    net.output(net.node("Gemm", value, net.weight(8, 10), net.weight(10)))
    return net


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_network_pays_for_its_blocks_alone(channels_last: bool) -> None:
    legal, report = converted(network(channels_last=channels_last))
    assert kernels(legal) == [(4, 4, 12, 8), (3, 3, 8, 8), (3, 3, 8, 8)]
    assert report.after.transposes == 1
    assert report.after.bytes == 2 * 32 * 32 * 3 * 4


def test_an_image_that_others_read_too_is_relaid_for_the_convolution_alone() -> None:
    net = Net()
    image = net.input("x", (1, 3, 32, 32))
    net.output(net.node("Conv", image, net.weight(8, 3, 7, 7), strides=[2, 2], pads=[3] * 4))
    net.output(net.node("Relu", image))
    legal, report = converted(net)
    assert kernels(legal) == [(4, 4, 12, 8)]
    assert report.after.transposes == 2  # the blocks, and the first result back to channels first


def test_two_convolutions_share_the_blocks_of_their_image() -> None:
    net = Net()
    image = net.input("x", (1, 32, 32, 3))
    branches = []
    for kernel in (7, 3):
        value = net.conv(net.transpose(image, *TO_NCHW), 3, 8, kernel, strides=[2, 2])
        branches.append(net.node("Relu", value))
    net.output(net.transpose(net.node("Concat", *branches, axis=1), *TO_NHWC))
    legal, report = converted(net)
    assert kernels(legal) == [(4, 4, 12, 8), (2, 2, 12, 8)]
    assert report.after.transposes == 1


def test_legalizing_again_changes_nothing() -> None:
    legal, _ = converted(network(channels_last=True))
    again, report = relayout.legalize(legal, Tpu)
    assert report.after == report.before
    assert again.graph.node == legal.graph.node


def test_operators_before_the_convolution_accept_blocks() -> None:
    """TensorFlow's pass looks through Cast; every operator that works element by element will do."""
    net = Net()
    image = net.node("Cast", net.input("x", (1, 32, 32, 3), onnx.TensorProto.UINT8), to=onnx.TensorProto.FLOAT)
    image = net.node("Mul", image, net.constant(np.array([0.5, 0.25, 0.125], np.float32)))
    value = net.node("Conv", net.transpose(image, *TO_NCHW), net.weight(8, 3, 7, 7), strides=[2, 2], pads=[3] * 4)
    net.output(net.transpose(value, *TO_NHWC))
    legal, report = converted(net)
    assert kernels(legal) == [(4, 4, 12, 8)]
    assert report.after.transposes == 1
    # Bytes are moved, not floats.
    assert report.after.bytes == 2 * 32 * 32 * 3
