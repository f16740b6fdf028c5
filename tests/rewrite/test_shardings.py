"""Shardings of tensors over several devices name the axes of the legal model's layouts; the verifier compares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import relayout
from relayout.verification.verifier import verify

CHANNELS = 16
NODES = f"""
    <ir_version: 11, opset_import: ["" : 21]>
    g (float[2, 8, 8, {CHANNELS}] x) => (float[2, 4, 4, {CHANNELS}] y)
    <float[2, {CHANNELS}, 8, 8] t, float[2, {CHANNELS}, 8, 8] c, float[2, {CHANNELS}, 8, 8] m,
     float[2, {CHANNELS}, 4, 4] p, float[2, {CHANNELS}, 4, 4] s> {{
      [turn] t = Transpose<perm = [0, 3, 1, 2]>(x)
      [conv] c = Conv<pads = [1, 1, 1, 1]>(t, w)
      [mul] m = Mul(c, c)
      [pool] p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(m)
      [soft] s = Softmax<axis = 1>(p)
      [back] y = Transpose<perm = [0, 2, 3, 1]>(s)
    }}"""


def sharded() -> onnx.ModelProto:
    """A convolutional network, in which each node states that its tensors are split by their channels."""
    model = onnx.parser.parse_model(NODES)
    weights = np.random.default_rng(0).random((CHANNELS, CHANNELS, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    model.configuration.add(name="pair", num_devices=2, device=["a", "b"])
    for node in model.graph.node:
        part = node.device_configurations.add(configuration_id="pair", pipeline_stage=3)
        for name in dict.fromkeys([*node.input, *node.output]):
            spec = part.sharding_spec.add(tensor_name=name, device=[0, 1])
            spec.sharded_dim.add(axis=-1 if name in "xy" else 1).simple_sharding.add(num_shards=2)
    onnx.checker.check_model(model)
    return model


def axes_of(model: onnx.ModelProto) -> dict[str, dict[str, list[int]]]:
    """The sharded axes of each tensor of each node."""
    return {
        node.name: {spec.tensor_name: [dim.axis for dim in spec.sharded_dim] for spec in part.sharding_spec}
        for node in model.graph.node
        for part in node.device_configurations
    }


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "canonical", "opencl", "xla-cpu"])
def test_a_sharded_axis_is_the_same_axis_in_another_layout(backend: str) -> None:
    source = sharded()
    legal, report = relayout.legalize(source, backend, check=True)
    onnx.checker.check_model(legal)
    shapes = {value.name: value for value in (*legal.graph.input, *legal.graph.output, *legal.graph.value_info)}
    stated = axes_of(legal)
    assert {"conv", "mul", "pool", "soft"} <= stated.keys()
    for node in ("conv", "mul", "pool", "soft"):
        data = {name: axes for name, axes in stated[node].items() if name != "w"}
        assert len(data) == 2
        for name, axes in data.items():
            extents = [dim.dim_value for dim in shapes[name].type.tensor_type.shape.dim]
            assert [extents[axis] for axis in axes] == [CHANNELS]
    assert report.verification is not None
    assert report.verification.findings == ()
    again, _ = relayout.legalize(legal, backend)
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    assert verify(again, backend, against=source).findings == ()


def test_weights_are_sharded_by_the_axis_of_their_layout() -> None:
    legal, _ = relayout.legalize(sharded(), "nhwc")
    # Channels of the input: OIHW -> HWIO.
    assert axes_of(legal)["conv"] == {"x": [3], "w": [2], "c": [3]}


def test_a_layout_that_splits_a_sharded_axis_is_told() -> None:
    legal, report = relayout.legalize(sharded(), "x86-nchwc", check=True)
    assert [each for each in report.warnings if each.startswith("shardings left out")]
    assert report.verification is not None
    assert report.verification.passed
    gone = [each for each in report.verification.findings if each.rule == "sharding"]
    assert {each.severity for each in gone} <= {"warning", "note"}
    assert any("the sharding is gone" in each.message for each in gone)
    # The stage of a pipeline names no axis.
    stages = {node.op_type: part.pipeline_stage for node in legal.graph.node for part in node.device_configurations}
    assert stages["MaxPool"] == stages["Softmax"] == 3


def spec_of(model: onnx.ModelProto, node: str, tensor: str) -> onnx.ShardingSpecProto:
    """One sharding that a node states."""
    (part,) = next(each for each in model.graph.node if each.name == node).device_configurations
    found: onnx.ShardingSpecProto = next(spec for spec in part.sharding_spec if spec.tensor_name == tensor)
    return found


def faults(model: onnx.ModelProto) -> Sequence[tuple[str, str]]:
    """The severity and message of each finding about shardings, against the source."""
    found = verify(model, "nhwc", against=sharded(), run=False).findings
    return [(each.severity, each.message) for each in found if each.rule == "sharding"]


@pytest.mark.parametrize(
    ("node", "tensor", "axis"), [("conv", "x", 1), ("conv", "w", 3), ("mul", "c", 1), ("mul", "m", 2), ("soft", "p", 0)]
)
def test_the_verifier_finds_a_sharding_of_another_axis(node: str, tensor: str, axis: int) -> None:
    legal, _ = relayout.legalize(sharded(), "nhwc")
    assert faults(legal) == []
    spec_of(legal, node, tensor).sharded_dim[0].axis = axis
    found = faults(legal)
    assert found
    assert all(
        severity == "error" and message.startswith("the sharding is of other axes") for severity, message in found
    )


def test_the_verifier_finds_other_devices_and_shards_and_what_is_gone_or_new() -> None:
    legal, _ = relayout.legalize(sharded(), "nhwc")
    spec_of(legal, "conv", "c").device[:] = [1, 0]
    spec_of(legal, "mul", "c").sharded_dim[0].simple_sharding[0].num_shards = 4
    (part,) = next(each for each in legal.graph.node if each.name == "pool").device_configurations
    part.sharding_spec.remove(spec_of(legal, "pool", "p"))
    found = sorted((severity, message.partition(" (")) for severity, message in faults(legal))
    other, gone = "the sharding is of other axes or devices", "the sharding is gone"
    # The product reads `c` twice.
    assert [(severity, message[0]) for severity, message in found] == [("error", other)] * 3 + [("warning", gone)]
    source = sharded()
    for each in source.graph.node:
        each.ClearField("device_configurations")
    new = verify(legal, "nhwc", against=source, run=False).findings
    assert any("the original states no such sharding" in each.message for each in new)


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc", "opencl"])
def test_copies_of_whole_tensors_and_axes_that_do_not_exist_are_no_trouble(backend: str) -> None:
    source = sharded()
    for node in source.graph.node:
        for spec in node.device_configurations[0].sharding_spec:
            # A copy on each device.
            spec.ClearField("sharded_dim")
    spec_of(source, "pool", "m").sharded_dim.add(axis=9).simple_sharding.add(num_shards=2)
    legal, report = relayout.legalize(source, backend, check=True)
    onnx.checker.check_model(legal)
    assert any(each.startswith("shardings left out") for each in report.warnings)
    assert report.verification is not None
    assert report.verification.passed


def test_nodes_in_branches_and_results_that_nothing_reads() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 11, opset_import: ["" : 21]>
        g (float[2, 8, 8, 4] x, bool yes) => (float[2, 8, 8, 4] y) {
          t = Transpose<perm = [0, 3, 1, 2]>(x)
          u = If(yes) <
            then_branch = a () => (float[2, 4, 8, 8] p) { p, rest = MaxPool<kernel_shape = [1, 1]>(t) },
            else_branch = b () => (float[2, 4, 8, 8] q) { q = Relu(t) }>
          y = Transpose<perm = [0, 2, 3, 1]>(u) }"""
    )
    model.configuration.add(name="pair", num_devices=2)
    branch = next(node for node in model.graph.node if node.op_type == "If")
    inner = [node for attribute in branch.attribute for node in attribute.g.node]
    for node in (branch, *inner):
        part = node.device_configurations.add(configuration_id="pair")
        for name in (*node.input, *node.output):
            spec = part.sharding_spec.add(tensor_name=name, device=[0, 1])
            if name != "yes":
                spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    for backend in ("onnx", "nhwc", "x86-nchwc"):
        legal, report = relayout.legalize(model, backend, check=True)
        onnx.checker.check_model(legal)
        assert report.verification is not None
        assert report.verification.passed
        # The layout of what a branch returns is not that of an operand of the node itself.
        assert bool(report.warnings) == (backend == "nhwc")
