"""Extents behind windows, pads and resizes are formulas of the inputs' dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import Net

from relayout.model.io import read_model


def test_extents_after_windows_are_formulas_of_the_inputs() -> None:
    net = Net()
    image = net.input("x", ("n", 3, "h", "w"))
    kept = net.node("Conv", image, net.weight(3, 3, 3, 3), pads=[1, 1, 1, 1])
    halved = net.node("MaxPool", kept, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(net.node("Conv", halved, net.weight(3, 3, 2, 2), strides=[2, 2]))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[kept] == "[n,3,h,w]"
    assert shapes[halved] == "[n,3,(h - 1)//2 + 1,(w - 1)//2 + 1]"
    assert list(shapes.values())[-1] == "[n,3,((h - 1)//2 - 1)//2 + 1,((w - 1)//2 - 1)//2 + 1]"


@pytest.mark.parametrize("blocks", [1, 20])
def test_extents_of_sums_are_followed_through_any_number_of_blocks(blocks: int) -> None:
    net = Net()
    image = net.input("x", ("n", 4, "h", "w"))
    for _ in range(blocks):
        image = net.node("Add", *(net.node("Conv", image, net.weight(4, 4, 3, 3)) for _ in range(2)))
    net.output(image)
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[-1] == f"[n,4,h - {2 * blocks},w - {2 * blocks}]"


@pytest.mark.parametrize(("opset", "is_computed"), [(10, False), (11, False), (17, True), (18, False), (18, True)])
def test_extents_of_padded_images_are_sums(opset: int, is_computed: bool) -> None:
    """A reflection of three rows and columns on each side, and a convolution of 7 x 7 that takes as many away."""
    net = Net(opset)
    image = net.node("MaxPool", net.input("x", ("n", 3, "h", "w")), kernel_shape=[2, 2], strides=[2, 2])
    pads = [0, 0, 3, 3, 0, 0, 3, 3]
    if opset < 11:
        padded = net.node("Pad", image, mode="reflect", pads=pads)
    elif is_computed:
        turned = net.transpose(net.constant(np.array(pads).reshape(4, 2)), 0, 1)
        padded = net.node("Pad", image, net.node("Reshape", turned, net.constant([-1])), mode="reflect")
    elif opset < 18:
        padded = net.node("Pad", image, net.constant(pads), mode="reflect")
    else:
        padded = net.node("Pad", image, net.constant([3] * 4), "", net.constant([2, 3]), mode="reflect")
    kept = net.node("Conv", padded, net.weight(3, 3, 7, 7))
    net.output(net.node("Add", kept, image))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[padded] == "[n,3,h//2 + 6,w//2 + 6]"
    assert shapes[kept] == shapes[image] == list(shapes.values())[-1] == "[n,3,h//2,w//2]"


def test_pads_that_a_caller_may_replace_say_nothing() -> None:
    net = Net(17)
    net.output(net.node("Relu", net.node("Pad", net.input("x", ("n", "h", "w")), "pads")))
    model = net.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("pads", onnx.TensorProto.INT64, (6,)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1, 1, 0, 1, 1]), "pads"))
    shapes = [str(value.shape) for node in read_model(model).graph for value in node.outputs]
    assert "h + 2" not in shapes[0]


@pytest.mark.parametrize(("policy", "is_known"), [("stretch", True), ("not_larger", False)])
def test_a_resize_to_the_sizes_of_another_tensor_has_its_dims(policy: str, is_known: bool) -> None:
    net = Net(opset=18)
    image = net.conv(net.input("x", ("n", 3, "h", "w")), 3, 8)
    small = net.node("MaxPool", image, kernel_shape=[2, 2], strides=[2, 2])
    sizes = net.node("Slice", net.node("Shape", image), net.constant([2]), net.constant([4]))
    sizes = net.node("Concat", net.node("Shape", small, end=2), sizes, axis=0)
    sized = net.node("Resize", small, "", "", sizes, mode="nearest", keep_aspect_ratio_policy=policy)
    net.output(net.node("Concat", sized, image, axis=1))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert (shapes[sized] == shapes[image]) == is_known
    assert (list(shapes.values())[-1] == "[n,16,h,w]") == is_known


RESIZES = {
    "scales": 'y = Resize <mode = "nearest"> (x, , scales)',
    "scales of a node": """own = Constant <value = float[4] {1.0, 1.0, 2.0, 1.5}> ()
        y = Resize <mode = "nearest"> (x, , own)""",
    "sizes": 'y = Resize <mode = "nearest"> (x, , , sizes)',
    "some axes": 'y = Resize <mode = "nearest", axes = [0, 1, 2, 3]> (x, , scales)',
    "a region": 'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, region, scales)',
}


@pytest.mark.parametrize(
    ("resize", "extents"),
    [
        ("scales", ["n", "2*h", "w"]),
        ("scales of a node", ["n", "2*h", None]),
        ("sizes", ["2", "8", "8"]),
        ("some axes", [None] * 3),
        ("a region", [None] * 3),
    ],
)
def test_extents_after_a_resize_are_multiples_where_the_scales_are_known(
    resize: str, extents: list[str | None]
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,3,h,w] x, float[8] region) => (float[N,C,H,W] y)
        <float[4] scales = {{1.0, 1.0, 2.0, 1.0}}, int64[4] sizes = {{2, 3, 8, 8}}> {{ {RESIZES[resize]} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (result,) = (node.outputs[0] for node in read_model(model).graph if node.op_type == "Resize")
    assert result.shape is not None
    found = [str(result.shape[axis]) for axis in (0, 2, 3)]
    assert [None if text.startswith("unk__") else text for text in found] == extents


def test_the_formulas_give_the_extents_that_the_runtime_finds() -> None:
    for kernel, stride, pads, dilation in [(3, 2, (1, 1), 1), (5, 3, (2, 1), 2)]:
        for extent in (40, 41, 42):
            window = {"kernel_shape": [kernel], "strides": [stride], "pads": list(pads), "dilations": [dilation]}
            found = []
            for dim in (extent, "h"):
                net = Net()
                first = net.node("MaxPool", net.input("x", (1, 1, dim)), **window)
                second = net.node("MaxPool", first, **window)
                net.output(second)
                model = read_model(net.model())
                found.append(next(v.shape for node in model.graph for v in node.outputs if v.name == second)[2])
            expected, formula = found
            assert formula.evaluate({"h": extent}) == expected


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3]},
        {"strides": [2]},
        {"strides": [2], "pads": [1, 1], "output_padding": [1]},
        {"strides": [3], "pads": [2, 0], "dilations": [2]},
    ],
)
def test_extents_after_a_transposed_convolution_are_multiples_and_sums(window: dict[str, Any]) -> None:
    found = []
    for dim in (5, "h"):
        net = Net()
        value = net.node("ConvTranspose", net.input("x", (1, 2, dim)), net.weight(2, 4, 3), **window)
        net.output(net.node("Relu", value))
        shape = read_model(net.model()).graph.outputs[0].shape
        assert shape is not None
        found.append(shape[2])
    expected, formula = found
    assert isinstance(formula, ir.SymbolicDim)
    assert formula.evaluate({"h": 5}) == expected


def test_an_extent_that_a_transposed_convolution_is_told_has_no_formula() -> None:
    net = Net()
    image = net.input("x", (1, 2, "h"))
    for told in ({"auto_pad": "SAME_UPPER", "strides": [2]}, {"output_shape": [9]}):
        net.output(net.node("ConvTranspose", image, net.weight(2, 4, 3), **told))
    shapes = [str(value.shape) for value in read_model(net.model()).graph.outputs]
    assert not any("h" in shape for shape in shapes)
