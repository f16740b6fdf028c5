"""The verifier names axes only from operators that determine them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import findings_about
from onnx import TensorProto

from relayout import legalize
from relayout.verification.verifier import verify

SHAPE = (4, 4, 6, 4)


def beside_a_row(gone: int, lies: tuple[int, ...]) -> onnx.ModelProto:
    """A convolution calls three of the four axes of x by their names; the fourth has none."""
    net = Net(opset=17)
    x = net.input("x", SHAPE)
    row = net.transpose(net.node("ReduceMax", x, axes=[gone], keepdims=0), *lies)
    left = [extent for axis, extent in enumerate(SHAPE) if axis != gone]
    net.output(net.node("Conv", row, net.weight(3, left[lies[1]], 2)))
    larger = net.node("Resize", x, "", "", net.constant([4, 4, 3, 4]), mode="nearest")
    net.output(net.node("LayerNormalization", larger, net.weight(4), net.weight(4), axis=-1))
    return net.model()


@pytest.mark.parametrize("gone", [0, 1, 3])
@pytest.mark.parametrize("lies", list(permutations(range(3))), ids=lambda lies: "".join("NCW"[i] for i in lies))
def test_a_resizes_layout_does_not_name_axes_that_a_convolution_names(gone: int, lies: tuple[int, ...]) -> None:
    source = beside_a_row(gone, lies)
    legal, _ = legalize(source, "opencl")
    assert [node.op_type for node in legal.graph.node if node.domain == "relayout"] == ["Resize"]
    assert_same_numbers(source, legal)
    assert not verify(legal, "opencl", against=source).findings


def test_a_resizes_layout_names_axes_without_other_names() -> None:
    net = Net(opset=17)
    larger = net.node("Resize", net.input("x", SHAPE), "", "", net.constant([4, 4, 3, 4]), mode="nearest")
    net.output(net.node("ReduceSumSquare", larger, axes=[1]))
    legal, _ = legalize(net.model(), "opencl")
    (place,) = (n for n, node in enumerate(legal.graph.node) if node.op_type == "ReduceSumSquare")
    (resize,) = (node for node in legal.graph.node if node.op_type == "Resize")
    assert verify(legal, "opencl").passed
    legal.graph.node.insert(place, onnx.helper.make_node("Transpose", resize.output, ["turned"], perm=[0, 3, 1, 2]))
    legal.graph.node[place + 1].input[0] = "turned"
    del legal.graph.value_info[:]
    findings = verify(legal, "opencl").findings
    assert ("layout-requirement", "NHWC", "NCHW") in [(each.rule, each.expected, each.found) for each in findings]


def test_a_resize_does_not_change_an_axis_because_its_new_extent_is_unknown() -> None:
    net = Net(opset=21)
    image = net.input("x", ("n", 4, "h", "w"))
    larger = net.node(
        "Resize", image, "", "", net.constant([2, 8]), axes=[2, -3], keep_aspect_ratio_policy="not_smaller"
    )
    net.output(larger)
    source = net.model()
    legal, _ = legalize(source, "tpu")
    assert [node.op_type for node in legal.graph.node if node.domain == "relayout"] == ["Resize"]
    assert not verify(legal, "tpu", against=source).findings


def test_of_two_axes_that_go_by_one_name_one_is_another() -> None:
    net = Net(opset=17)
    x = net.input("x", (3, 3, 1, 3))
    turned = net.transpose(x, 0, 3, 2, 1)
    normal = net.node("BatchNormalization", turned, *[net.constant(np.ones(3, np.float32)) for _ in range(4)])
    # So the first axis of what is turned is called by the name of its last.
    net.output(net.node("Add", x, normal))
    net.output(net.node("ArgMax", turned, axis=-3, keepdims=1), TensorProto.INT64)
    source = net.model()
    legal, _ = legalize(source, "canonical")
    assert_same_numbers(source, legal)
    assert not verify(legal, "canonical", against=source).findings


@pytest.mark.parametrize("axes", [None, []], ids=["no axes", "an empty list of axes"])
@pytest.mark.parametrize(
    ("reader", "backend"), [("InstanceNormalization (v, s, s)", "canonical"), ("Conv (v, w)", "tpu")]
)
def test_a_reduction_of_all_axes_names_none_of_them(axes: list[int] | None, reader: str, backend: str) -> None:
    """It keeps dims of extent 1, which may lie in any order. Those of its operand have no names by that."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        net (float[n,m,8,3] x) => (y, z)
            <float[1] s = {{1.0}}, float[2,1,1,1] w = {{0.5, 2.0}}, float[4] f = {{1, 1, 2, 2}}> {{
            v = ReduceL2 (x{"" if axes is None else ", axes"})
            y = {reader}
            z = Resize <mode = "nearest"> (x, "", f) }}"""
    )
    if axes is not None:
        model.graph.initializer.append(onnx.helper.make_tensor("axes", TensorProto.INT64, [0], []))
    legal, _ = legalize(model, backend)
    assert findings_about(verify(legal, backend, against=model)) == []


def test_an_axis_of_which_one_element_is_left_has_the_name_of_none_before() -> None:
    """The convolution may read the element of every axis as that of any other."""
    net = Net(opset=21)
    x = net.input("x", (1, 1, 4, 1))
    least, _ = net.node("TopK", x, net.constant([1]), results=2, axis=-2, largest=0)
    net.output(net.transpose(net.node("Conv", least, net.weight(4, 1, 1, 1)), 0, 2, 3, 1))
    net.output(net.transpose(net.node("Neg", net.transpose(x, 1, 0, 2, 3)), 1, 0, 2, 3))
    backend = {
        "name": "turned",
        "extends": "nhwc",
        "rule": [{"op": "Neg", "when": {"rank": 4}, "inputs": ["HWNC"], "results": ["HWNC"]}],
    }
    source = net.model()
    legal, _ = legalize(source, backend)
    assert_same_numbers(source, legal)
    assert not verify(legal, backend, against=source).findings
