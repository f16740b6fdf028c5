"""Attention in windows, as Swin has it: Reshapes merge the batch with the windows, and a multiple of it is split again.

With a batch of unknown size the legal model counts as much as with a batch of one, and a second run finds the same.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from graphs import Net, assert_same_numbers

from relayout import legalize, read_model, verify

WINDOWS = 4


def windows(batch: int | str, *, is_computed: bool = False) -> onnx.ModelProto:
    """An image of 8 x 8 in windows of 4 x 4, an attention of 3 heads in each, and the image again. `is_computed`: the
    shapes are computed from the batch, else they have -1 in its place."""
    net = Net(18)
    image = net.input("x", (batch, 8, 8, 12))
    first = net.node("Gather", net.node("Shape", image), net.constant([0])) if is_computed else ""

    def shaped(value: str, times: int, *rest: int) -> str:
        if not is_computed:
            return str(net.node("Reshape", value, net.constant([-1, *rest])))
        lead = net.node("Mul", first, net.constant([times]))
        return str(net.node("Reshape", value, net.node("Concat", lead, net.constant(rest), axis=0)))

    value = net.transpose(shaped(image, 1, 2, 4, 2, 4, 12), 0, 1, 3, 2, 4, 5)
    value = net.node("MatMul", shaped(value, WINDOWS, 16, 12), net.weight(12, 36))
    packed = net.transpose(shaped(value, WINDOWS, 16, 3, 3, 4), 2, 0, 3, 1, 4)
    query, key, value = (net.node("Gather", packed, net.constant(place), axis=0) for place in range(3))
    attention = net.node("Softmax", net.node("MatMul", query, net.transpose(key, 0, 1, 3, 2)), axis=-1)
    value = net.transpose(net.node("MatMul", attention, value), 0, 2, 1, 3)
    value = net.node("MatMul", shaped(value, WINDOWS, 16, 12), net.weight(12, 12))
    value = net.transpose(shaped(value, 1, 2, 2, 4, 4, 12), 0, 1, 3, 2, 4, 5)
    net.output(net.node("Add", shaped(value, 1, 8, 8, 12), image))
    return net.model()


def with_names(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """The model with an exporter's name for the first dim of each Reshape's result but the output."""
    shapes = {value.name: value.shape for node in read_model(model).graph for value in node.outputs}
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for place, node in enumerate(node for node in model.graph.node[:-1] if node.op_type == "Reshape"):
        shape = shapes[node.output[0]]
        assert shape is not None
        dims = [f"{prefix}{place + 40}", *shape[1:]]
        named.graph.value_info.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, dims))
    return named


@pytest.mark.parametrize("is_computed", [False, True], ids=["constants", "computed"])
@pytest.mark.parametrize("prefix", ["", "unk__", "Reshapeoutput_dim_", "/reshape_"])
@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_a_batch_of_unknown_size_counts_as_one(backend: str, prefix: str, is_computed: bool) -> None:
    _, expected = legalize(windows(1), backend)
    model = windows("batch", is_computed=is_computed)
    if prefix:
        model = with_names(model, prefix)
    legal, report = legalize(model, backend)
    assert (report.before.bytes, report.after.bytes) == (expected.before.bytes, expected.after.bytes)
    assert report.cost == expected.cost
    assert report.assumed == {"batch": 1}
    assert verify(legal, backend, against=model, report=report, static=True).findings == ()
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend)
    assert second.after == second.before == report.after
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def rows(batch: int | str) -> onnx.ModelProto:
    """An image, channels first, and an attention of 2 heads along each row, whose heads are split from the channels."""
    net = Net(17)
    image = net.node("Relu", net.input("x", (batch, 16, 8, 8)))
    tokens = net.node("Reshape", net.transpose(image, 0, 2, 3, 1), net.constant([-1, 8, 16]))
    packed = net.node("MatMul", tokens, net.weight(16, 48))
    packed = net.transpose(net.node("Reshape", packed, net.constant([-1, 8, 3, 2, 8])), 2, 0, 3, 1, 4)
    query, key, value = (net.node("Gather", packed, net.constant(place), axis=0) for place in range(3))
    attention = net.node("Softmax", net.node("MatMul", query, net.transpose(key, 0, 1, 3, 2)), axis=-1)
    value = net.transpose(net.node("MatMul", attention, value), 0, 2, 1, 3)
    value = net.node("MatMul", net.node("Reshape", value, net.constant([-1, 8, 16])), net.weight(16, 16))
    value = net.transpose(net.node("Reshape", value, net.constant([-1, 8, 8, 16])), 0, 3, 1, 2)
    kernel = net.weight(16, 16, 1, 1)
    net.output(net.node("Conv", net.node("Add", value, image), kernel))
    return net.model()


def windows_of_planes(batch: int | str) -> onnx.ModelProto:
    """Planes between convolutions, and a matrix in windows of 4 x 4 between them."""
    net = Net(17)
    kernel = net.weight(8, 8, 1, 1)
    image = net.node("Conv", net.input("x", (batch, 8, 8, 8)), kernel)
    value = net.node("Reshape", net.transpose(image, 0, 2, 3, 1), net.constant([-1, 2, 4, 2, 4, 8]))
    value = net.node("Reshape", net.transpose(value, 0, 1, 3, 2, 4, 5), net.constant([-1, 16, 8]))
    value = net.node("MatMul", value, net.weight(8, 8))
    value = net.transpose(net.node("Reshape", value, net.constant([-1, 2, 2, 4, 4, 8])), 0, 1, 3, 2, 4, 5)
    value = net.transpose(net.node("Reshape", value, net.constant([-1, 8, 8, 8])), 0, 3, 1, 2)
    net.output(net.node("Conv", value, kernel))
    return net.model()


@pytest.mark.parametrize(("network", "backend"), [(rows, "xla-cpu"), (windows_of_planes, "onnx")])
def test_rows_of_an_unknown_batch_cost_as_those_of_a_known_one(
    network: Callable[[int | str], onnx.ModelProto], backend: str
) -> None:
    _, expected = legalize(network(2), backend)
    model = network("batch")
    legal, report = legalize(model, backend, dims={"batch": 2})
    assert report.cost == expected.cost
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend, dims={"batch": 2})
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("batch", "bias"), [(2, ()), (2, (6,)), (2, (128, 1)), (2, (128, 6)), ("batch", ()), ("batch", (6,))], ids=str
)
@pytest.mark.parametrize("is_turned", [0, 1])
def test_a_gemm_takes_its_rows_in_any_order(batch: int | str, bias: tuple[int, ...], is_turned: int) -> None:
    """onnxruntime writes a MatMul and its bias so. Rows are independent; a bias for each row is turned with them."""
    net = Net(17)
    image = net.node("Relu", net.input("x", (batch, 8, 8, 12)))
    apart = net.node("Reshape", image, net.constant([-1, 2, 4, 2, 4, 12]))
    rows = net.node("Reshape", net.transpose(apart, 0, 1, 3, 2, 4, 5), net.constant([-1, 12]))
    rows = net.transpose(rows, 1, 0) if is_turned else rows
    operands = [rows, net.weight(12, 6), *([net.weight(*bias)] if bias else [])]
    product = net.node("Gemm", *operands, transA=is_turned, alpha=0.5)
    apart = net.transpose(net.node("Reshape", product, net.constant([-1, 2, 2, 4, 4, 6])), 0, 1, 3, 2, 4, 5)
    net.output(net.node("Relu", net.node("Reshape", apart, net.constant([-1, 8, 8, 6]))))
    model = net.model()
    legal, report = legalize(model, "onnx", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.after.transposes == 0
    assert_same_numbers(model, legal)
    assert legalize(model, "onnx", engine="cp-sat")[1].cost == report.cost
