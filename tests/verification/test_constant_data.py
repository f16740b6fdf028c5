"""Constants are compared exactly: the source's data in another layout passes, whatever the layout, and nothing else."""

from __future__ import annotations

from time import process_time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayout import legalize
from relayout.model.io import read_model
from relayout.verification.constant_data import check_constants
from relayout.verification.counterparts import Counterparts, OriginalIndex
from relayout.verification.relaid_data import is_relayout
from relayout.verification.verifier import verify

KERNEL = np.random.default_rng(0).normal(size=(32, 48, 3, 3)).astype(np.float32)
BLOCKED = KERNEL.reshape(2, 16, 3, 16, 3, 3).transpose(0, 2, 4, 5, 3, 1)


def padded(array: np.ndarray, *extents: int) -> np.ndarray:
    return np.pad(array, [(0, extent - own) for own, extent in zip(array.shape, extents, strict=True)])


@pytest.mark.parametrize(
    "result",
    {
        "itself": KERNEL,
        "permuted": KERNEL.transpose(2, 3, 1, 0),
        "blocks": BLOCKED,
        "opaque blocks": BLOCKED.reshape(KERNEL.shape),
        "flat": KERNEL.transpose(0, 2, 3, 1).reshape(32, -1),
        "shuffled channels": KERNEL.reshape(32, 2, 24, 3, 3).swapaxes(1, 2).reshape(KERNEL.shape),
        "padded blocks": padded(KERNEL, 40, 50, 3, 3).reshape(5, 8, 25, 2, 3, 3).transpose(0, 2, 4, 5, 3, 1),
        "blocks padded in front": np.pad(KERNEL, [(0, 0), (0, 0), (1, 0), (1, 0)])
        .reshape(32, 48, 2, 2, 2, 2)
        .transpose(0, 3, 5, 1, 2, 4)
        .reshape(32, 192, 2, 2),
        "more unit axes": KERNEL[None, :, None],
    }.items(),
    ids=lambda each: each[0],
)
def test_a_relayout_is_one_until_an_element_is_off_or_two_rows_are_exchanged(result: tuple[str, np.ndarray]) -> None:
    laid = np.ascontiguousarray(result[1])
    assert is_relayout(KERNEL, laid)
    assert is_relayout(laid, KERNEL), "padding is cut off again"
    place = int(np.flatnonzero(laid)[np.count_nonzero(laid) // 2])
    off = laid.copy()
    off.reshape(-1)[place] *= np.float32(1.01)
    assert is_relayout(KERNEL, off) is False
    exchanged = laid.copy().squeeze()
    exchanged[[0, -1]] = exchanged[[-1, 0]]
    assert is_relayout(KERNEL, exchanged) is False


def test_bits_are_compared_and_types() -> None:
    row = np.array([0.0, 1.0, np.nan, 2.0], np.float32)
    assert is_relayout(row, row.copy())
    assert is_relayout(row, np.array([-0.0, 1.0, np.nan, 2.0], np.float32)) is False
    assert is_relayout(row, row.astype(np.float64)) is False
    assert is_relayout(np.array(["a", "b"], object), np.array(["a", "b"], object))
    assert is_relayout(np.array(["a", "b"], object), np.array(["b", "a"], object)) is False


def test_data_with_few_different_values_may_be_undecided_but_never_wrong() -> None:
    mask = np.random.default_rng(1).integers(0, 2, size=(64, 32, 3, 3)).astype(np.int8)
    blocks = mask.reshape(16, 4, 8, 4, 3, 3).transpose(0, 2, 4, 5, 3, 1)
    assert is_relayout(mask, mask.transpose(2, 3, 1, 0))
    assert is_relayout(mask, blocks) is not False
    more = blocks.copy()
    more[tuple(np.argwhere(more == 0)[5])] = 1
    assert is_relayout(mask, more) is False
    assert is_relayout(np.ones(6), np.pad(np.ones(6), (0, 2)))
    assert is_relayout(np.ones(6), np.ones(8)) is False


@pytest.mark.parametrize("pads", [(1, 0), (2, 1)], ids=["two rows a block", "one row alone in its block"])
def test_a_kernel_over_blocks_of_an_image_may_begin_with_zeros(pads: tuple[int, int]) -> None:
    kernel = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    block = (3 + sum(pads)) // 2
    shifted = np.pad(kernel, [(0, 0), (0, 0), pads, pads]).reshape(4, 3, 2, block, 2, block)
    blocked = shifted.transpose(2, 4, 3, 5, 1, 0).reshape(2, 2, -1, 4)
    assert is_relayout(kernel, blocked)
    blocked[1, 0, [5, 8]] = blocked[1, 0, [8, 5]]
    assert is_relayout(kernel, blocked) is False


def test_a_kernel_over_blocks_of_an_image_may_have_zeros_at_both_ends() -> None:
    kernel = np.random.default_rng(0).standard_normal((4, 3, 5, 5)).astype(np.float32)
    shifted = np.pad(kernel, [(0, 0), (0, 0), (0, 0), (2, 2)]).reshape(4, 3, 5, 3, 3)
    blocked = shifted.transpose(2, 3, 4, 1, 0).reshape(5, 3, 9, 4)
    assert is_relayout(kernel, blocked)
    blocked[..., [0, 3]] = blocked[..., [3, 0]]
    assert is_relayout(kernel, blocked) is False


def test_an_axis_may_have_each_element_alone_in_its_block() -> None:
    pair = np.array([[6, 8]])
    assert is_relayout(pair, np.pad(pair, [(0, 0), (1, 9)]).reshape(6, 2).transpose().reshape(-1))
    kernel = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    blocked = np.pad(kernel, [(1, 1), (0, 0), (0, 0)]).reshape(2, 2, 3, 4).transpose(0, 2, 3, 1)
    assert is_relayout(kernel, blocked)
    blocked[0, [0, 1]] = blocked[0, [1, 0]]
    assert is_relayout(kernel, blocked) is False


def test_the_blocks_of_a_large_kernel_are_found_in_less_time_than_a_second() -> None:
    kernel = np.random.default_rng(0).integers(0, 1 << 30, size=(512, 512, 3, 3)).astype(np.int32)
    blocked = kernel.reshape(32, 16, 32, 16, 3, 3).transpose(0, 2, 4, 5, 3, 1)
    opaque = np.ascontiguousarray(blocked).reshape(kernel.shape)
    started = process_time()
    assert is_relayout(kernel, opaque)
    assert process_time() - started < 1


def test_a_constant_whose_order_its_elements_do_not_tell_has_a_note() -> None:
    mask = np.random.default_rng(1).integers(0, 2, size=(64, 32, 3, 3)).astype(np.int8)
    blocks = mask.reshape(16, 4, 8, 4, 3, 3).transpose(0, 2, 4, 5, 3, 1)
    source, legal = (OriginalIndex(read_model(with_constant(each))) for each in (mask, np.ascontiguousarray(blocks)))
    [finding] = check_constants(Counterparts(legal, source))
    assert (finding.severity, finding.node) == ("note", "mask")
    assert "only a run compares them" in finding.message


def test_branches_may_have_different_constants_of_one_name() -> None:
    """Each is the relayout of its own branch's. Exchanged ones are found, though the other branch has such data."""
    kernels = np.random.default_rng(2).normal(size=(2, 4, 4, 3, 3)).astype(np.float32)
    source = OriginalIndex(read_model(with_branches(*kernels)))
    legal, _ = legalize(with_branches(*kernels), "nhwc")
    assert list(check_constants(Counterparts(OriginalIndex(read_model(legal)), source))) == []
    exchanged = OriginalIndex(read_model(with_branches(*kernels[::-1])))
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


def with_constant(data: np.ndarray) -> onnx.ModelProto:
    """A model that returns a constant `mask`."""
    result = helper.make_tensor_value_info("y", TensorProto.INT8, data.shape)
    nodes = [helper.make_node("Identity", ["mask"], ["y"])]
    graph = helper.make_graph(nodes, "masked", [], [result], [numpy_helper.from_array(data, "mask")])
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
    original = OriginalIndex(read_model(source))
    assert list(check_constants(Counterparts(OriginalIndex(read_model(legal)), original))) == []
    assert list(check_constants(Counterparts(original, OriginalIndex(read_model(legal))))) == []

    def wrong(model: onnx.ModelProto) -> set[str]:
        return {finding.rule for finding in check_constants(Counterparts(OriginalIndex(read_model(model)), original))}

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
    assert {f.rule for f in check_constants(Counterparts(original, OriginalIndex(read_model(without))))} == {"constant"}


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
