"""The constants of graph JSON: three forms of data, or none with the steps of its conversion."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import Net
from json_graphs import Json, constant, graph, odd, with_constant

import relayout
from relayout.errors import InputError
from relayout.layout.relaid_constant import AbsentTensor, relaid
from relayout.model.io import read_model, to_json

DATA = base64.b64encode(np.arange(6, dtype="<f4").tobytes()).decode()


@pytest.mark.parametrize(
    "given",
    [{"data": DATA}, {"values": [0, 1, 2, 3, 4, 5]}, {"values": [[0, 1, 2], [3.0, 4.0, 5.0]]}],
    ids=["base64", "flat", "nested"],
)
def test_a_constants_data_has_three_forms(given: Json) -> None:
    np.testing.assert_array_equal(constant(with_constant(**given)).numpy(), np.arange(6).reshape(2, 3))


def test_a_constant_without_data_is_absent() -> None:
    tensor = constant(with_constant())
    assert isinstance(tensor, AbsentTensor)
    assert (tensor.dtype, list(tensor.shape), tensor.transform) == (ir.DataType.FLOAT, [2, 3], ())


def test_a_constant_without_elements_is_not_absent() -> None:
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [0]}])
    assert constant(source).numpy().shape == (0,)


def test_the_legal_graph_has_the_steps_for_absent_data() -> None:
    source = odd()
    steps = [{"op": "transpose", "perm": [1, 0]}]
    source["constants"] = [{"name": "k", "dtype": "float", "shape": [3, 2], "transform": steps}]
    model = read_model(source)
    value = model.graph.initializers["k"]
    assert value.const_value is not None
    value.const_value = relaid(value.const_value, [{"op": "reshape", "shape": [2, 3]}])
    value.shape = ir.Shape([2, 3])
    expected = {
        "name": "k",
        "dtype": "float",
        "shape": [2, 3],
        "transform": [*steps, {"op": "reshape", "shape": [2, 3], "from": [3, 2]}],
    }
    assert to_json(model)["constants"] == [expected]
    assert constant(to_json(model)).transform == tuple(expected["transform"])


def test_every_step_survives_and_is_checked_against_the_others() -> None:
    steps = [
        {"op": "transpose", "perm": [1, 0]},
        {"op": "pad", "pads": [0, 0, 3, 0]},
        {"op": "reshape", "shape": [2, 8], "from": [8, 2]},
        {"op": "crop", "shape": [2, 3], "from": [2, 8]},
    ]
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [2, 3], "transform": steps}])
    assert to_json(read_model(source))["constants"][0]["transform"] == steps


@pytest.mark.parametrize(
    ("backend", "options", "operators"),
    [
        ("tpu", {}, {"transpose", "pad", "reshape"}),
        ("x86-nchwc", {}, set()),
        ("convert-layout", {"desired_layouts": {"Conv": ["NCHW16c", "OIHW16i16o"]}}, set()),
    ],
)
def test_a_graph_without_weights_is_legal_json_for_blocks_too(backend: str, options: Json, operators: set[str]) -> None:
    net = Net()
    value = net.conv(net.node("Relu", net.conv(net.input("x", (1, 3, 32, 32)), 3, 24, 7, strides=[2, 2])), 24, 40)
    net.output(value)
    source = to_json(read_model(net.model()), weights=False)
    legal, _ = relayout.legalize(source, backend, backend_options=options)
    assert operators <= {step["op"] for each in legal["constants"] for step in each.get("transform", [])}
    assert to_json(read_model(json.loads(json.dumps(legal)))) == legal
    checked = relayout.load_backend(backend, options=options)
    assert relayout.verify(legal, checked, against=source).passed


STEP_FAULTS: dict[str, tuple[list[Json], int]] = {
    "an axis twice": ([{"op": "transpose", "perm": [0, 0]}], 0),
    "too few axes": ([{"op": "transpose", "perm": [0]}], 0),
    "another shape": ([{"op": "reshape", "shape": [6]}], 0),
    "elements lost": ([{"op": "reshape", "shape": [2, 3], "from": [7]}], 0),
    "elements found": ([{"op": "crop", "shape": [2, 3], "from": [2, 2]}], 0),
    "too few pads": ([{"op": "pad", "pads": [1, 1]}], 0),
    "more zeros than elements": ([{"op": "pad", "pads": [0, 0, 3, 0]}], 0),
    "steps that do not meet": (
        [{"op": "pad", "pads": [0, 1]}, {"op": "reshape", "shape": [2, 3], "from": [3, 2]}],
        0,
    ),
}


@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_steps_that_give_another_shape_are_an_error(fault: str) -> None:
    steps, number = STEP_FAULTS[fault]
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [2, 3], "transform": steps}])
    with pytest.raises(InputError, match="transform do not fit") as caught:
        read_model(source)
    assert caught.value.where.endswith(f"constant 'k', transform[{number}]")


def test_without_weights_only_small_constants_have_data() -> None:
    source = graph(
        {"op": "MatMul", "inputs": ["x", "w"], "outputs": ["m"]},
        {"op": "Reshape", "inputs": ["m", "s"], "outputs": ["y"]},
        constants=[
            {"name": "w", "dtype": "float", "shape": [300, 3], "values": [0.5] * 900},
            {"name": "s", "dtype": "int64", "shape": [1], "values": [-1]},
        ],
    )
    source["nodes"][0]["inputs"] = ["x", "t"]
    source["nodes"].insert(0, {"op": "Transpose", "inputs": ["w"], "outputs": ["t"]})
    model = read_model(source)
    weight = model.graph.initializers["w"]
    assert weight.const_value is not None
    weight.const_value = relaid(weight.const_value, [{"op": "transpose", "perm": [1, 0]}])
    large, small = to_json(model, weights=False)["constants"]
    assert large["transform"] == [{"op": "transpose", "perm": [1, 0]}]
    assert "data" not in large
    assert small["values"] == [-1]
    assert "data" in to_json(model)["constants"][0]


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("bool", [True, False], np.array([True, False])),
        ("int8", [-128, 127], np.array([-128, 127], np.int8)),
        ("uint64", [0, 2**64 - 1], np.array([0, 2**64 - 1], np.uint64)),
        ("float16", [0.5, "inf"], np.array([0.5, np.inf], np.float16)),
        ("float", ["nan", "-inf"], np.array([np.nan, -np.inf], np.float32)),
        ("string", ["a", "ä"], np.array([b"a", "ä".encode()])),
    ],
)
def test_elements_are_of_the_constants_type(dtype: str, values: list[Any], expected: np.ndarray) -> None:
    source = odd()
    source["constants"] = [{"name": "k", "dtype": dtype, "shape": [2], "values": values}]
    np.testing.assert_array_equal(constant(source).numpy(), expected)
    np.testing.assert_array_equal(constant(to_json(read_model(source))).numpy(), expected)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

CONSTANT_FAULTS: dict[str, tuple[Json, str]] = {
    "unknown dtype": ({"dtype": "float128", "data": DATA}, "unknown dtype"),
    "no base64": ({"data": "%%%"}, "is not base64"),
    "no ASCII": ({"data": "ä"}, "is not base64"),
    "short data": ({"data": "AAAA"}, "data does not fit its shape"),
    "too few values": ({"values": [1]}, "values do not fit its shape"),
    "values without end": ({"values": ENDLESS}, "values do not fit its shape"),
    "uneven values": ({"values": [[0, 1, 2, 3], 4, 5]}, "values do not fit its shape"),
    "text for numbers": ({"values": ["a"] * 6}, "not a number"),
    "fractions for integers": ({"dtype": "int32", "values": [0.5] * 6}, "element has the wrong type"),
    "truth for numbers": ({"values": [True] * 6}, "element has the wrong type"),
    "nothing for numbers": ({"values": [None] * 6}, "element has the wrong type"),
    "out of range": ({"dtype": "uint8", "values": [256] * 6}, "element is out of range"),
    "negative": ({"dtype": "uint8", "values": [-1] * 6}, "element is out of range"),
    "too large for a float": ({"values": [10**400] * 6}, "element is out of range"),
    "too large for this float": ({"dtype": "float16", "values": [1e5] * 6}, "element is out of range"),
    "twice": ({"data": DATA, "values": [0] * 6}, "has its data twice"),
    "data and transform": ({"data": DATA, "transform": [{"op": "reshape", "shape": [2, 3]}]}, "has its data twice"),
    "huge": ({"shape": [2**61, 2**61]}, "too large for any memory"),
}


@pytest.mark.parametrize("fault", CONSTANT_FAULTS)
def test_a_constant_that_is_none_is_an_error_with_its_name(fault: str) -> None:
    fields, problem = CONSTANT_FAULTS[fault]
    with pytest.raises(InputError, match=problem) as caught:
        read_model(with_constant(**fields))
    assert "constant 'k'" in caught.value.where


def test_a_string_that_is_not_utf_8_is_an_error_with_its_tensor() -> None:
    model = read_model(with_constant(values=[0] * 6))
    value = model.graph.initializers["k"]
    value.const_value = ir.StringTensor([b"\xff"], shape=ir.Shape([1]), name="k")
    with pytest.raises(InputError, match="not UTF-8") as caught:
        to_json(model)
    assert caught.value.where == "tensor k"
