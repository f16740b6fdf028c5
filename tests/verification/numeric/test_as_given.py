"""The files run as they were given: a fault of relayout's reader, which both models pass through, does not hide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout.legalization
from relayout.legalization import legalize
from relayout.model.io import is_read, read_model
from relayout.verification import counterparts, verifier


def source() -> onnx.ModelProto:
    net = Net()
    image = net.input("x", (1, 4, 6, 6))
    pooled = net.node("LeakyRelu", net.conv(image, 4, 4), alpha=0.25)
    net.output(net.node("Concat", pooled, image, axis=1))
    return net.model()


def double_a_weight(model: ir.Model) -> None:
    value = next(each for each in model.graph.initializers.values() if each.shape is not None and len(each.shape) == 4)
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)


def change_an_attribute(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "LeakyRelu")
    node.attributes.add(ir.AttrFloat32("alpha", 0.5))


def exchange_operands(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "Concat")
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)


FAULTS = [double_a_weight, change_an_attribute, exchange_operands]


@pytest.mark.parametrize("kind", ["file", "bytes", "protobuf", "onnx_ir"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_reader_is_found(
    fault: Callable[[ir.Model], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(given: Any, **options: Any) -> ir.Model:
        model = read_model(given, **options)
        if not isinstance(given, ir.Model) or not is_read(given):
            fault(model)
        return model

    monkeypatch.setattr(relayout.legalization, "read_model", read)
    for module in (verifier, counterparts):
        monkeypatch.setattr(module, "read_model", read)
    proto = source()
    onnx.save(proto, tmp_path / "model.onnx")
    in_memory = ir.from_proto(proto)
    in_memory.meta["mark"] = "of the caller's own"
    kinds: dict[str, Any] = {"file": tmp_path / "model.onnx", "bytes": proto.SerializeToString(), "protobuf": proto}
    given = {**kinds, "onnx_ir": in_memory}[kind]
    legal, _ = legalize(given, "nhwc")
    model = legal if isinstance(legal, ir.Model) else read_model(legal)
    found = verifier.verify(model, "nhwc", against=given)
    assert not found.passed
    assert {finding.rule for finding in found.findings if finding.severity == "error"} == {"as-given"}


def test_a_file_under_a_newer_version_runs_under_an_older_one() -> None:
    """onnxruntime refuses the newest version of the format; the meaning of these operators has not changed since."""
    proto = source()
    proto.ir_version = onnx.IR_VERSION
    proto.opset_import[0].version = onnx.defs.onnx_opset_version()
    legal, _ = legalize(proto, "nhwc")
    found = verifier.verify(legal, "nhwc", against=proto)
    assert found.findings == ()
    assert found.numeric is not None
    assert (found.numeric.status, found.numeric.runtime, found.numeric.untried) == ("compared", "onnxruntime", ())


def test_values_that_no_run_compares_are_named() -> None:
    net = Net()
    image = net.input("x", (2, 3))
    net.output(net.node("Log", net.node("Neg", net.node("Abs", image))))
    net.output(net.node("Relu", image))
    found = verifier.verify(net.model(), "onnx", against=net.model())
    assert found.numeric is not None
    assert [(each.name, "finite" in each.reason) for each in found.numeric.not_compared] == [("log_2", True)]
    assert [each.name for each in found.numeric.outputs] == ["relu_3"]
    assert [(each.rule, each.severity, each.node) for each in found.findings] == [("not-compared", "error", "log_2")]


def test_a_dim_that_the_original_takes_in_one_size_alone_is_said() -> None:
    net = Net()
    fixed = net.node("Reshape", net.input("x", ("n", 4)), net.constant(np.array([2, 4])))
    net.output(fixed)
    found = verifier.verify(net.model(), "onnx", against=net.model())
    assert found.passed
    assert found.numeric is not None
    assert found.numeric.untried == ("the original takes one size of its open dims alone: n = 2",)


def test_scores_with_a_mask_of_integers_are_compared() -> None:
    """The mask of T5: with integers beyond 1 the scores overflow, and their softmax is no number."""
    net = Net()
    mask = net.node("Cast", net.input("mask", (2, 64), onnx.TensorProto.INT64), to=onnx.TensorProto.FLOAT)
    lowest = net.constant(np.finfo(np.float32).min)
    bias = net.node("Mul", net.node("Sub", net.constant(np.float32(1)), mask), lowest)
    net.output(net.node("Softmax", net.node("Add", net.input("scores", (2, 64)), bias), axis=-1))
    found = verifier.verify(net.model(), "onnx", against=net.model())
    assert found.passed
    assert found.numeric is not None
    assert found.numeric.not_compared == ()


def test_a_model_of_16_bit_floats_may_be_rounded_where_inner_values_are_results() -> None:
    """A runtime without such operators computes in 32 bits, and rounds only what is a result."""
    net = Net()
    half = net.node("Cast", net.input("x", (1, 4, 6, 6)), to=onnx.TensorProto.FLOAT16)
    channels_last = net.node("Transpose", half, perm=[0, 2, 3, 1])
    small = net.node("Mul", channels_last, net.constant(np.float16(1e-6)))
    large = net.node("Mul", small, net.constant(np.float16(1e4)))
    net.output(net.node("Cast", net.node("Transpose", large, perm=[0, 3, 1, 2]), to=onnx.TensorProto.FLOAT))
    legal, _ = legalize(net.model(), backend="onnx")
    assert verifier.verify(legal, "onnx", against=net.model()).passed
