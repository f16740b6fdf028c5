"""Tiles of 2 and of 3 do not nest: a conversion between them goes by way of whole channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, random_feeds, run
from legalization_checks import checked, operators

import relayout
from relayout import Backend, Implementation, Layout, Report
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.iteration_space import indexing_maps
from relayout.layout.memory_format import Atom, MemoryFormat
from relayout.model.io import read_model
from relayout.ops import Free
from relayout.report.render import render_text
from relayout.verification.verifier import check_report


class Tiles(Backend):
    """Each convolution takes blocks of as many channels as its name ends with, filled up with zeros."""

    name = "tiles"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Conv" or node.domain:
            return super().implementations(node)
        ways = []
        for place, tile in enumerate(str(node.name).split("_")[1:]):
            data = Layout.from_tvm(f"NCHW{tile}c")
            others = [Layout.parse("OIHW"), Layout.any(1)][: len(node.inputs) - 1]
            ways.append(Implementation((data, *others), (data,), cost=place * 5000, pads=True))
        return ways


class Slow(Tiles):
    """The same, where a pass costs three times its bytes."""

    name = "slow"

    def conversion_cost(self, tensor: relayout.TensorType, source: Layout, target: Layout) -> int:
        return 6 * tensor.element_size * int(np.prod(tensor.shape))


def neighbours(channels: int, *tiles: str, shape: tuple[int | str, ...] = (2, 6, 5)) -> onnx.ModelProto:
    net = Net()
    value = net.input("x", (shape[0], channels, *shape[1:]))
    for _ in tiles:
        value = net.conv(value, channels, channels)
    net.output(value)
    model = net.model()
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    for node, tile in zip(convolutions, tiles, strict=True):
        node.name = f"conv_{tile}"
    return model


def converted(model: onnx.ModelProto, backend: type[Backend] = Tiles, **options: str) -> tuple[onnx.ModelProto, Report]:
    legal, report = checked(model, backend, **options)
    assert_same_numbers(model, legal)
    assert list(check_report(report, read_model(legal), read_model(model), None, frozenset())) == []
    again, second = relayout.legalize(legal, backend, **options)
    assert (second.after, operators(again)) == (report.after, operators(legal)), "what is legal stays as it is"
    return legal, report


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
@pytest.mark.parametrize(("channels", "one", "other"), [(6, "2", "3"), (12, "3", "2"), (12, "4", "6"), (36, "4", "9")])
def test_neighbours_whose_tiles_do_not_nest_are_converted_in_two_passes(
    channels: int, one: str, other: str, objective: str
) -> None:
    legal, report = converted(neighbours(channels, one, other), objective=objective)
    size = 2 * channels * 6 * 5 * 4
    listed = [(each.from_, each.to, each.passes, each.bytes, each.padding) for each in report.conversions]
    tiles = [f"NCHWc[tile:{tile}]" for tile in (one, other)]
    assert listed == [
        ("NCHW", tiles[0], 1, 2 * size, 0),
        (tiles[0], tiles[1], 2, 4 * size, 0),
        (tiles[1], "NCHW", 1, 2 * size, 0),
    ]
    assert (report.after.transposes, report.after.bytes) == (4, 8 * size)
    if objective == "bytes":
        assert report.cost == 8 * size
    between = operators(legal)[operators(legal).index("relayout::Conv") + 1 :]
    assert between[:5] == ["Reshape", "Transpose", "Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("channels", "one", "other", "passes", "transposed", "padded"),
    [
        (5, "2", "3", 2, [6, 6, 6, 6], []),  # to the same length, in other tiles
        (7, "4", "3", 2, [8, 8, 9, 9], [8, 9]),  # the zeros are added between the two
        (10, "4", "8", 1, [16, 16], [12, 16]),  # one more tile of four makes two of eight
    ],
)
def test_padded_tiles_that_do_not_nest_are_converted_with_the_fewest_bytes(
    channels: int, one: str, other: str, passes: int, transposed: list[int], padded: list[int]
) -> None:
    _, report = converted(neighbours(channels, one, other))
    middle, channel = report.conversions[1], 2 * 6 * 5 * 4
    moved = channel * sum(transposed), channel * sum(padded)
    assert (middle.passes, middle.bytes - middle.padding, middle.padding) == (passes, *moved)
    assert report.after.transposes == 2 + passes


@pytest.mark.parametrize(("one", "other"), [("2", "4"), ("4", "2")])
def test_whole_tiles_that_fill_up_larger_ones_take_one_pass(one: str, other: str) -> None:
    _, report = converted(neighbours(10, one, other))
    assert [each.passes for each in report.conversions] == [1, 1, 1]
    assert report.after.transposes == 3


@pytest.mark.parametrize(("one", "other"), [("8", "3"), ("3", "8"), ("8", "4"), ("4", "8"), ("8", "7")])
def test_one_tile_may_be_longer_than_the_axis(one: str, other: str) -> None:
    _, report = converted(neighbours(5, one, other))
    assert [each.passes for each in report.conversions] == [1, 1, 1]


def test_both_passes_are_weighed_against_an_implementation_that_needs_none() -> None:
    """The second way of the second convolution costs 5000: less than two passes, and more than one would."""
    small = 2 * 6 * 6 * 5 * 4
    assert 2 * small < 5000 < 4 * small
    _, report = converted(neighbours(6, "2", "3_2"))
    assert [each.to for each in report.conversions] == ["NCHWc[tile:2]", "NCHW"]
    assert report.cost == 4 * small + 5000


def test_a_backend_prices_each_pass() -> None:
    _, report = converted(neighbours(6, "2", "3"), Slow)
    assert report.cost == 4 * 6 * 2 * 6 * 6 * 5 * 4


def test_whole_axes_may_be_of_unknown_length() -> None:
    _, report = converted(neighbours(6, "2", "3", shape=("N", 6, 5)))
    assert report.after.transposes == 4
    _, report = converted(neighbours(6, "2", "3", shape=(2, "H", 5)))
    assert report.after.transposes == 4


def test_convert_layout_accepts_tiles_that_do_not_nest_for_two_operators() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 12, 6, 6)), 12, 12)
    net.output(net.node("MaxPool", value, kernel_shape=[2, 2]))
    desired = {"Conv": ["NCHW4c", "OIHW4i4o"], "MaxPool": ["NCHW6c"]}
    model = net.model()
    legal, report = checked(model, "convert-layout", backend_options={"desired_layouts": desired})
    assert_same_numbers(model, legal)
    assert [each.passes for each in report.conversions] == [1, 2, 1]


def test_the_table_shows_the_number_of_transposes() -> None:
    _, report = converted(neighbours(6, "2", "3"))
    assert "2 transposes" in render_text(report)


def reshaped(net: Net, value: str, *shape: int) -> str:
    return str(net.node("Reshape", value, net.constant(shape)))


def behind_a_view(operator: str, *, merged: tuple[int, ...]) -> onnx.ModelProto:
    """Channels that a Reshape merges, read by an operator and, as they are, by another."""
    net = Net()
    channels = int(np.prod(merged))
    value = reshaped(net, net.node("Neg", net.input("x", (2, 6, 5, *merged))), 2, 6, 5, channels)
    picture = net.transpose(value, 0, 3, 1, 2)
    result = net.conv(picture, channels, 4) if operator == "Conv" else net.node(operator, picture, kernel_shape=[2, 2])
    net.output(result)
    net.output(net.node("Exp", value))
    return net.model()


@pytest.mark.parametrize("merged", [(4, 3), (3, 4), (2, 3, 3)])
@pytest.mark.parametrize(("operator", "desired"), [("Conv", ["NCHW2c", "OIHW2o"]), ("MaxPool", ["NCHW2c"])])
def test_tiles_that_do_not_nest_behind_a_merging_view(
    operator: str, desired: list[str], merged: tuple[int, ...]
) -> None:
    model = behind_a_view(operator, merged=merged)
    legal, report = checked(model, "convert-layout", backend_options={"desired_layouts": {operator: desired}})
    assert_same_numbers(model, legal)
    assert report.after.transposes == 2
    again, second = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": {operator: desired}})
    assert (second.after, operators(again)) == (report.after, operators(legal))


def test_tiles_that_do_not_nest_behind_two_regrouping_views() -> None:
    net = Net()
    value = reshaped(net, reshaped(net, net.input("x", (2, 5, 6, 4, 3)), 2, 5, 8, 9), 2, 30, 12)
    value = reshaped(net, net.node("Exp", net.transpose(value, 0, 2, 1)), 2, 12, 6, 5)
    net.output(net.conv(value, 12, 4))
    model = net.model()
    legal, _ = checked(model, "convert-layout", backend_options={"desired_layouts": {"Conv": ["NCHW2c", "OIHW2o"]}})
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (2, 1, 0, 3)])
@pytest.mark.parametrize(("tile", "results"), [(3, 72), (6, 72), (4, 72), (3, 8)])
def test_tiles_of_a_one_pixel_image_do_not_nest_either(tile: int, results: int, perm: tuple[int, ...]) -> None:
    net = Net()
    value = net.transpose(net.node("Relu", net.input("x", (6, 6, 6, 4))), *perm)
    net.output(net.node("Conv", reshaped(net, value, 6, 144, 1, 1), net.weight(results, 144, 1, 1)))
    desired = {"Conv": [f"NCHW{tile}c", "OIHW"]}
    legal, report = checked(model := net.model(), "convert-layout", backend_options={"desired_layouts": desired})
    assert_same_numbers(model, legal)
    assert report.after.transposes == (perm[0] != 0)
    again, second = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": desired})
    assert (second.after, operators(again)) == (report.after, operators(legal))


class Pairs(Backend):
    """Pools take their channels in pairs."""

    name = "pairs"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type == "MaxPool" and not node.domain:
            return "NCHWc[tile:2]"
        return super().nth_input_layout_requirements(node, n)


def test_channels_that_no_tile_divides_are_rejected_behind_a_view_too() -> None:
    checked(behind_a_view("MaxPool", merged=(4, 3)), Pairs)
    with pytest.raises(relayout.InfeasibleError, match="NCHWc"):
        relayout.legalize(behind_a_view("MaxPool", merged=(5, 3)), Pairs)


@pytest.mark.parametrize("tile", [2, 4, 3])
def test_an_output_may_have_tiles_that_do_not_nest_in_the_axes_that_it_merges(tile: int) -> None:
    net = Net()
    merged = reshaped(net, net.node("Relu", net.input("x", (2, 4, 3, 5, 6))), 2, 12, 5, 6)
    net.output(merged)
    legal, report = checked(net.model(), "onnx", output_layouts={merged: f"NCHWc[tile:{tile}]"})
    assert report.after.transposes == 1
    (x,) = random_feeds(net.model()).values()
    blocks = np.maximum(x, 0).reshape(2, 12 // tile, tile, 5, 6).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(run(legal, {"x": x})[0], blocks)


class Either(Backend):
    """A convolution takes its channels in blocks of four, filled up with zeros, or as they are, which costs a lot."""

    name = "either"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Conv" or node.domain:
            return super().implementations(node)
        kernel = [Layout.parse("OIHW"), Layout.any(1)][: len(node.inputs) - 1]
        tiles, plain = Layout.from_tvm("NCHW4c"), Layout.parse("NCHW")
        return [
            Implementation((tiles, *kernel), (tiles,), pads=True),
            Implementation((plain, *kernel), (plain,), cost=10**6),
        ]


def test_an_optional_tiling_reads_channels_shuffled_by_a_number_that_it_does_not_divide() -> None:
    """Of two groups of five, four neighbours are two of each group: the group would have to be filled up, not the
    channels. As a tensor of its own, the shuffled picture is one axis; who reads it otherwise still reads a view."""
    net = Net()
    picture = reshaped(net, net.node("Relu", net.input("x", (2, 10, 6, 5))), 2, 2, 5, 6, 5)
    shuffled = reshaped(net, net.transpose(picture, 0, 2, 1, 3, 4), 2, 10, 6, 5)
    net.output(net.conv(shuffled, 10, 8))
    net.output(net.node("Exp", shuffled))
    legal, report = checked(model := net.model(), Either)
    assert_same_numbers(model, legal)
    assert report.cost < 10**6
    again, second = relayout.legalize(legal, Either)
    assert (second.after, list(again.graph.node)) == (report.after, list(legal.graph.node))


def test_operands_whose_factors_do_not_nest_propagate_no_common_order() -> None:
    net = Net()
    net.output(net.node("MatMul", net.input("x", (6, 6)), net.input("y", (6, 6))))
    model = read_model(net.model())
    tensors = collect_tensors(model.graph, model.opset_imports)
    (node,) = model.graph
    rule = tensors.rules[node]
    assert isinstance(rule, Free)
    operands = [
        (tensors.operands[value], axes)
        for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=True)
        if value is not None and axes is not None
    ]
    geometry = indexing_maps(rule, tuple(operands))  # type: ignore[arg-type]

    def cut(axis: int, *tiles: int) -> MemoryFormat:
        return tuple(Atom(axis, low, high) for low, high in zip((1, *tiles), (*tiles, 0), strict=True))

    # One row of the first is a column of the second: halves of it beside thirds.
    rows, thirds = (Atom(0), *cut(1, 2)), (*cut(0, 3), *cut(1, 3))
    halves = (*cut(0, 2), *cut(1, 3))
    assert (
        geometry.common_order(0, rows, 1) == geometry.common_order(1, halves, 0) != geometry.common_order(1, thirds, 0)
    )
    assert geometry.merged_order(0, rows, 1, halves) is not None
