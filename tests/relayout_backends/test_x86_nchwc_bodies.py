"""`x86-nchwc`: the bodies of its operators compute what onnxruntime's kernels compute from the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import session
from onnx import helper, numpy_helper

import relayout
from relayout.backend import OperatorBody
from relayout.layout.metadata_keys import BLOCK_KEY
from relayout.verification.numeric.bodies import bodies_of, with_bodies
from relayout.verification.numeric.deadline import Deadline, UndecidedError
from relayout.verification.numeric.float64.run import run_wide
from relayout.verification.numeric.float64.steps import steps_of
from relayout_backends.x86_nchwc import X86Nchwc
from relayout_backends.x86_nchwc.blocks import SIZES, probe

pytest.importorskip("onnxruntime")

B = probe()
(OTHER,) = {*SIZES} - {B}
Array = np.ndarray[Any, Any]


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def single(
    operator: str, *shapes: tuple[int, ...] | None, opset: int = 17, domain: str = "com.microsoft.nchwc", **chosen: Any
) -> ir.Model:
    """A model of one node with inputs of these shapes, in the blocks of this machine."""
    names = ["" if shape is None else f"i{place}" for place, shape in enumerate(shapes)]
    node = helper.make_node(operator, names, ["y"], domain=domain, **chosen)
    node.metadata_props.add(key=BLOCK_KEY, value=str(B))
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, shapes, strict=True) if shape]
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info("y", 1, None)])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(domain, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))


def feeds_of(model: ir.Model) -> dict[str, Array]:
    return {str(value.name): draw(*map(int, value.shape or ())) for value in model.graph.inputs}  # type: ignore[arg-type]


def in_bodies(model: ir.Model) -> ir.Model:
    """The model with the bodies of all operators, needed or not."""
    body_of = bodies_of(X86Nchwc())

    def needed(node: ir.Node, opset: int) -> OperatorBody | None:
        body = body_of(node, opset)
        return None if body is None else replace(body, is_needed=True)

    made, replaced = with_bodies(model, needed)
    assert replaced == {node.op_identifier()[:2] for node in model.graph}
    assert all(node.domain == "relayout.verification" for node in made.graph)
    return made


def assert_body_equals_kernel(model: ir.Model) -> None:
    feeds = feeds_of(model)
    (kernel,) = session(ir.to_proto(model)).run(None, feeds)
    (body,) = session(ir.to_proto(in_bodies(model))).run(None, feeds)
    np.testing.assert_allclose(body, kernel, rtol=2e-4, atol=2e-4)


IMAGE = (2, 2 * B, 7, 9)
CONVOLUTIONS: dict[str, tuple[tuple[tuple[int, ...] | None, ...], dict[str, Any]]] = {
    "blocks": ((IMAGE, (3 * B, 2 * B, 3, 3)), {}),
    "of one position": ((IMAGE, (B, 2 * B, 1, 1)), {}),
    "with a bias and pads": (
        (IMAGE, (B, 2 * B, 3, 3), (B,)),
        {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
    ),
    "with SAME pads": ((IMAGE, (B, 2 * B, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "plain data": (((2, 3, 7, 9), (2 * B, 3, 3, 3), (2 * B,)), {}),
    "depthwise": ((IMAGE, (2 * B, 1, 3, 3), (2 * B,)), {"group": 2 * B}),
    "in groups": (((1, 4 * B, 5, 5), (2 * B, 2 * B, 3, 3)), {"group": 2}),
    "with a sum": ((IMAGE, (B, 2 * B, 1, 1), (B,), (2, B, 7, 9)), {"activation": "Relu"}),
    "with a sum and no bias": ((IMAGE, (B, 2 * B, 1, 1), None, (2, B, 7, 9)), {}),
    "Tanh": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "Tanh"}),
    "Sigmoid": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "Sigmoid"}),
    "HardSwish": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "HardSwish"}),
    "LeakyRelu": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "LeakyRelu", "activation_params": [0.3]}),
    "HardSigmoid": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "HardSigmoid", "activation_params": [0.1, 0.4]}),
    "Clip": ((IMAGE, (B, 2 * B, 1, 1)), {"activation": "Clip", "activation_params": [-0.5, 0.7]}),
}


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution(kind: str, opset: int) -> None:
    shapes, chosen = CONVOLUTIONS[kind]
    kernel = shapes[1]
    assert kernel is not None
    assert_body_equals_kernel(single("Conv", *shapes, opset=opset, kernel_shape=kernel[2:], **chosen))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "chosen",
    [{}, {"pads": [1, 0, 1, 1], "strides": [2, 2]}, {"ceil_mode": 1, "strides": [2, 3]}, {"auto_pad": "SAME_LOWER"}],
    ids=str,
)
def test_a_pool(operator: str, chosen: Mapping[str, Any]) -> None:
    assert_body_equals_kernel(single(operator, IMAGE, kernel_shape=[3, 2], **chosen))


def test_an_average_may_count_its_padding_and_a_maximum_be_dilated() -> None:
    window = {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}
    assert_body_equals_kernel(single("AveragePool", IMAGE, count_include_pad=1, **window))
    assert_body_equals_kernel(single("MaxPool", IMAGE, dilations=[2, 1], **window))


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_global_pool(operator: str) -> None:
    assert_body_equals_kernel(single(operator, IMAGE))


@pytest.mark.parametrize(
    "chosen",
    [
        {"mode": "nearest"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ],
    ids=str,
)
def test_an_upsampling(chosen: Mapping[str, Any]) -> None:
    assert_body_equals_kernel(single("Upsample", IMAGE, scales=[1, 1, 2, 3], **chosen))


@pytest.mark.parametrize("opset", [9, 10, 17])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("channels", [2 * B, 2 * B - 4])
def test_a_reorder(channels: int, channels_last: int, opset: int) -> None:
    plain = (2, 7, 9, channels) if channels_last else (2, channels, 7, 9)
    assert_body_equals_kernel(single("ReorderInput", plain, opset=opset, channels_last=channels_last))
    back = single("ReorderOutput", IMAGE, opset=opset, channels_last=channels_last, channels=channels)
    assert_body_equals_kernel(back)


@pytest.mark.parametrize("flags", range(16))
def test_a_product(flags: int) -> None:
    chosen = {name: flags >> bit & 1 for bit, name in enumerate(("transA", "transB", "transBatchA", "transBatchB"))}

    def shape(rows: int, columns: int, operand: str) -> tuple[int, ...]:
        inner = [columns, rows] if chosen[f"trans{operand}"] else [rows, columns]
        batch = [2, 5]
        return (inner[0], *batch, inner[1]) if chosen[f"transBatch{operand}"] else (*batch, *inner)

    model = single("FusedMatMul", shape(3, 4, "A"), shape(4, 6, "B"), domain="com.microsoft", alpha=0.5, **chosen)
    assert_body_equals_kernel(model)


def test_a_body_is_needed_only_where_the_blocks_are_others() -> None:
    body_of, model = bodies_of(X86Nchwc()), single("GlobalMaxPool", (1, 16, 4, 4))
    node = model.graph[0]
    for block in SIZES:
        node.metadata_props[BLOCK_KEY] = str(block)
        body = body_of(node, 17)
        assert body is not None
        assert body.is_needed == (block != B)


@pytest.mark.parametrize("shape", [None, (1, None, 4, 4), (1, B + 1, 4, 4), (16,)], ids=str)
def test_a_node_of_unknown_or_broken_blocks_has_no_body(shape: tuple[int | None, ...] | None) -> None:
    for operator in ("Conv", "MaxPool", "ReorderOutput", "Upsample", "GlobalAveragePool"):
        model = single(operator, IMAGE, (B, 2 * B, 3, 3) if operator == "Conv" else None)
        model.graph.inputs[0].shape = None if shape is None else ir.Shape(shape)
        assert bodies_of(X86Nchwc())(model.graph[0], 17) is None


def network() -> onnx.ModelProto:
    source = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        net (float[1,3,16,16] x) => (float[1,20,8,8] y) <float[24,3,3,3] k, float[20,24,3,3] w> {
            a = Conv <pads = [1, 1, 1, 1]> (x, k)
            b = Relu (a)
            c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
            d = Conv <pads = [1, 1, 1, 1]> (c, w)
            y = Sigmoid (d)
        }""")
    for name, shape in (("k", (24, 3, 3, 3)), ("w", (20, 24, 3, 3))):
        source.graph.initializer.append(numpy_helper.from_array(draw(*shape), name))
    return source


def test_a_model_in_blocks_of_another_machine_is_compared() -> None:
    source, backend = network(), X86Nchwc(block=OTHER)
    legal, _ = relayout.legalize(source, backend)
    verification = relayout.verify(legal, backend, source)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"
    (note,) = [each for each in verification.findings if each.rule == "body"]
    assert "com.microsoft.nchwc::Conv" in str(note.found)
    # Two channels of one block change places.
    last = [node for node in legal.graph.node if node.op_type == "Conv"][-1]
    (kernel,) = [each for each in legal.graph.initializer if each.name == last.input[1]]
    data = numpy_helper.to_array(kernel).copy().reshape(-1, OTHER)
    data[:, [0, 1]] = data[:, [1, 0]]
    kernel.CopyFrom(numpy_helper.from_array(data.reshape(tuple(kernel.dims)), kernel.name))
    verification = relayout.verify(legal, backend, source)
    assert "numeric" in {each.rule for each in verification.findings if each.severity == "error"}


def test_blocked_operators_run_in_float64() -> None:
    source = network()
    legal, _ = relayout.legalize(source, X86Nchwc())
    feed = {"x": draw(1, 3, 16, 16)}
    body_of = bodies_of(X86Nchwc())
    steps = [steps_of(ir.from_proto(model), ["y"], body_of) for model in (source, legal)]
    assert any(step.body is not None for step in steps[1].steps)
    (right,), (found,) = (run_wide(each, [feed], ["y"], Deadline(60)) for each in steps)
    assert found["y"].dtype == np.float64
    np.testing.assert_allclose(found["y"], right["y"], rtol=1e-12, atol=1e-13)


def test_a_body_that_the_kernel_contradicts_decides_nothing() -> None:
    class Lenient(X86Nchwc):
        def operator_body(self, node: ir.Node, opset: int) -> OperatorBody | None:
            body = super().operator_body(node, opset)
            for inner in body.function.node if body is not None else ():
                for attribute in inner.attribute:
                    if attribute.name == "pads":
                        attribute.ints[:] = [0, 0, 2, 2]
            return body

    legal, _ = relayout.legalize(network(), X86Nchwc())
    steps = steps_of(ir.from_proto(legal), ["y"], bodies_of(Lenient()))
    with pytest.raises(UndecidedError, match="differs from onnxruntime's result"):
        run_wide(steps, [{"x": draw(1, 3, 16, 16)}], ["y"], Deadline(60))
