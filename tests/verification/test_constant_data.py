"""Constants are compared exactly: the source's data with permuted axes, or after the noted steps, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayout import legalize
from relayout.layout.relaid_constant import Step, relaid
from relayout.model.io import Source, read_model
from relayout.verification.constant_data import check_constants
from relayout.verification.counterparts import Counterparts
from relayout.verification.model_index import ModelIndex
from relayout.verification.relaid_data import is_relayout
from relayout.verification.verifier import verify

KERNEL = np.random.default_rng(0).normal(size=(32, 48, 3, 3)).astype(np.float32)


def step(op: str, *numbers: int) -> dict[str, object]:
    return {"op": op, {"transpose": "perm", "pad": "pads"}.get(op, "shape"): [*numbers]}


BLOCKS = [step("reshape", 2, 16, 3, 16, 3, 3), step("transpose", 0, 2, 4, 5, 3, 1)]
SWAPPED = step("transpose", 1, 0, 2, 3)
PADDED = [step("pad", *[0, 0, 0, 0], *[8, 2, 0, 0]), step("reshape", 5, 8, 25, 2, 3, 3)]
IN_FRONT = [step("pad", *[0, 0, 1, 1], *[0, 0, 0, 0]), step("reshape", 32, 48, 2, 2, 2, 2)]


@pytest.mark.parametrize(
    ("steps", "is_told"),
    [
        pytest.param([], True, id="itself"),
        pytest.param([step("transpose", 2, 3, 1, 0)], True, id="permuted"),
        pytest.param([step("reshape", 1, 32, 1, 48, 3, 3)], True, id="more unit axes"),
        pytest.param([step("transpose", 0, 2, 3, 1), step("reshape", 32, 432)], False, id="flat"),
        pytest.param(BLOCKS, False, id="blocks"),
        pytest.param([*BLOCKS, step("reshape", 32, 48, 3, 3)], False, id="opaque blocks"),
        pytest.param([*PADDED, step("transpose", 0, 2, 4, 5, 3, 1)], False, id="padded blocks"),
        pytest.param([*IN_FRONT, step("transpose", 0, 3, 5, 1, 2, 4)], False, id="blocks padded in front"),
        pytest.param([PADDED[0], SWAPPED, step("crop", 48, 32, 3, 3)], True, id="padding cut off"),
    ],
)
def test_a_relayout_is_one_by_its_steps_until_an_element_is_off(steps: list[Step], is_told: bool) -> None:
    laid = relaid(ir.tensor(KERNEL), steps).numpy().copy()
    assert is_relayout(KERNEL, laid, steps)
    assert is_relayout(KERNEL, laid) == is_told, "permuted axes need no steps"
    off = laid.copy()
    off.reshape(-1)[np.flatnonzero(laid)[KERNEL.size // 2]] *= np.float32(1.01)
    assert not is_relayout(KERNEL, off, steps)
    exchanged = laid.squeeze()
    exchanged[[0, -1]] = exchanged[[-1, 0]]
    assert not is_relayout(KERNEL, laid, steps)


@pytest.mark.parametrize(
    "steps",
    [
        [step("crop", 31, 48, 3, 3)],
        [step("crop", 32, 48)],
        [step("transpose", 0, 1, 2)],
        [step("transpose", 0, 0, 1, 2)],
        [step("reshape", 31, 48, 3, 3)],
        [step("pad", 0, 0)],
        *[[step("pad", 0, 0, 0, 0, 0, 0, 0, zeros), step("crop", 31, 48, 3, 3)] for zeros in (1 << 50, (1 << 63) - 1)],
        # Each makes sixteen times the elements that the one before it made.
        [*[step("pad", 0, 0, 0, 0, 0, 0, 0, 45 * 16**n) for n in range(9)], step("crop", 31, 48, 3, 3)],
    ],
)
def test_steps_that_drop_elements_or_do_not_fit_make_nothing_a_relayout(steps: list[Step]) -> None:
    assert not is_relayout(KERNEL, KERNEL[:31], steps)


def test_bits_are_compared_and_types() -> None:
    row = np.array([0.0, 1.0, np.nan, 2.0], np.float32)
    assert is_relayout(row, row.copy())
    assert not is_relayout(row, np.array([-0.0, 1.0, np.nan, 2.0], np.float32))
    assert not is_relayout(row, row.astype(np.float64))
    assert is_relayout(np.array(["a", "b"], object), np.array(["a", "b"], object))
    assert not is_relayout(np.array(["a", "b"], object), np.array(["b", "a"], object))
    pair, padding = np.array([1 + 2j, 3 - 4j]), [step("pad", 1, 1)]
    assert is_relayout(pair, np.pad(pair, 1), padding)
    assert not is_relayout(pair, np.pad(pair.conj(), 1), padding)


def test_a_second_run_adds_its_steps_to_those_of_the_first(tmp_path: Path) -> None:
    """Its constants are those of the source and those of the first legal model, from memory and from a file."""
    source, path = convolution(), tmp_path / "legal.onnx"

    def blocked(model: Source, word: str, kernel: str) -> onnx.ModelProto:
        options = {"desired_layouts": {"Conv": [word, kernel]}, "skip": []}
        return legalize(model, "convert-layout", backend_options=options)[0]

    first = blocked(source, "NCHW4c", "OIHW4i4o")
    onnx.save(first, path)
    for second in (blocked(first, "NCHW8c", "OIHW8i8o"), blocked(path, "NHWC", "HWIO"), blocked(path, "NCHW", "OIHW")):
        for original in (source, first):
            pairs = Counterparts(ModelIndex(read_model(second)), ModelIndex(read_model(original)))
            assert list(check_constants(pairs)) == []
    noted = {
        entry.key: entry for value in first.graph.value_info for entry in value.metadata_props if value.name == "w"
    }
    noted["relayout.transform"].value = "[1"
    original = ModelIndex(read_model(source))
    assert {f.node for f in check_constants(Counterparts(ModelIndex(read_model(first)), original))} == {"w"}


def convolution() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[1,16,6,6] x) => (float[1,16,4,4] y) { y = Conv (x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(KERNEL[:16, :16], "w"))
    return model


def test_branches_may_have_different_constants_of_one_name() -> None:
    """Each is the relayout of its own branch's. Exchanged ones are found, though the other branch has such data."""
    kernels = np.random.default_rng(2).normal(size=(2, 4, 4, 3, 3)).astype(np.float32)
    source = ModelIndex(read_model(with_branches(*kernels)))
    legal, _ = legalize(with_branches(*kernels), "nhwc")
    assert list(check_constants(Counterparts(ModelIndex(read_model(legal)), source))) == []
    exchanged = ModelIndex(read_model(with_branches(*kernels[::-1])))
    assert {f.node for f in check_constants(Counterparts(exchanged, source))} == {"kernel"}


def with_branches(one: np.ndarray, other: np.ndarray) -> onnx.ModelProto:
    """A convolution in each branch of an If, by a `kernel` of this data."""
    branches = {}
    for name, kernel in (("then_branch", one), ("else_branch", other)):
        nodes = [helper.make_node("Conv", ["x", "kernel"], ["c"]), helper.make_node("Relu", ["c"], ["r"])]
        result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 4, 3, 3])
        branches[name] = helper.make_graph(nodes, name, [], [result], [numpy_helper.from_array(kernel, "kernel")])
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 5, 5]),
        helper.make_tensor_value_info("taken", TensorProto.BOOL, []),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 3, 3])
    graph = helper.make_graph([helper.make_node("If", ["taken"], ["y"], **branches)], "g", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


QUANTIZED = """<ir_version: 9, opset_import: ["" : 13]> net (uint8[1,8,4,4] x) => (uint8[1,8,4,4] y, float[1,8,4,4] z)
    <float s = {0.1}, uint8 zero = {3}, float kernel_scale = {0.02}, int8 kernel_zero = {0},
     float bias_scale = {0.002}> {
    y = QLinearConv <pads = [1,1,1,1]> (x, s, zero, kernel, kernel_scale, kernel_zero, s, zero, bias)
    data = DequantizeLinear (x, s, zero)
    weight = DequantizeLinear (kernel, kernel_scale, kernel_zero)
    added = DequantizeLinear (bias, bias_scale)
    z = Conv <pads = [1,1,1,1]> (data, weight, added) }"""


def quantized() -> onnx.ModelProto:
    """A convolution of each quantized form, with one bias of eight channels: less than a step of the result."""
    model = onnx.parser.parse_model(QUANTIZED)
    draw = np.random.default_rng(3)
    model.graph.initializer.append(
        numpy_helper.from_array(draw.integers(-99, 99, (8, 8, 3, 3)).astype(np.int8), "kernel")
    )
    model.graph.initializer.append(numpy_helper.from_array(draw.permutation(8).astype(np.int32) + 1, "bias"))
    return model


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc"])
def test_a_small_bias_of_a_quantized_convolution_is_compared(backend: str) -> None:
    """No run shows it, as its step is coarser. So one that is off, exchanged, gone or new is found in the data."""
    options = {"block": 8} if backend == "x86-nchwc" else {}
    source = quantized()
    legal, report = legalize(source, backend, backend_options=options)
    assert report.verification is not None
    assert report.verification.findings == ()
    original = ModelIndex(read_model(source))
    assert list(check_constants(Counterparts(ModelIndex(read_model(legal)), original))) == []
    assert list(check_constants(Counterparts(original, ModelIndex(read_model(legal))))) == []

    def wrong(model: onnx.ModelProto) -> set[str]:
        return {finding.rule for finding in check_constants(Counterparts(ModelIndex(read_model(model)), original))}

    off = onnx.ModelProto.FromString(legal.SerializeToString())
    for tensor in off.graph.initializer:
        if tensor.name == "bias":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), "bias"))
    assert wrong(off) == {"constant"}
    for change in ("", "other"):
        changed = onnx.ModelProto.FromString(legal.SerializeToString())
        changed.graph.initializer.append(numpy_helper.from_array(np.arange(8, dtype=np.int32), "other"))
        (node,) = (each for each in changed.graph.node if each.op_type == "QLinearConv")
        node.input[8] = change
        assert wrong(changed) == {"constant"}
    without = onnx.ModelProto.FromString(source.SerializeToString())
    del without.graph.node[0].input[8]
    assert {f.rule for f in check_constants(Counterparts(original, ModelIndex(read_model(without))))} == {"constant"}


@pytest.mark.parametrize("owner", [True, False], ids=["the original has it", "neither has it"])
def test_a_constant_without_data_is_none_of_one_that_has_it(owner: bool) -> None:
    text = "g (float[1,4,6,6] x, float[4,4,3,3] w) => (float[1,4,4,4] y) { a = mine.Odd (x)  y = Conv (a, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "mine" : 1]> {text}')
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 4, 6, 6]))
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(KERNEL[:4, :4], "w"))
    if not owner:
        model.graph.initializer[0].ClearField("raw_data")
    legal, _ = legalize(model, "nhwc")
    assert verify(legal, "nhwc", against=model, static=True).passed
    for tensor in legal.graph.initializer:
        tensor.ClearField("raw_data")
    found = verify(legal, "nhwc", against=model, run=False).findings
    errors = [each for each in found if each.severity == "error"]
    assert [(each.rule, each.found) for each in errors] == [("constant", "none")] * owner
