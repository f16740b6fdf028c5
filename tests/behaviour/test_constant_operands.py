"""A backend requires a layout of a constant that an operator combines with data: its axes have the data's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked
from onnx import numpy_helper

from relayout import InfeasibleError, legalize, verify

EXTENTS = (2, 3, 4, 5)


def difference(shape: Sequence[int], *, named: str, computed: bool) -> onnx.ModelProto:
    """A constant minus data. An operator before or behind names the axes of the data."""
    net = Net()
    data = net.input("x", EXTENTS)
    data = net.conv(data, 3, 3) if named == "before" else data
    constant = net.weight(*shape)
    constant = net.node("Exp", constant) if computed else constant
    data = net.node("Sub", constant, data)
    net.output(net.node("MaxPool", data, kernel_shape=[2, 2]) if named == "behind" else data)
    return net.model()


def table(*inputs: str) -> dict[str, Any]:
    return {"name": "table", "extends": "onnx", "rule": [{"op": "Sub", "inputs": [*inputs], "results": ["*"]}]}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("named", ["before", "behind"])
@pytest.mark.parametrize(("shape", "layout"), [((2, 3, 4, 5), "NWCH"), ((3, 4, 5), "HWC"), ((3, 1, 1), "HWC")])
def test_a_constant_lies_in_the_layout_that_is_required_of_it(
    shape: tuple[int, ...], layout: str, named: str, computed: bool
) -> None:
    model = difference(shape, named=named, computed=computed)
    legal, report = checked(model, table(layout, "*"))
    assert report.after.transposes == 2
    assert_same_numbers(model, legal)
    again, second = legalize(legal, table(layout, "*"))
    assert second.cost == report.cost
    assert again == legal


@pytest.mark.parametrize("named", ["before", "behind"])
def test_a_constant_in_the_layout_of_its_data_costs_nothing(named: str) -> None:
    _, report = checked(difference(EXTENTS, named=named, computed=False), table("NCHW", "*"))
    assert report.cost == 0


def test_a_constant_cannot_lie_otherwise_than_its_data() -> None:
    with pytest.raises(InfeasibleError, match="requires NWCH"):
        legalize(difference(EXTENTS, named="before", computed=False), table("NWCH", "NHWC"))


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("named", ["before", "behind"])
def test_the_verifier_names_the_axes_of_a_constant_by_its_data(named: str, computed: bool) -> None:
    model = difference(EXTENTS, named=named, computed=computed)
    (finding,) = verify(model, table("NWCH", "*"), static=True).findings
    assert (finding.rule, finding.operand, finding.expected) == ("layout-requirement", 0, "NWCH")


def test_two_readers_name_the_axes_of_one_constant() -> None:
    """Each reads it by the names of its own data."""
    net = Net()
    constant = net.weight(4, 4, 4, 4)
    images, turned = net.conv(net.input("x", (4, 4, 4, 4)), 4, 4), net.conv(net.input("y", (4, 4, 4, 4)), 4, 4)
    net.output(net.node("Sub", constant, images))
    net.output(net.node("Sub", constant, net.node("Transpose", turned, perm=[0, 2, 3, 1])))
    model = net.model()
    legal, report = checked(model, table("NHWC", "*"))
    assert report.after.transposes == 3
    assert_same_numbers(model, legal)
    weights = [numpy_helper.to_array(each) for each in legal.graph.initializer]
    assert sum(each.shape == (4, 4, 4, 4) for each in weights) == 2
    assert not np.array_equal(*[each for each in weights if each.shape == (4, 4, 4, 4)])


@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "vector"])
@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
def test_the_bounds_of_a_clip_keep_their_shape(backend: str, shape: tuple[int, ...], computed: bool) -> None:
    """onnxruntime takes bounds of one dim, and none of more."""
    net = Net()
    turned = net.node("Transpose", net.input("x", EXTENTS), perm=[0, 2, 3, 1])
    bounds = [net.constant(np.full(shape, bound, np.float32)) for bound in (-0.5, 0.5)]
    bounds = [net.node("Tanh", bound) if computed else bound for bound in bounds]
    clipped = net.node("Clip", turned, bounds[0], bounds[1])
    net.output(net.node("Transpose", clipped, perm=[0, 3, 1, 2]))
    legal, report = checked(net.model(), backend)
    assert report.after.transposes == 0
    assert_same_numbers(net.model(), legal)
