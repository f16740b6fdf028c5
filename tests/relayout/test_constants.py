"""Constants in the layouts that the legal model reads: made once, told apart, and no larger than they have to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import Net, assert_same_numbers
from onnx import numpy_helper

from relayout import legalize
from relayout.model_io import read_model, to_json


def uniform(number: float = 0.25) -> Net:
    """A convolution by a kernel of one number, and a multiplication of its result by another such image."""
    net = Net()
    value = numpy_helper.from_array(np.array([number], np.float32))
    kernel = net.node("ConstantOfShape", net.constant([64, 32, 5, 5]), value=value)
    mask = net.node("ConstantOfShape", net.constant([64, 9, 7]), value=value)
    net.output(net.node("Mul", net.node("Conv", net.input("x", (1, 32, 13, 11)), kernel), mask))
    return net


@pytest.mark.parametrize("backend", ["canonical", "nhwc", "opencl"])
def test_one_number_throughout_is_that_in_every_layout(backend: str) -> None:
    model = uniform().model()
    legal, report = legalize(model, backend)
    assert legal.ByteSize() < 5_000
    assert sum(node.op_type == "ConstantOfShape" for node in legal.graph.node) == 2
    assert report.status == "optimal"
    assert_same_numbers(model, legal)


def in_two_layouts() -> dict[str, Any]:
    """A weight that stays at home, read by an operator that takes any order and by one that does not."""
    conv = {"op": "Conv", "inputs": ["x", "w"], "outputs": ["c"]}
    mul = {"op": "Mul", "inputs": ["c", "w"], "outputs": ["m"]}
    add = {"op": "Add", "inputs": ["z", "w"], "outputs": ["y"]}
    return {
        "opset": 20,
        "inputs": [
            {"name": "x", "dtype": "float", "shape": [8, 8, 10, 10]},
            {"name": "z", "dtype": "float", "shape": [8, 8, 10, 10]},
        ],
        "outputs": [{"name": "m"}, {"name": "y"}],
        "constants": [{"name": "w", "dtype": "float", "shape": [8, 8, 1, 1]}],
        "nodes": [conv, mul, add],
    }


def test_a_constant_in_several_layouts_names_the_one_that_its_owner_has() -> None:
    source = in_two_layouts()
    legal, _ = legalize(source, "nhwc")
    made = {constant["name"]: constant for constant in legal["constants"]}
    assert {name for name in made if "transform" in made[name]} == {name for name in made if "source" in made[name]}
    others = [constant for constant in made.values() if "source" in constant]
    assert len(others) > 0
    assert {constant["source"] for constant in others} == {"w"}
    again = to_json(read_model(legal))
    assert again["constants"] == legal["constants"]


def test_a_constant_in_one_layout_keeps_its_name_and_needs_no_other() -> None:
    source = in_two_layouts()
    source["nodes"] = source["nodes"][:1]
    source["outputs"] = [{"name": "c"}]
    source["inputs"] = source["inputs"][:1]
    source["constants"][0]["shape"] = [8, 8, 3, 3]
    legal, _ = legalize(source, "canonical")
    (constant,) = legal["constants"]
    assert constant["name"] == "w"
    assert constant["transform"] == [{"op": "transpose", "perm": [0, 2, 3, 1]}]
    assert "source" not in constant


def test_parameters_whose_data_is_absent_are_not_worked_out_beforehand() -> None:
    net = Net()
    value = net.transpose(net.input("x", (2, 6, 6, 8)), 0, 3, 1, 2)
    value = net.node("BatchNormalization", value, *[net.constant(np.full(8, i, np.float32)) for i in range(1, 5)])
    net.output(net.transpose(value, 0, 2, 3, 1))
    told = to_json(read_model(net.model()))
    _, report = legalize(told)
    assert report.after.transposes == 0
    for constant in told["constants"]:
        del constant["data"]
    _, report = legalize(told)
    assert report.after.transposes == 2
