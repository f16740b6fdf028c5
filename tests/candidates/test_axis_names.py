"""Axis names come from operators and are propagated to neighbours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net

from relayout import legalize, verify
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.axis_names import AxisNames, filled_names
from relayout.candidates.tensors import Operand
from relayout.layout.layout import Layout
from relayout.layout.memory_format import source_order
from relayout.model.io import read_model


def named(net: Net) -> tuple[AxisNames, dict[str, Operand]]:
    """The names of all values, and the values as operands by their own."""
    model = read_model(net.model())
    tensors = collect_tensors(model.graph, model.opset_imports)
    operands = {str(value.name): operand for value, operand in tensors.operands.items() if operand is not None}
    return AxisNames(tensors), operands


def filled(names: AxisNames, operand: Operand, wanted: str) -> str | None:
    return filled_names(names.known(operand.value), operand.view.extents, Layout.from_names(wanted))


def pooled(net: Net, value: str) -> None:
    net.output(net.node("MaxPool", value, kernel_shape=[1, 1]))


def test_a_name_travels_through_operators_and_views() -> None:
    net = Net()
    image = net.node("Relu", net.input("x", (2, 3, 4, 5)))
    pooled(net, net.transpose(image, 0, 3, 1, 2))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NHWC"
    assert not names.has_conflicting


def test_a_name_travels_through_a_dropout_that_draws_and_to_its_mask() -> None:
    net = Net(opset=13)
    drawn = net.constant(np.float32(0.5)), net.constant(np.bool_(True))
    kept, mask = net.node("Dropout", net.input("x", (2, 3, 4, 5)), *drawn, results=2)
    pooled(net, kept)
    net.output(mask, onnx.TensorProto.BOOL)
    names, operands = named(net)
    assert [names.of(operands[value]) for value in ("x", kept, mask)] == ["NCHW"] * 3


def test_the_nearest_name_stays_and_the_other_contests_it() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    pooled(net, net.node("Relu", net.node("Relu", image)))
    pooled(net, net.transpose(net.node("Relu", image), 0, 3, 1, 2))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NHWC"
    assert names.has_conflicting
    assert names.layout(operands["x"], ()) is None


def test_of_equally_near_names_that_of_the_first_operator_stays() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    pooled(net, net.node("Relu", image))
    pooled(net, net.transpose(net.node("Relu", image), 0, 3, 1, 2))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NCHW"


def test_a_relabel_is_no_step_from_a_name_to_an_axis() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    pooled(net, net.node("Relu", image))
    pooled(net, net.transpose(net.transpose(image, 3, 2, 1, 0), 3, 0, 2, 1))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NHWC"


def test_of_two_axes_with_one_name_the_one_of_extent_1_has_none() -> None:
    net = Net()
    image = net.input("x", (1, 1, 4, 5))
    pooled(net, net.node("Relu", image))
    pooled(net, net.node("Reshape", image, net.constant([4, 5, 1, 1])))
    names, operands = named(net)
    assert names.of(operands["x"]) is None
    assert filled(names, operands["x"], "NHWC") == "HWNC"


def test_an_unchanged_operator_propagates_axis_names() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    places, updates = net.constant([[0]]), net.input("u", (1, 3, 4, 5))
    pooled(net, net.transpose(net.node("ScatterND", image, places, updates), 0, 3, 1, 2))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NHWC"


def test_a_default_axis_name_is_used_only_without_a_stated_one() -> None:
    """To a pool of the whole picture it is nothing which of its places are rows, to a normalization which is which but
    of the channels."""
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    net.output(net.node("GlobalMaxPool", image))
    pooled(net, net.node("Relu", net.node("Relu", net.transpose(image, 0, 1, 3, 2))))
    vectors = [net.weight(3), net.weight(3), net.weight(3), net.weight(3)]
    net.output(net.node("BatchNormalization", net.input("y", (2, 3, 4, 5)), *vectors))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NCWH"
    assert names.of(operands["y"]) == "NCHW"
    assert names.in_order(operands["x"], source_order(4)) is None
    assert names.in_order(operands["y"], source_order(4)) == "NCHW"


@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_the_name_of_a_unit_axis_does_not_name_other_axes(perm: tuple[int, ...]) -> None:
    net = Net()
    reduced = net.node("ReduceMean", net.input("x", (4, 1, 2, 3)), axes=[2, 3])
    pooled(net, net.transpose(reduced, *perm))
    names, operands = named(net)
    assert filled(names, operands["x"], "NHWC") == "NHWC"


def test_a_unit_axis_does_not_name_the_longer_axis_that_it_broadcasts_to() -> None:
    net = Net()
    rows = net.node("Relu", net.input("x", (1, 3, 1, 5)))
    pooled(net, rows)
    turned = net.transpose(net.node("Relu", net.input("y", (1, 3, 5, 4))), 0, 1, 3, 2)
    net.output(net.node("Mul", turned, rows))
    names, operands = named(net)
    assert names.of(operands["x"]) == "NCHW"
    assert names.of(operands["y"]) is None
    assert filled(names, operands["y"], "NCHW") == "NCWH"


def test_an_axis_of_extent_1_gives_the_blocks_made_of_it_no_name() -> None:
    """SpaceToDepth makes channels of it, and calls them so itself; another axis may have come with that name."""
    net = Net()
    mean = net.transpose(net.node("GlobalAveragePool", net.input("x", (4, 6, 3, 2))), 0, 3, 1, 2)
    twice = net.node("Concat", mean, mean, axis=3)
    blocks = net.node("SpaceToDepth", twice, blocksize=2)
    net.output(net.node("LogSoftmax", blocks, axis=1))
    model = net.model()
    legal, _ = legalize(model, "canonical")
    assert not verify(legal, "canonical", against=model, static=True).findings


def test_a_unit_axis_takes_the_name_of_the_longer_axis() -> None:
    net = Net()
    image = net.node("Relu", net.input("x", (2, 3, 4, 5)))
    pooled(net, image)
    net.output(net.node("Mul", image, net.node("Relu", net.input("scale", (2, 3, 1, 1)))))
    names, operands = named(net)
    assert names.of(operands["scale"]) == "NCHW"
