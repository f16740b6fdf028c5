"""Inputs and outputs keep the source's layout, or are set, freed or coupled; the report has their layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, random_feeds, run
from onnx import TensorProto

import relayout
from relayout.errors import UsageError
from relayout.layout.relaid_constant import apply_step
from relayout.report.schema import BoundaryValue, Report


def recurrent() -> onnx.ModelProto:
    """A state that comes and goes channels last, a frame beside it, convolutions that are channels first."""
    net = Net()
    frame = net.input("frame", [1, 8, 6, 6])
    state = net.input("state", [1, 6, 6, 8])
    mixed = net.node("Add", net.transpose(state, 0, 3, 1, 2), net.conv(frame, 8, 8))
    return named(net, {"state_out": net.transpose(net.conv(mixed, 8, 8), 0, 2, 3, 1), "seen": net.node("Relu", mixed)})


def named(net: Net, outputs: Mapping[str, str]) -> onnx.ModelProto:
    for name, value in outputs.items():
        net.nodes.append(onnx.helper.make_node("Identity", [value], [name]))
        net.output(name)
    return net.model()


def two_images() -> onnx.ModelProto:
    """One image that a convolution wants channels first, and one that nobody minds, both given channels last."""
    net = Net()
    left, right = net.input("left", [1, 6, 6, 8]), net.input("right", [1, 6, 6, 8])
    features = net.conv(net.transpose(left, 0, 3, 1, 2), 8, 8)
    return named(net, {"features": features, "mask": net.node("Sigmoid", right)})


def value_of(report: Report, name: str) -> BoundaryValue:
    return next(value for value in report.boundary if value.name == name)


def shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    return {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }


def fed(report: Report, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs as the report says to feed them."""
    return {v.name: as_laid(v, feeds[v.name]) for v in report.boundary if v.side == "input"}


def as_laid(value: BoundaryValue, array: np.ndarray) -> np.ndarray:
    """The source's value as the report says that it lies."""
    if value.order is not None:
        return array.transpose(value.order)
    for step in value.transform:
        array = apply_step(array, step)
    return np.ascontiguousarray(array)


def assert_report_says_how_to_run(model: onnx.ModelProto, legal: onnx.ModelProto, report: Report) -> None:
    """Fed and read as the report says, the legal model computes what the source does."""
    feeds = random_feeds(model)
    given = run(legal, fed(report, feeds))
    for value, expected, array in zip(
        [value for value in report.boundary if value.side == "output"], run(model, feeds), given, strict=True
    ):
        assert list(value.shape or ()) == list(array.shape)
        np.testing.assert_allclose(as_laid(value, expected), array, rtol=1e-4, atol=1e-4)
        for step in value.back:
            array = apply_step(array, step)
        if value.back:
            np.testing.assert_allclose(expected, array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"input_layouts": {"state": "any"}},
        {"output_layouts": {"state_out": "any", "seen": "NHWC"}},
        {"input_layouts": {"frame": "any", "state": "NCHW"}, "output_layouts": {"seen": "any"}},
        {"input_layouts": {"state,state_out": "any"}},
        {"output_layouts": {"state_out,state": "any"}},
        {"input_layouts": {"frame,state,state_out,seen": "any"}},
        {"input_layouts": {"state,state_out": "NCHW"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_the_report_says_what_to_feed_and_how_to_read(backend: str, options: dict[str, Any]) -> None:
    model = recurrent()
    legal, report = relayout.legalize(model, backend, **options)
    assert {value.name: list(value.shape or ()) for value in report.boundary} == shapes(legal)
    assert_report_says_how_to_run(model, legal, report)


def in_blocks(channels: int = 8, batch: int | str = 2) -> onnx.ModelProto:
    """Two convolutions; the first one's result is read outside too."""
    net = Net()
    first = net.conv(net.input("x", [batch, channels, 6, 5]), channels, channels)
    return named(net, {"y": net.conv(net.node("Relu", first), channels, channels), "seen": net.node("Neg", first)})


PACKED = {"backend_options": {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4i4o"]}}}


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize(
    ("options", "conversions", "cut"),
    [
        ({}, 3, []),
        ({"output_layouts": {"y": "any"}}, 2, ["y"]),
        ({"output_layouts": {"y": "any", "seen": "any"}}, 1, ["y", "seen"]),
        ({"input_layouts": {"x": "any"}, "output_layouts": {"y": "any", "seen": "any"}}, 0, ["x", "y", "seen"]),
        ({"input_layouts": {"x": "any"}, "output_layouts": {"y": "NCHW4c", "seen": "NHWC"}}, 1, ["x", "y"]),
        ({"input_layouts": {"x,y": "any"}}, 1, ["x", "y"]),
        ({"output_layouts": {"seen,y,x": "any"}}, 0, ["x", "y", "seen"]),
    ],
    ids=str,
)
def test_a_boundary_left_to_the_solver_may_be_blocked(
    options: dict[str, Any], conversions: int, cut: list[str], batch: int | str
) -> None:
    model = in_blocks(batch=batch)
    legal, report = relayout.legalize(model, "convert-layout", check=True, **PACKED, **options)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert len(report.conversions) == conversions
    assert [value.name for value in report.boundary if value.transform] == cut
    assert all(value.layout == "NCHWc[tile:4]" for value in report.boundary if value.transform)
    assert [value.name for value in report.boundary if value.back] == [name for name in cut if name != "x"]
    if batch == 2:
        assert_report_says_how_to_run(model, legal, report)
    _, second = relayout.legalize(legal, "convert-layout", **PACKED)
    assert second.after == report.after, "what is legal stays as it is"


def test_outputs_of_other_lengths_are_tied_by_whole_axes() -> None:
    net = Net()
    first = net.conv(net.input("x", [2, 8, 6, 5]), 8, 8)
    model = named(net, {"y": net.conv(first, 8, 16), "z": net.node("Relu", first)})
    _, report = relayout.legalize(model, "convert-layout", output_layouts={"y,z": "any"}, **PACKED)
    assert [value.transform for value in report.boundary] == [(), (), ()]


def test_an_output_is_not_left_with_padding() -> None:
    class Eights(relayout.Backend):
        """Blocks of eight channels, filled up."""

        def implementations(self, node: ir.Node) -> Sequence[relayout.Implementation]:
            if node.op_type != "Conv" or node.domain:
                return super().implementations(node)
            data = relayout.Layout.from_tvm("NCHW8c")
            return [relayout.Implementation((data, *["*"] * (len(node.inputs) - 1)), (data,), pads=True)]

    net = Net()
    net.output(net.conv(net.input("x", [2, 5, 6, 5]), 5, 5))
    model = net.model()
    name = model.graph.output[0].name
    legal, report = relayout.legalize(
        model, Eights, input_layouts={"x": "any"}, output_layouts={name: "any"}, check=True
    )
    assert [bool(value.transform) for value in report.boundary] == [True, False]
    assert_report_says_how_to_run(model, legal, report)


def test_an_unchanged_model_has_unchanged_inputs() -> None:
    model = two_images()
    legal, report = relayout.legalize(model)
    assert [(value.name, value.side) for value in report.boundary] == [
        *(("left", "input"), ("right", "input")),
        *(("features", "output"), ("mask", "output")),
    ]
    assert all(value.order is None and value.wanted is None for value in report.boundary)
    assert_same_numbers(model, legal)


def test_a_state_that_is_fed_back_has_no_transposes_at_input_and_output() -> None:
    model = recurrent()
    _, pinned = relayout.legalize(model)
    _, tied = relayout.legalize(model, input_layouts={"state,state_out": "any"})
    assert (pinned.after.transposes, tied.after.transposes) == (2, 0)
    state, state_out = value_of(tied, "state"), value_of(tied, "state_out")
    assert state.order == state_out.order == (0, 3, 1, 2)
    assert (state.coupled_with, state_out.coupled_with) == (("state_out",), ("state",))
    assert state.wanted == state_out.wanted == "any"
    assert value_of(tied, "frame").order is None


def test_tied_values_have_one_layout_if_each_alone_would_have_its_own() -> None:
    model = two_images()
    legal, report = relayout.legalize(model, input_layouts={"left,right": "any"}, output_layouts={"mask": "any"})
    # The second image has to follow the first, and all that is computed from it as well.
    assert value_of(report, "left").order == value_of(report, "right").order == (0, 3, 1, 2)
    assert value_of(report, "mask").order == (0, 3, 1, 2)
    assert report.after.transposes == 0
    assert_report_says_how_to_run(model, legal, report)


def test_a_tie_costs_a_conversion_if_one_value_is_required_in_another_layout() -> None:
    _, report = relayout.legalize(two_images(), input_layouts={"left,right": "any"})
    assert report.after.transposes == 1
    assert value_of(report, "left").order == value_of(report, "right").order


def test_a_tie_is_as_good_as_the_best_order_for_all() -> None:
    model = two_images()
    costs = []
    for order in permutations(range(4)):
        # By their letters: the convolution names the axes of the first, nobody those of the second.
        wanted = {name: "".join(letters[axis] for axis in order) for name, letters in
                  (("left", "NHWC"), ("right", "NCHW"))}  # fmt: skip
        costs.append(relayout.legalize(model, input_layouts=wanted)[1].cost)
    _, tied = relayout.legalize(model, input_layouts={"right,left": "any"})
    assert tied.cost == min(costs) < max(costs)


def test_a_name_with_a_comma_is_one_name() -> None:
    net = Net()
    net.output(net.conv(net.transpose(net.input("a,b", [1, 6, 6, 8]), 0, 3, 1, 2), 8, 8))
    _, report = relayout.legalize(net.model(), input_layouts={"a,b": "any"})
    assert value_of(report, "a,b").order == (0, 3, 1, 2)
    assert value_of(report, "a,b").coupled_with == ()


def test_a_unit_axis_of_one_tied_value_keeps_its_position_in_all() -> None:
    net = Net()
    one, many = net.input("one", [1, 6, 6, 8]), net.input("many", [4, 6, 6, 8])
    net.output(net.conv(net.transpose(one, 0, 3, 1, 2), 8, 8))
    net.output(net.conv(net.transpose(many, 0, 3, 1, 2), 8, 8))
    model = net.model()
    legal, report = relayout.legalize(model, input_layouts={"one,many": "any"})
    assert report.after.transposes == 0
    assert value_of(report, "one").order == value_of(report, "many").order == (0, 3, 1, 2)
    assert_report_says_how_to_run(model, legal, report)


def test_a_tie_overrides_the_input_layout_in_graph_json() -> None:
    graph = {
        "opset": 20,
        "inputs": [
            {"name": "a", "dtype": "float32", "shape": [1, 8, 6, 6], "layout": "NHWC"},
            {"name": "b", "dtype": "float32", "shape": [1, 8, 6, 6]},
        ],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 8, 3, 3]}],
        "nodes": [
            {"op": "Add", "inputs": ["a", "b"], "outputs": ["c"]},
            {"op": "MaxPool", "inputs": ["c"], "outputs": ["y"],
             "attributes": {"kernel_shape": [2, 2], "strides": [2, 2]}},
        ],
    }  # fmt: skip
    _, declared = relayout.legalize(graph)
    assert (value_of(declared, "a").order, value_of(declared, "a").wanted) == ((0, 2, 3, 1), "NHWC")
    _, tied = relayout.legalize(graph, input_layouts={"b,a": "any"})
    assert value_of(tied, "a").order is value_of(tied, "b").order is None
    assert tied.cost == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input_layouts": {"state,nobody": "any"}}, "the graph has no input or output of this name"),
        ({"input_layouts": {"state_out": "any"}}, "the graph has no input of this name"),
        ({"input_layouts": {"state_out,state": "any"}}, "the graph has no input of this name"),
        ({"output_layouts": {"state": "any"}}, "the graph has no output of this name"),
        ({"input_layouts": {"state,state": "any"}}, "is set twice"),
        ({"input_layouts": {"state": "NHWC", "frame,state": "any"}}, "is set twice"),
        ({"input_layouts": {"state,state_out": "any"}, "output_layouts": {"state_out": "any"}}, "is set twice"),
        ({"input_layouts": {"state,scale": "any"}}, "their ranks differ"),
        ({"input_layouts": {"frame,state": "NHWC"}}, "their axes have different names"),
        ({"input_layouts": {"state,": "any"}}, "the graph has no input or output of this name"),
        ({"input_layouts": {"state,state_out": "NXYZ"}}, "the layout does not fit the tensor"),
    ],
    ids=str,
)
def test_an_invalid_tie_is_an_error_with_the_reason(options: dict[str, Any], said: str) -> None:
    model = recurrent()
    model.graph.input.append(onnx.helper.make_tensor_value_info("scale", TensorProto.FLOAT, [8]))
    with pytest.raises(UsageError, match=said) as error:
        relayout.legalize(model, **options)
    assert "layout" in error.value.where


def test_an_output_that_is_an_input_cannot_be_tied() -> None:
    net = Net()
    net.output(net.input("x", [1, 8, 6, 6]))
    net.output(net.conv("x", 8, 8))
    with pytest.raises(UsageError, match="cannot be chosen"):
        relayout.legalize(net.model(), output_layouts={"conv_0,x": "any", "x": "any"})


def test_an_inlined_model_records_the_layouts_of_its_outputs() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 6, 5)), 3, 4))
    model = net.model()
    output = model.graph.output[0].name
    layouts = {"input_layouts": {"x": "NHWC"}, "output_layouts": {output: "NHWC"}}
    legal, _ = relayout.legalize(model, "nhwc", inline=True, **layouts)  # type: ignore[arg-type]
    assert {node.domain for node in legal.graph.node} == {""}
    assert {e.key: e.value for e in legal.graph.output[0].metadata_props}["relayout.order"] == "0,2,3,1"
    checked = relayout.verify(legal, "onnx", against=model)
    assert [(each.rule, each.severity) for each in checked.findings] == [("boundary", "note")] * 2
    assert checked.numeric is not None


def test_an_output_in_any_layout_is_cut_at_numbers_alone() -> None:
    """A caller cannot be told of blocks of as many elements as an open dim has."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[1,s,6,6] x) => (float[1,u] y) {
            a = Transpose <perm = [0,3,1,2]> (x)
            d = Concat <axis = 2> (a, a)
            b = Concat <axis = 3> (d, d)
            c = SpaceToDepth <blocksize = 2> (b)
            y = Flatten <axis = 1> (c) }""")
    _, report = relayout.legalize(model, "nhwc", check=True, output_layouts={"y": "any"})
    assert report.verification is not None
    assert report.verification.passed
    assert all(isinstance(extent, str) or extent < 1 << 31 for end in report.boundary for extent in end.shape)
