"""Operators with several data operands or results have one layout for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import pytest
from graphs import Net, assert_same_numbers

import relayout
from relayout import Backend, InfeasibleError, legalize, verify
from relayout.backend import rank_of


class Asking(Backend):
    """One operator's inputs and results, those of these numbers and no others."""

    name = "asking"

    def __init__(self, operator: str, inputs: Mapping[int, str], results: Mapping[int, str]) -> None:
        super().__init__()
        self.operator, self.inputs, self.results = operator, inputs, results

    def nth_input_layout_requirements(self, node: Any, n: int) -> Any:
        is_asked = node.op_type == self.operator and n in self.inputs and rank_of(node.inputs[n]) == 4
        return self.inputs[n] if is_asked else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: Any, n: int) -> Any:
        is_asked = node.op_type == self.operator and n in self.results and rank_of(node.outputs[n]) == 4
        return self.results[n] if is_asked else super().nth_result_layout_requirements(node, n)


def deformable() -> onnx.ModelProto:
    net = Net(opset=19)
    data, kernel = net.input("x", (1, 4, 6, 6)), net.weight(6, 4, 2, 2)
    offset, mask = net.input("offset", (1, 8, 5, 5)), net.input("mask", (1, 4, 5, 5))
    net.output(net.node("DeformConv", data, kernel, offset, "", mask, kernel_shape=[2, 2]))
    return net.model()


def pooled() -> onnx.ModelProto:
    net = Net()
    given, places = net.node("MaxPool", net.input("x", (1, 8, 6, 6)), results=2, kernel_shape=[2, 2])
    net.output(net.node("Relu", given))
    net.output(places, onnx.TensorProto.INT64)
    return net.model()


def assert_read_again(model: onnx.ModelProto, backend: Backend) -> None:
    """The legal model is what it says it is: to the verifier, and to whoever reads it next."""
    legal, report = legalize(model, backend)
    assert_same_numbers(model, legal)
    assert verify(legal, backend=backend, against=model).findings == ()
    again, second = legalize(legal, backend)
    assert (second.cost, again.graph.node) == (report.cost, legal.graph.node)
    elsewhere, _ = legalize(legal, relayout.load_backend("nchw"))
    assert_same_numbers(model, elsewhere)


@pytest.mark.parametrize("asked", [{0: "NHWC"}, {2: "NHWC"}, {4: "NHWC"}, {0: "NHWC", 1: "HWIO"}], ids=str)
@pytest.mark.parametrize("given", [{}, {0: "NHWC"}], ids=str)
def test_the_offset_and_the_mask_have_the_layout_of_the_data_by_default(
    asked: dict[int, str], given: dict[int, str]
) -> None:
    assert_read_again(deformable(), Asking("DeformConv", asked, given))


@pytest.mark.parametrize("given", [{0: "NCHW4c"}, {1: "NCHW4c"}], ids=str)
def test_the_indices_of_a_packed_pool_have_the_layout_of_its_result(given: dict[int, str]) -> None:
    assert_read_again(pooled(), Asking("MaxPool", {0: "NCHW4c"}, given))


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        (deformable(), Asking("DeformConv", {0: "NHWC", 2: "NCHW"}, {})),
        (pooled(), Asking("MaxPool", {0: "NCHW4c"}, {0: "NCHW4c", 1: "NHWC"})),
    ],
    ids=["DeformConv", "MaxPool"],
)
def test_two_layouts_for_the_data_are_rejected(model: onnx.ModelProto, backend: Backend) -> None:
    with pytest.raises(InfeasibleError):
        legalize(model, backend)
