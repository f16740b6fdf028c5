"""`tpu`: a strided convolution over blocks of its image computes the same numbers, and is taken if cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, run
from onnx import helper, numpy_helper, shape_inference
from single_node_rewriter import OneNode, from_layout, to_layout

from relayout import legalize
from relayout.backend import Implementation
from relayout.backend.calls import ask
from relayout.layout.relaid_constant import apply_step
from relayout.model.layout_functions import with_bodies
from relayout.ops.logical_node import logical
from relayout_backends.tpu import Tpu
from relayout_backends.tpu.blocked_convolution import BlockedConvolution, over, over_blocks
from relayout_backends.tpu.space_to_depth import blocked_axis, kernel_steps
from relayout_backends.tpu.strided_convolution import padding, strided_convolution

Array = np.ndarray[Any, Any]
LETTERS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

# One axis


def correlation(image: Array, kernel: Array, stride: int, begin: int, end: int) -> Array:
    """A convolution of one axis and one channel, as its definition says it."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, (begin, end)), len(kernel))
    return windows[::stride] @ kernel


def paddings(kernel: int, stride: int, size: int) -> Iterator[tuple[int, int]]:
    """Those of VALID, SAME_UPPER and SAME_LOWER, where they have one meaning, and some others."""
    for how in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        yield from (pads for pads in padding(how, (), [size], [kernel], [stride]) if min(pads) >= 0)
    yield from ((1, 0), (0, 2), (3, 1), (2, 5))


@pytest.mark.parametrize("kernel", range(1, 12))
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_an_axis_over_blocks_gives_the_same(kernel: int, stride: int) -> None:
    rng = np.random.default_rng(kernel)
    weights = rng.integers(-9, 10, kernel)
    checked = 0
    for size, block in product(range(1, 21), (each for each in (2, 3, 4) if stride % each == 0)):
        image = rng.integers(-9, 10, size)
        for begin, end in dict.fromkeys(paddings(kernel, stride, size)):
            if size + begin + end < kernel:
                continue
            axis = blocked_axis(block, size, kernel, stride, begin, end, 1)
            assert axis is not None
            blocks = np.pad(image, (0, axis.size * block - size)).reshape(axis.size, block)
            taps = np.pad(weights, (axis.front, axis.back)).reshape(axis.kernel, block)
            parts = zip(blocks.T, taps.T, strict=True)
            found = sum(correlation(*part, axis.stride, axis.begin, axis.end) for part in parts)
            assert len(found) == axis.given
            expected = correlation(image, weights, stride, begin, end)
            assert np.array_equal(found[: axis.result], expected)
            assert len(expected) == axis.result
            checked += 1
    assert checked > 50


@pytest.mark.parametrize(
    ("what", "settings"),
    {
        "the block does not divide the stride": {"block": 2, "stride": 3},
        "the kernel is dilated": {"dilation": 2},
        "the padding is negative": {"begin": -1},
        "nothing is given": {"size": 3},
    }.items(),
)
def test_an_axis_that_is_not_exact_over_blocks_is_declined(what: str, settings: dict[str, int]) -> None:
    usual = {"block": 2, "size": 9, "kernel": 5, "stride": 2, "begin": 0, "end": 0, "dilation": 1}
    assert blocked_axis(**usual) is not None
    assert blocked_axis(**{**usual, **settings}) is None, what


def test_the_kernel_of_the_document_is_padded_and_transposed_as_documented() -> None:
    axis = blocked_axis(2, size=224, kernel=7, stride=2, begin=3, end=3, dilation=1)
    assert axis is not None
    kernel = np.arange(7 * 7 * 3 * 64).reshape(7, 7, 3, 64)
    # The document's own lines, in numpy.
    expected = np.pad(kernel, [[1, 0], [1, 0], [0, 0], [0, 0]])
    expected = expected.reshape(4, 2, 4, 2, 3, 64).transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, 12, 64)
    found = kernel.transpose(3, 2, 0, 1)
    for step in kernel_steps([axis, axis], (2, 3, 1, 0), 3, 64):
        found = apply_step(found, step)
    assert np.array_equal(found, expected)


# One node


def convolution(
    image: Sequence[int | str], kernel: Sequence[int], *, bias: bool = False, opset: int = 17, **attributes: Any
) -> onnx.ModelProto:
    """A convolution of whole numbers, so that no rounding hides a difference."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(-4, 5, kernel), **({"b": rng.integers(-9, 10, kernel[0])} if bias else {})}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", *constants], ["y"], name="conv", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return shape_inference.infer_shapes(model)


def only_node(model: onnx.ModelProto) -> ir.Node:
    # Of a copy: whoever renames a constant renames the model's.
    return ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString())).graph[0]


def blocked(model: onnx.ModelProto) -> list[BlockedConvolution]:
    found = strided_convolution(logical(only_node(model)))
    assert found is not None
    return over_blocks(found)


def assert_same_over_blocks(model: onnx.ModelProto) -> int:
    """Every convolution over blocks gives exactly what the node gives; returns how many there are."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)
    (expected,) = run(model, {"x": x})
    letters, opset = LETTERS[len(shape)], model.opset_import[0].version
    for each in blocked(model):
        node = only_node(model)
        plain = Implementation(tuple(ask(Tpu(space_to_depth=False), node)[0].inputs), ask(Tpu(), node)[0].results)
        way = each.implementation(plain, 0)
        writing = OneNode(node, way, letters, opset)
        assert way.rewrite is not None
        way.rewrite(writing)
        written = with_bodies(ir.to_proto(writing.model()))
        (found,) = run(written, {"in_0": to_layout(x, letters, way.inputs[0])})
        assert np.array_equal(from_layout(found, letters, way.results[0], expected.shape), expected), each.layout
    return len(blocked(model))


def means_one_thing(model: onnx.ModelProto) -> bool:
    """False where SAME leaves a window shorter than the stride with a negative padding."""
    found = strided_convolution(logical(only_node(model)))
    return found is not None and min(min(pads) for pads in found.pads) >= 0


PADDINGS: dict[str, dict[str, Any]] = {
    "valid": {"auto_pad": "VALID"},
    "same upper": {"auto_pad": "SAME_UPPER"},
    "same lower": {"auto_pad": "SAME_LOWER"},
    "more before": {"pads": [3, 1, 0, 2]},
    "more after": {"pads": [0, 1, 5, 1]},
}


@pytest.mark.parametrize("how", PADDINGS)
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("kernel", range(1, 12))
def test_a_convolution_over_blocks_gives_the_same(kernel: int, stride: int, how: str) -> None:
    window = (kernel, 12 - kernel if 12 - kernel >= stride else kernel)
    model = convolution((2, 3, 13, 12), (4, 3, *window), strides=[stride, stride], **PADDINGS[how])
    ways = 2 if stride == 4 else 1
    assert assert_same_over_blocks(model) == (ways if means_one_thing(model) else 0)


OTHERS: dict[str, tuple[onnx.ModelProto, int]] = {
    "one dimension": (convolution((2, 1, 41), (6, 1, 10), strides=[5], bias=True), 1),
    "three dimensions": (convolution((1, 3, 7, 12, 11), (4, 3, 3, 7, 7), strides=[2, 2, 2], pads=[1, 3, 3] * 2), 1),
    "frames that are not strided": (
        convolution((1, 3, 5, 9, 8), (4, 3, 3, 3, 5), strides=[1, 2, 2], pads=[1, 1, 2, 1, 1, 2]),
        1,
    ),
    "two strides": (convolution((2, 3, 13, 17), (4, 3, 5, 6), strides=[2, 3], pads=[2, 2, 2, 3]), 3),
    "patches": (convolution((1, 3, 32, 33), (8, 3, 16, 16), strides=[16, 16], bias=True), 4),
    "dilated across the blocks": (convolution((1, 2, 12, 12), (4, 2, 3, 3), strides=[2, 1], dilations=[1, 3]), 1),
    "dilated within the blocks": (convolution((1, 2, 12, 12), (4, 2, 3, 3), strides=[2, 2], dilations=[2, 2]), 0),
    "a last block that is not read": (convolution((1, 2, 5, 9), (4, 2, 2, 1), strides=[4, 4]), 2),
    "the same before Slice had inputs": (convolution((1, 2, 5, 9), (4, 2, 2, 1), strides=[4, 4], opset=9), 2),
}


@pytest.mark.parametrize("what", OTHERS)
def test_every_offered_implementation_computes_the_same(what: str) -> None:
    model, ways = OTHERS[what]
    assert assert_same_over_blocks(model) == ways


def test_a_kernel_in_another_layout_is_read_as_onnx_has_it() -> None:
    model = convolution((1, 3, 12, 12), (4, 3, 5, 5), strides=[2, 2], pads=[2] * 4)
    (expected,) = blocked(model)
    node = model.graph.node[0]
    node.domain = "relayout"
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    node.attribute.extend(helper.make_attribute(name, layout) for name, layout in layouts.items())
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 12, 12, 3)))
    kernel = numpy_helper.to_array(model.graph.initializer[0]).transpose(2, 3, 1, 0)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(kernel), "w"))
    (found,) = blocked(model)
    assert found == expected


# The layouts that are offered


def offered(model: onnx.ModelProto, **options: Any) -> dict[str, int]:
    """The layouts of the data in which the backend runs the only node, with their costs."""
    return {str(way.inputs[0]): way.cost for way in ask(Tpu(**options), only_node(model))}


def first(batch: int | str = 1, channels: int = 3, **attributes: Any) -> onnx.ModelProto:
    """ResNet's first convolution."""
    settings = {"strides": [2, 2], "pads": [3] * 4, **attributes}
    return convolution((batch, channels, 224, 224), (64, channels, 7, 7), **settings)


IN_BLOCKS = "NHWh[tile:2]w[tile:2]C"


def test_the_first_convolution_of_an_image_model_is_cheaper_over_blocks() -> None:
    # For each of 112 x 112 places, and each of the kernel's, 128 floats: 7 x 7 places against 4 x 4.
    assert offered(first()) == {"NHWC": 112 * 112 * (49 - 16) * 128 * 4, IN_BLOCKS: 0}


def test_blocks_replace_channels_only_if_that_is_cheaper() -> None:
    # A patch of 16 x 16 places has 768 channels, which the matrix unit takes in 6 passes.
    patches = offered(convolution((1, 3, 224, 224), (768, 3, 16, 16), strides=[16, 16]))
    whole = "NHWh[tile:16]w[tile:16]C"
    assert patches[whole] == 0
    assert patches["NHWC"] == 14 * 14 * (256 - 6) * 128 * 6 * 4
    # A kernel of one place reads one place of each block.
    assert offered(convolution((1, 3, 8, 8), (4, 3, 1, 1), strides=[2, 2])) == {"NHWC": 0}


@pytest.mark.parametrize(
    "model",
    [
        first(batch=9),
        first(channels=9),
        first(strides=[1, 1]),
        first(dilations=[2, 2]),
        convolution((1, 4, 24, 24), (4, 2, 7, 7), strides=[2, 2], group=2),
        convolution((1, 3, "H", 24), (4, 3, 7, 7), strides=[2, 2]),
    ],
    ids=["large batch", "many channels", "no stride", "dilated", "groups", "unknown size"],
)
def test_without_a_reason_or_a_proof_the_convolution_stays_as_it_is(model: onnx.ModelProto) -> None:
    assert offered(model) == {"NHWC": 0}


def test_a_kernel_that_is_no_constant_stays_as_it_is() -> None:
    model = first()
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (64, 3, 7, 7)))
    assert offered(model) == {"NHWC": 0}


def test_it_can_be_disabled_and_its_bounds_changed() -> None:
    assert offered(first(), space_to_depth=False) == {"NHWC": 0}
    assert IN_BLOCKS in offered(first(batch=64), max_batch=64)
    assert IN_BLOCKS in offered(first(channels=12), max_channels=12)


def test_a_batch_that_is_not_known_counts_as_one() -> None:
    assert offered(first(batch="N")) == offered(first(batch=1))


def test_a_relaid_source_of_blocks_of_one_is_the_convolution_itself() -> None:
    found = strided_convolution(only_node(first()))
    assert found is not None
    itself = over(found)
    assert itself is not None
    assert str(itself.layout) == "NHWC"
    assert itself.bytes_streamed == 112 * 112 * 49 * 128 * 4


def test_a_kernel_behind_a_transpose_is_a_constant() -> None:
    """jax2onnx leaves HWIO kernels behind Transposes. The second run finds the kernel transposed."""
    net = Net(17)
    image = net.transpose(net.input("x", (1, 64, 64, 3)), 0, 3, 1, 2)
    made = net.node("Conv", image, net.transpose(net.weight(4, 4, 3, 96), 3, 2, 0, 1), strides=[4, 4])
    net.output(net.transpose(net.node("Relu", made), 0, 2, 3, 1))
    model = net.model()
    legal, report = legalize(model, "tpu", check=True)
    assert report.after.transposes == 1
    assert_same_numbers(model, legal)
    again, second = legalize(legal, "tpu")
    assert (again, second.cost) == (legal, report.cost)
