"""Operators after a blocked convolution are fused into it with the same numbers, and only if that is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, session
from onnx import TensorProto, helper, numpy_helper

from relayout import legalize, verify
from relayout.layout.metadata_keys import BLOCK_KEY, CHANNELS_KEY
from relayout_backends.x86_nchwc.blocks import DOMAIN, probe
from relayout_backends.x86_nchwc.fusion import fuse

pytest.importorskip("onnxruntime")

BLOCK = probe()
PLAIN, SPLIT = [1, 2 * BLOCK, 5, 4], [1, 2, 5, 4, BLOCK]
Array = np.ndarray[Any, Any]


class Model:
    """Blocked data, a blocked convolution named `conv` that makes `c`, and what the test puts after it.

    `used` of the 2 * BLOCK channels are no padding.
    """

    def __init__(self, used: int = 2 * BLOCK, **attributes: object) -> None:
        self.used = used
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.shapes: dict[str, list[int]] = {}
        self.constants: dict[str, Array] = {}
        self.outputs: list[str] = []
        self.inputs = {"x": PLAIN, "s": PLAIN}
        kernel = self.rng.standard_normal((2, 2 * BLOCK, 9, BLOCK)).astype(np.float32)
        kernel.reshape(-1, 9, 2 * BLOCK)[:] /= 20
        self.constants["kernel"] = self.channels(kernel.transpose(1, 2, 0, 3)).transpose(2, 0, 1, 3).copy()
        self.constants["kernel"] = self.constants["kernel"].reshape(2 * BLOCK, 2 * BLOCK, 3, 3)
        self.constants["bias"] = self.channels(self.vector()).reshape(-1)
        self.conv("c", "x", "kernel", "bias", pads=[1, 1, 1, 1], **attributes)

    def vector(self) -> Array:
        return self.rng.standard_normal((1, 2, 1, 1, BLOCK)).astype(np.float32) + np.float32(1.5)

    def channels(self, array: Array) -> Array:
        """`array` with zeros in the padding of its channels, the last axis and one further left."""
        keep = (np.arange(2 * BLOCK) < self.used).reshape(2, BLOCK)
        return array * keep.reshape(1, 2, 1, 1, BLOCK) if array.ndim == 5 else array * keep.astype(np.float32)

    def conv(self, result: str, *operands: str, **attributes: object) -> None:
        node = helper.make_node("Conv", operands, [result], name=result, domain=DOMAIN, **attributes)
        node.metadata_props.add(key=BLOCK_KEY, value=str(BLOCK))
        node.metadata_props.add(key=CHANNELS_KEY, value=str(self.used))
        self.nodes.append(node)
        self.shapes[result] = PLAIN

    def then(
        self,
        operator: str,
        *operands: str | Array,
        result: str = "",
        shape: list[int] | None = None,
        **attributes: object,
    ) -> str:
        names = []
        for operand in operands:
            name = operand if isinstance(operand, str) else f"constant_{len(self.constants)}"
            if not isinstance(operand, str):
                self.constants[name] = operand
            names.append(name)
        result = result or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [result], name=result, **attributes))
        self.shapes[result] = shape or self.shapes.get(names[0]) or PLAIN
        return result

    def split(self, value: str) -> str:
        return self.then("Reshape", value, np.array(SPLIT, np.int64), shape=SPLIT)

    def hide(self, value: str) -> str:
        return self.then("Identity", self.then("Reshape", value, np.array(PLAIN, np.int64), shape=PLAIN))

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "fused",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
            value_info=[
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in self.shapes.items()
                if name not in self.outputs
            ],
        )
        imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def fused(self, *outputs: str) -> list[ir.Node]:
        """The nodes after fusing, when the model, which gives `outputs`, has been found to give the same numbers."""
        self.outputs = list(outputs)
        before = self.proto()
        model = ir.from_proto(before)
        fuse(model, "")
        expected, found = self.run(before), self.run(ir.to_proto(model))
        for a, b in zip(expected, found, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)
        read = {value.name for node in model.graph for value in node.inputs if value is not None}
        assert set(model.graph.initializers) <= read, "constants are left that nobody reads"
        return list(model.graph)

    def run(self, proto: onnx.ModelProto) -> list[Array]:
        made = session(proto)
        rng = np.random.default_rng(1)
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.inputs.items()}
        found: list[Array] = made.run(None, {i.name: feeds[i.name] for i in made.get_inputs()})
        return found


def kinds(nodes: list[ir.Node]) -> list[str]:
    return [node.op_type for node in nodes]


@pytest.mark.parametrize(
    ("operator", "operands", "attributes"),
    [
        ("Relu", (), {}),
        ("Sigmoid", (), {}),
        ("Tanh", (), {}),
        ("HardSwish", (), {}),
        ("LeakyRelu", (), {"alpha": 0.3}),
        ("LeakyRelu", (), {}),
        ("HardSigmoid", (), {"alpha": 0.3, "beta": 0.4}),
        ("Clip", (np.array(-0.5, np.float32), np.array(0.5, np.float32)), {}),
        ("Clip", (np.array(0, np.float32),), {}),
    ],
)
def test_an_activation_is_done_by_the_convolution(
    operator: str, operands: tuple[Array, ...], attributes: dict[str, Any]
) -> None:
    model = Model()
    (node,) = model.fused(model.then(operator, "c", *operands, **attributes))
    assert (node.name, node.attributes["activation"].as_string()) == ("c", operator)


def test_factors_and_offsets_go_into_the_kernel_and_the_bias() -> None:
    for used in (2 * BLOCK, BLOCK + 3):
        model = Model(used)
        v = model.split("c")
        v = model.then("Sub", v, model.channels(model.vector()))
        v = model.then("Mul", v, model.channels(model.vector()))
        v = model.then("Div", v, np.array(3, np.float32))
        v = model.then("Add", model.channels(model.vector()), v, shape=SPLIT)
        v = model.then("Relu", v)
        assert kinds(model.fused(model.hide(v))) == ["Conv", "Identity"]


def test_a_result_in_another_shape_is_a_view() -> None:
    model = Model()
    v = model.then("Mul", model.split("c"), model.vector())
    assert kinds(model.fused(v)) == ["Conv", "Reshape"]


def test_a_view_that_is_given_is_made_at_once() -> None:
    model = Model()
    v = model.then("Mul", model.split("c"), model.vector())
    v = model.then("Reshape", v, np.array(PLAIN, np.int64), shape=PLAIN)
    (node,) = model.fused(v)
    assert node.outputs[0].name == v


def test_views_that_go_take_their_shapes_along() -> None:
    model = Model()
    split, hide = (model.then("Constant", value_ints=list(shape), shape=[len(shape)]) for shape in (SPLIT, PLAIN))
    v = model.then("Relu", model.then("Reshape", "c", split, shape=SPLIT))
    v = model.then("Reshape", v, hide, shape=PLAIN)
    assert kinds(model.fused(model.then("Identity", v))) == ["Conv", "Identity"]


def test_views_that_came_back_before_stay() -> None:
    model = Model()
    assert kinds(model.fused("c", model.hide(model.split("x")))) == ["Conv", "Reshape", "Reshape", "Identity"]


def test_a_constant_minus_a_value_negates_it() -> None:
    model = Model()
    v = model.then("Sub", model.vector(), model.split("c"), shape=SPLIT)
    assert kinds(model.fused(model.hide(v))) == ["Conv", "Identity"]


def test_a_convolution_without_a_bias_gets_one() -> None:
    model = Model()
    del model.nodes[0].input[2]
    del model.constants["bias"]
    v = model.then("Add", model.split("c"), model.vector())
    node, _ = model.fused(model.hide(v))
    assert len(node.inputs) == 3


def test_a_normalization_in_blocks_goes_into_the_convolution_before_it() -> None:
    model = Model()
    model.constants["factor"] = model.vector().reshape(2 * BLOCK, 1, 1, 1)
    model.constants["offset"] = model.vector().reshape(-1)
    model.conv("n", "c", "factor", "offset", group=2 * BLOCK, activation="Relu")
    assert kinds(model.fused("n")) == ["Conv"]


def test_factors_multiply_a_kernel_that_is_computed_where_it_is_computed() -> None:
    model = Model()
    model.constants["half"] = model.constants.pop("kernel") / 2
    model.constants["two"] = np.array(2, np.float32)
    model.nodes.insert(0, helper.make_node("Mul", ["half", "two"], ["kernel"]))
    model.shapes["kernel"] = [2 * BLOCK, 2 * BLOCK, 3, 3]
    v = model.then("Relu", model.then("Mul", model.split("c"), model.vector()))
    nodes = model.fused(model.hide(v))
    assert kinds(nodes) == ["Mul", "Reshape", "Mul", "Reshape", "Conv", "Identity"]
    assert nodes[4].attributes["activation"].as_string() == "Relu"


def test_a_vector_of_one_number_is_known() -> None:
    model = Model()
    model.constants["shape"] = np.array([2 * BLOCK, 1, 1, 1], np.int64)
    model.constants["lengths"] = np.array([2 * BLOCK], np.int64)
    fill = numpy_helper.from_array(np.array([1.5], np.float32))
    model.nodes.append(helper.make_node("ConstantOfShape", ["shape"], ["factor"], value=fill))
    model.nodes.append(helper.make_node("ConstantOfShape", ["lengths"], ["offset"]))
    model.shapes |= {"factor": [2 * BLOCK, 1, 1, 1], "offset": [2 * BLOCK]}
    model.conv("n", "c", "factor", "offset", group=2 * BLOCK)
    assert kinds([node for node in model.fused("n") if node.domain]) == ["Conv"]


def test_a_sum_and_its_activation_are_done_by_the_convolution() -> None:
    for order in (("c", "s"), ("s", "c")):
        model = Model()
        v = model.then("Relu", model.then("Add", *order))
        (node,) = model.fused(v)
        assert node.inputs[3] is not None
        assert node.inputs[3].name == "s"


def test_one_of_two_summed_convolutions_adds_the_other() -> None:
    model = Model()
    model.conv("d", "s", "kernel", "bias", pads=[1, 1, 1, 1])
    v = model.then("Sum", "c", "d")
    assert kinds(model.fused(v)) == ["Conv", "Conv"]


def test_a_sum_seen_through_views_is_a_sum() -> None:
    model = Model()
    v = model.then("Add", model.split("c"), model.split("s"))
    assert kinds(model.fused(model.hide(v))) == ["Conv", "Identity"]


def test_a_factor_after_the_sum_stays() -> None:
    model = Model()
    v = model.then("Add", "c", "s")
    v = model.then("Mul", v, np.array(3, np.float32))
    assert kinds(model.fused(v)) == ["Conv", "Mul"]


Ending = Callable[[Model], tuple[str, ...]]


def read_twice(model: Model) -> tuple[str, ...]:
    return model.then("Relu", "c"), model.then("Tanh", "c")


def an_output(model: Model) -> tuple[str, ...]:
    return model.then("Relu", "c"), "c"


def added_to_itself(model: Model) -> tuple[str, ...]:
    return (model.then("Add", "c", "c"),)


def planes(model: Model) -> tuple[str, ...]:
    return (model.then("Mul", model.split("c"), np.full((5, 4, 1), 2, np.float32)),)


def other_views(model: Model) -> tuple[str, ...]:
    shape = [1, 2, 4, 5, BLOCK]
    v = model.then("Reshape", "c", np.array(shape, np.int64), shape=shape)
    return (model.then("Add", v, np.ones((1, 2, 1, 5, BLOCK), np.float32)),)


def broadcast_sum(model: Model) -> tuple[str, ...]:
    model.inputs["s"] = [1, 1, 1, 1]
    return (model.then("Add", "c", "s"),)


@pytest.mark.parametrize("ending", [read_twice, an_output, added_to_itself, planes, other_views, broadcast_sum])
def test_an_activation_that_the_convolution_lacks_stays(ending: Ending) -> None:
    model = Model()
    outputs = ending(model)
    before = len(model.nodes)
    assert len(model.fused(*outputs)) == before


@pytest.mark.parametrize("operator", ["Sigmoid", "HardSigmoid"])
def test_an_activation_that_would_fill_the_padding_stays(operator: str) -> None:
    model = Model(used=BLOCK + 3)
    assert kinds(model.fused(model.then(operator, "c"))) == ["Conv", operator]


def test_a_second_activation_stays() -> None:
    model = Model(activation="Relu")
    assert kinds(model.fused(model.then("Sigmoid", "c"))) == ["Conv", "Sigmoid"]


@pytest.mark.parametrize("has_shape", [True, False])
def test_a_convolution_that_onnxruntime_blocked_stays(has_shape: bool) -> None:
    """Its file does not say how wide the blocks are, nor the shape of a blocked value."""
    model = Model()
    del model.nodes[0].metadata_props[:]
    if not has_shape:
        del model.shapes["c"]
    assert kinds(model.fused(model.then("Relu", "c", shape=PLAIN))) == ["Conv", "Relu"]


def test_fusing_twice_changes_nothing() -> None:
    model = Model()
    model.outputs = [model.then("Relu", model.then("Add", "c", "s"))]
    once = ir.from_proto(model.proto())
    fuse(once, "")
    twice = ir.from_proto(ir.to_proto(once))
    fuse(twice, "")
    assert ir.to_proto(once).SerializeToString() == ir.to_proto(twice).SerializeToString()


def test_factors_and_offsets_of_blocks_become_a_convolution() -> None:
    model = Model()
    v = model.then("Add", "s", "c")
    v = model.then("Tanh", v)
    v = model.then("Sub", model.split(v), model.vector())
    v = model.then("Mul", v, model.vector())
    v = model.then("Relu", v)
    nodes = model.fused(model.hide(v))
    assert kinds(nodes) == ["Conv", "Conv", "Identity"]
    assert nodes[1].attributes["group"].as_int() == 2 * BLOCK
    assert nodes[1].attributes["activation"].as_string() == "Relu"


def test_a_gate_of_one_image_is_a_kernel() -> None:
    model = Model(activation="Relu")
    model.inputs["s"] = [1, 2, 1, 1, BLOCK]
    v = model.then("Mul", model.split("c"), "s")
    assert kinds(model.fused(model.hide(v))) == ["Conv", "Reshape", "Conv", "Identity"]


def test_a_gate_of_two_images_stays() -> None:
    model = Model(activation="Relu")
    model.inputs["g"] = [2, 2, 1, 1, BLOCK]
    v = model.then("Mul", model.split("c"), "g", shape=[2, *SPLIT[1:]])
    assert kinds(model.fused(v)) == ["Conv", "Reshape", "Mul"]


def test_what_follows_one_block_of_open_images_is_done_by_the_convolution() -> None:
    """One block is an image with channels last, without the dim of extent 1. No single Reshape leads there."""
    net = Net(17)
    value = net.node("Relu", net.conv(net.input("x", ("batch", 3, "height", "width")), 3, BLOCK))
    value = net.conv(value, BLOCK, BLOCK)
    for operator in ("Mul", "Add"):
        value = net.node(operator, value, net.weight(BLOCK, 1, 1))
    value = net.node("Clip", value, net.constant(np.float32(-1)), net.constant(np.float32(1)))
    net.output(net.node("Relu", net.conv(value, BLOCK, BLOCK)))
    legal, _ = legalize(net.model(), "x86-nchwc", check=True)
    others = {node.op_type for node in legal.graph.node} - {"Conv", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
    assert others <= {"ReorderInput", "ReorderOutput"}
    assert_same_numbers(net.model(), legal, {"x": np.random.default_rng(0).random((2, 3, 6, 9), np.float32)})


def test_a_convolution_in_place_of_a_gate_is_accepted_without_a_run() -> None:
    """A gate of squeeze and excitation: each channel of a sum is multiplied by a number of its own."""
    net = Net(17)
    value = net.node("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 3, 2 * BLOCK))
    gate = net.node("Sigmoid", net.conv(net.node("GlobalAveragePool", value), 2 * BLOCK, 2 * BLOCK, kernel=1))
    net.output(net.conv(net.node("Mul", value, gate), 2 * BLOCK, BLOCK))
    original = net.model()
    legal, _ = legalize(original, "x86-nchwc")
    (made,) = (node for node in legal.graph.node if node.name.endswith("_scale"))
    assert (made.domain, made.op_type) == (DOMAIN, "Conv")
    found = verify(legal, "x86-nchwc", against=original, run=False)
    assert {each.severity for each in found.findings} <= {"note"}
