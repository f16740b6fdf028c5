"""Requirements of nodes that the model lacks, and that relayout would write in place of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from legalization_checks import checked

import relayout
from relayout import Layout
from relayout.backend import Backend, Implementation, Writing, rank_of
from relayout.errors import BackendError


def product_behind_a_transpose() -> onnx.ModelProto:
    """A product with a matrix, on channels last between two tensors with channels first."""
    net = Net()
    value = net.transpose(net.node("Relu", net.input("x", (2, 8, 6, 6))), 0, 2, 3, 1)
    product = net.node("MatMul", value, net.constant(np.ones((8, 4), np.float32)))
    net.output(net.node("Relu", net.transpose(product, 0, 3, 1, 2)))
    return net.model()


def rule(operator: str, **layouts: Any) -> dict[str, Any]:
    return {"name": "ruled", "rule": [{"op": operator, **layouts}]}


def test_a_requirement_of_another_rank_rules_a_decomposition_out() -> None:
    model = product_behind_a_transpose()
    _, report = checked(model, relayout.load_backend("onnx"))
    assert report.after.transposes == 0
    # The product of the transposes multiplies a matrix by a batch, and no layout of the rule fits the batch.
    matrices = relayout.load_backend(rule("MatMul", when={"rank": 2}, inputs=["NC", "NC"]))
    _, report = checked(model, matrices)
    assert (report.after.transposes, report.status) == (2, "optimal")


def test_a_requirement_of_another_rank_rules_an_operator_on_blocks_out() -> None:
    net = Net()
    kernel = net.constant(np.ones((8, 8, 1, 1), np.float32))
    value = net.node("Conv", net.input("x", (1, 8, 6, 6)), kernel)
    net.output(net.node("Conv", net.node("Relu", value), kernel))
    blocks = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4i4o"]}}
    for layout, conversions in (("*", 2), ("****", 4)):
        table = {**rule("Relu", inputs=[layout], results=[layout]), "extends": "convert-layout", "options": blocks}
        _, report = checked(net.model(), relayout.load_backend(table))
        assert report.after.transposes == conversions


class Matrices(Backend):
    """Fails at a product of a matrix by a batch."""

    name = "matrices"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Any:
        if node.op_type == "MatMul" and rank_of(node.inputs[0]) == 2:
            raise KeyError("a matrix")
        return super().nth_input_layout_requirements(node, n)


class Particular(Backend):
    """Fails where the operand of such a product is compared with a requirement."""

    name = "particular"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Any:
        is_written = node.op_type == "MatMul" and rank_of(node.inputs[0]) == 2
        return "NCHW" if is_written and n == 1 else super().nth_input_layout_requirements(node, n)

    def is_satisfied_by(self, tensor: Any, required: Any, current: Any) -> bool:
        raise KeyError("a matrix")


@pytest.mark.parametrize("backend", [Matrices, Particular])
def test_a_fault_of_a_backend_about_such_a_node_says_that_the_model_lacks_it(backend: type[Backend]) -> None:
    model = product_behind_a_transpose()
    for node in model.graph.node:
        node.name = ""
    with pytest.raises(BackendError, match="KeyError: 'a matrix'") as caught:
        relayout.legalize(model, backend)
    written = "the model has no such node, which relayout would write in place of another"
    assert caught.value.hint == f"{written}; this is a fault of the backend, not of the model"
    assert "MatMul" in caught.value.where
    assert "node_MatMul" not in caught.value.where


class Leaky(Backend):
    """Runs a Relu with channels last, as another operator."""

    name = "leaky"

    def implementations(self, node: ir.Node) -> Any:
        if node.op_type != "Relu":
            return super().implementations(node)
        layout = Layout.parse("NHWC")
        return [Implementation((layout,), (layout,), rewrite=self._write)]

    @staticmethod
    def _write(writing: Writing) -> None:
        shape = writing.shape_of(0, is_result=True)
        writing.set_result(0, writing.emit("LeakyRelu", [writing.read(0)], {"alpha": 0.0}, shape=shape))


def test_a_rewrite_has_its_operands_in_one_order_where_neighbours_name_their_axes_differently() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    net.output(net.conv(image, 3, 3))
    net.output(net.conv(net.transpose(net.node("Relu", image), 1, 3, 2, 0), 5, 3))
    legal, _ = checked(net.model(), Leaky)
    assert [node.op_type for node in legal.graph.node] == ["Transpose", "Conv", "LeakyRelu", "Transpose", "Conv"]
