"""Reshape, SpaceToDepth and DepthToSpace are views if their factors nest."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from memory_oracle import lay_out

from relayout.layout.memory_format import Atom, MemoryFormat, source_order
from relayout.layout.view import View
from relayout.legalization import legalize
from relayout.ops.node_reader import Reading
from relayout.ops.view_ops import blocks, factor


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((2, 3, 4), (6, 4), ((Atom(0), Atom(1)), (Atom(2),))),
        ((6, 4), (2, 3, 4), ((Atom(0, 3),), (Atom(0, 1, 3),), (Atom(1),))),
        (("N", 8, 1, 1), ("N", 8), ((Atom(0),), (Atom(1),))),
        (("N", 8, 7), (None, 56), ((Atom(0),), (Atom(1), Atom(2)))),
        ((4, 3), (6, 2), None),
        (("N", "M"), ("M", "N"), None),
        ((0, 3), (3, 0), None),
    ],
)
def test_a_reshape_is_a_view_where_the_factors_nest(
    source: tuple[int | str | None, ...],
    target: tuple[int | str | None, ...],
    expected: tuple[MemoryFormat, ...] | None,
) -> None:
    assert factor(source, target) == expected


@pytest.mark.parametrize("mode", ["DCR", "CRD", None])
@pytest.mark.parametrize("operator", ["SpaceToDepth", "DepthToSpace"])
@pytest.mark.parametrize(("channels", "block"), [(1, 2), (3, 2), (5, 3), (2, 1), (1, 4)])
@pytest.mark.parametrize("letters", ["NCHW", "NHWC"])
def test_space_to_depth_is_a_view(letters: str, channels: int, block: int, operator: str, mode: str | None) -> None:
    attributes = {"blocksize": block} if mode is None else {"blocksize": block, "mode": mode}
    depth = channels if operator == "SpaceToDepth" else channels * block**2
    shape = (2, depth, 4 * block, block)
    source = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    node = onnx.helper.make_node(operator, ["x"], ["y"], **attributes)
    (expected,) = onnx.reference.ReferenceEvaluator(node).run(None, {"x": source})
    order = ["NCHW".index(letter) for letter in letters]
    laid, expected = source.transpose(order), expected.transpose(order)
    value = ir.Value(name="x", shape=ir.Shape(laid.shape))
    attribute_list = [ir.convenience.convert_attribute(name, setting) for name, setting in attributes.items()]
    relabel = blocks(Reading(ir.Node("", operator, [value], attribute_list), 28), letters)
    assert relabel is not None
    view = View.of(relabel.axes, expected.shape, laid.shape)
    assert view is not None
    format_ = view.to_base(source_order(4))
    assert format_ is not None
    np.testing.assert_array_equal(lay_out(laid, format_), expected.ravel())


@pytest.mark.parametrize("shape", [("N", 4, "H", 8), (1, "C", 4, 4), (1, 4, 0, 4), (1, 4, 5, 4), (1, 3, 4, 4, 4)])
def test_space_to_depth_with_unknown_or_indivisible_extents_is_no_view(
    shape: tuple[int | str, ...],
) -> None:
    value = ir.Value(name="x", shape=ir.Shape(shape))
    size = ir.convenience.convert_attribute("blocksize", 2)
    letters = "NCHW" if len(shape) == 4 else "NCDHW"
    assert blocks(Reading(ir.Node("", "SpaceToDepth", [value], [size]), 13), letters) is None


def test_a_reshape_to_another_rank_than_its_result_declares_stays_as_it_is() -> None:
    """A text recognizer that people install declares a matrix, and computes three dimensions."""
    net = Net(opset=11)
    target = net.input("target", (3,), onnx.TensorProto.INT64)
    rows = net.transpose(net.node("Relu", net.input("x", ("n", 6))), 0, 1)
    reshaped = net.node("Reshape", rows, target)
    net.output(reshaped)
    model = net.model()
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(reshaped, onnx.TensorProto.FLOAT, [1, "size"]))
    legal, _ = legalize(model)
    assert_same_numbers(model, legal, {"x": np.ones((4, 6), np.float32), "target": np.array([4, 2, 3])})
