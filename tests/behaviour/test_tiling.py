"""Concat, Slice, Pad and Split work on tiled axes, wherever the outer factor is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators
from onnx import TensorProto

from relayout import legalize

# The pieces of C, outermost first, and W.
PIECES = "abcW"
INNER = {"b": 2, "c": 2, "W": 5}
WAYS = ["".join(way) for way in permutations(PIECES)]


def together(net: Net, value: str, lies: str, outer: int) -> str:
    """Pieces that lie so as [C, W]."""
    whole = net.transpose(value, *(lies.index(piece) for piece in PIECES))
    return str(net.node("Reshape", whole, net.constant(np.array([4 * outer, 5]))))


def apart(net: Net, value: str, lies: str, outer: int) -> str:
    pieces = net.node("Reshape", value, net.constant(np.array([outer, 2, 2, 5])))
    return net.transpose(pieces, *(PIECES.index(piece) for piece in lies))


def given(net: Net, name: str, lies: str, outer: int) -> str:
    shape = [{**INNER, "a": outer}[piece] for piece in lies]
    return together(net, net.input(name, shape), lies, outer)


def concat(net: Net, lies: str) -> Iterator[tuple[str, int]]:
    yield net.node("Concat", given(net, "x", lies, 3), given(net, "y", lies, 2), axis=0), 5


def cut_out(net: Net, lies: str) -> Iterator[tuple[str, int]]:
    numbers = [net.constant(np.array([n])) for n in (4, 12, 0)]
    yield net.node("Slice", given(net, "x", lies, 5), *numbers), 2


def cut_out_by_int32(net: Net, lies: str) -> Iterator[tuple[str, int]]:
    numbers = [net.constant(np.array([n], np.int32)) for n in (4, 12, 0, 1)]
    yield net.node("Slice", given(net, "x", lies, 5), *numbers), 2


def pad(net: Net, lies: str) -> Iterator[tuple[str, int]]:
    pads = net.constant(np.array([4, 1, 8, 0]))
    padded = net.node("Pad", given(net, "x", lies, 3), pads)
    # The zero before each row is taken off again: then the pieces of W, of which there is one, are as they were.
    yield net.node("Slice", padded, *(net.constant(np.array([n])) for n in (1, 6, 1))), 6


def split(net: Net, lies: str) -> Iterator[tuple[str, int]]:
    parts = net.node("Split", given(net, "x", lies, 3), net.constant(np.array([4, 8])), axis=0, results=2)
    yield from zip(parts, (1, 2), strict=True)


OPERATORS = [concat, cut_out, cut_out_by_int32, pad, split]


@pytest.mark.parametrize("lies", WAYS)
@pytest.mark.parametrize("made", OPERATORS)
def test_factors_in_any_order_are_unchanged(made: Callable[[Net, str], Iterator[tuple[str, int]]], lies: str) -> None:
    net = Net()
    for value, outer in made(net, lies):
        net.output(apart(net, net.node("Tanh", value), lies, outer))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert (report.after.transposes, report.cost) == (0, 0)
    assert_same_numbers(model, legal)
    again, second = legalize(legal, "onnx")
    assert second.cost == 0
    assert operators(again) == operators(legal)


def test_shuffled_tensors_are_concatenated_along_their_groups() -> None:
    net = Net()
    x, y = (net.input(name, (1, 12, 4, 4)) for name in "xy")
    halves = [shuffled(net, value, 3, 4) for value in (x, y)]
    net.output(shuffled(net, net.node("Concat", *halves, axis=1), 8, 3))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert report.after.transposes == 0
    assert_same_numbers(model, legal)


def test_channels_of_groups_are_normalized_as_a_convolution_makes_them() -> None:
    """PyTorch writes a GroupNorm as an InstanceNormalization of groups, whose pixels and channels are one axis.
    Channels last, convolutions make and take the channels with the groups innermost, and the pixels come first."""
    net = Net()
    scaled = net.node("Mul", group_norm(net), net.weight(12, 1, 1))
    net.output(net.conv(net.node("Sigmoid", scaled), 12, 12))
    model = net.model()
    legal, report = checked(model, "nhwc")
    assert report.after.transposes == 2  # of the input and of the output
    assert_same_numbers(model, legal)


def group_norm(net: Net) -> str:
    made = net.conv(net.input("x", (1, 12, 6, 6)), 12, 12)
    groups = net.node("Reshape", made, net.constant(np.array([0, 4, -1])))
    ones, zeros = net.constant(np.ones(4, np.float32)), net.constant(np.zeros(4, np.float32))
    normal = net.node("InstanceNormalization", groups, ones, zeros)
    return str(net.node("Reshape", normal, net.constant(np.array([1, 12, 6, 6]))))


def pool(operator: str) -> Callable[[Net, str], str]:
    return lambda net, value: str(net.node(operator, value, kernel_shape=[2, 2], strides=[2, 2]))


def upsampled(mode: str) -> Callable[[Net, str], str]:
    scales = np.array([1, 1, 2, 2], np.float32)
    return lambda net, value: str(net.node("Resize", value, "", net.constant(scales), mode=mode))


def globally_pooled(net: Net, value: str) -> str:
    return str(net.node("Add", net.node("GlobalAveragePool", value), value))


@pytest.mark.parametrize(
    "between",
    [
        *[pool(each) for each in ("MaxPool", "AveragePool", "LpPool")],
        *[upsampled(each) for each in ("nearest", "linear")],
        globally_pooled,
    ],
)
def test_pools_and_resizes_take_the_channels_of_groups_as_they_lie(between: Callable[[Net, str], str]) -> None:
    net = Net()
    net.output(net.conv(between(net, group_norm(net)), 12, 12))
    model = net.model()
    legal, report = checked(model, "nhwc")
    assert report.after.transposes == 2  # of the input and of the output
    assert_same_numbers(model, legal)


def test_a_pool_that_gives_indices_takes_the_channels_in_order() -> None:
    """An index counts the elements of all channels before its own."""
    net = Net()
    pooled, indices = net.node("MaxPool", group_norm(net), kernel_shape=[2, 2], strides=[2, 2], results=2)
    net.output(net.conv(pooled, 12, 12))
    net.output(indices, TensorProto.INT64)
    model = net.model()
    legal, report = checked(model, "nhwc")
    assert report.after.transposes == 4
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("sizes", [(6, 6), (4, 8), (5, 7)])
def test_the_parts_of_a_shuffle_are_gathered_whole(sizes: tuple[int, int]) -> None:
    net = Net()
    parts = net.constant(np.array(sizes))
    for part in net.node("Split", shuffled(net, net.input("x", (1, 12, 4, 4)), 3, 4), parts, axis=1, results=2):
        net.output(part)
    model = net.model()
    legal, report = checked(model, "onnx")
    assert (report.after.transposes, operators(legal)) == (0, ["Gather", "Gather"])
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("lies", ["bacW", "aWbc", "Wabc", "acbW"])
def test_factors_required_of_the_results_are_made_before_the_split(lies: str) -> None:
    net = Net()
    whole = net.node("Softmax", net.input("x", (20, 5)), axis=1)
    parts = net.node("Split", whole, net.constant(np.array([8, 12])), axis=0, results=2)
    for part, outer in zip(parts, (2, 3), strict=True):
        net.output(apart(net, part, lies, outer))
    model = net.model()
    legal, report = checked(model, "onnx", objective="transposes")
    assert (report.before.transposes, report.after.transposes) == (2, 1)
    assert_same_numbers(model, legal)


def shuffled(net: Net, value: str, groups: int, each: int) -> str:
    pieces = net.node("Reshape", value, net.constant(np.array([1, groups, each, 4, 4])))
    turned = net.transpose(pieces, 0, 2, 1, 3, 4)
    return str(net.node("Reshape", turned, net.constant(np.array([1, groups * each, 4, 4]))))


# By brute force: whether on some dimension of the pieces the operator does what it is to do to the axis.


@dataclass(frozen=True)
class Case:
    """An operator on the first of two axes: its extents in the inputs, the operator's numbers, and its extents in the
    results."""

    operator: str
    given: tuple[int, ...]
    numbers: tuple[int, int] | tuple[()]
    gives: tuple[int, ...]

    def node(self, net: Net, values: Sequence[str]) -> Sequence[str]:
        if self.operator == "Concat":
            return [net.node("Concat", *values, axis=0)]
        if self.operator == "Split":
            sizes = net.constant(np.array(self.gives))
            return list(net.node("Split", *values, sizes, axis=0, results=len(self.gives)))
        if self.operator == "Slice":
            return [net.node("Slice", *values, *(net.constant(np.array([n])) for n in (*self.numbers, 0)))]
        begin, end = self.numbers
        return [net.node("Pad", *values, net.constant(np.array([begin, 0, end, 0])))]

    def of(self, arrays: Sequence[np.ndarray], axis: int, begin: int, end: int) -> list[np.ndarray]:
        """Its result for `arrays`, along this axis, with these numbers."""
        if self.operator == "Concat":
            return [np.concatenate(arrays, axis)]
        (data,) = arrays
        if self.operator == "Split":
            return np.split(data, [begin], axis)
        if self.operator == "Slice":
            return [data.take(range(begin, min(end, data.shape[axis])), axis)]
        return [np.pad(data, [(begin, end) if a == axis else (0, 0) for a in range(data.ndim)])]

    def fits(self, given: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
        """Whether it gives this of that along some axis, with some numbers."""
        for axis, begin, end in product(range(given[0].ndim), range(13), range(13)):
            beside = {array.shape[:axis] + array.shape[axis + 1 :] for array in (*given, *wanted)}
            if len(beside) == 1 and all(map(np.array_equal, self.of(given, axis, begin, end), wanted)):
                return True
        return False


CASES = [
    Case("Concat", (8, 12), (), (20,)),
    Case("Concat", (6, 4), (), (10,)),
    Case("Slice", (12,), (4, 8), (4,)),
    Case("Slice", (12,), (2, 8), (6,)),
    Case("Slice", (12,), (3, 9), (6,)),
    Case("Pad", (8,), (4, 0), (12,)),
    Case("Pad", (12,), (2, 4), (18,)),
    Case("Pad", (6,), (3, 3), (12,)),
    Case("Split", (12,), (), (4, 8)),
    Case("Split", (12,), (), (9, 3)),
]
CUTS = [(c, inner) for c in CASES for inner in (2, 3, 4) if not any(n % inner for n in (*c.given, *c.gives))]


@pytest.mark.parametrize("way", list(permutations(range(3))))
@pytest.mark.parametrize(("case", "inner"), CUTS)
def test_an_order_of_factors_that_the_operator_takes_costs_nothing(
    case: Case, inner: int, way: tuple[int, ...]
) -> None:
    def lying(array: np.ndarray) -> np.ndarray:
        # Pieces that lie together as they do in the axis are the axis.
        if way.index(1) == way.index(0) + 1:
            return array if way[0] == 0 else array.T
        return array.reshape(-1, inner, 5).transpose(way)

    drawn = [np.random.default_rng(n).standard_normal((extent, 5)) for n, extent in enumerate(case.given)]
    results = case.of(drawn, 0, *(case.numbers or (case.gives[0], 0)))
    takes = case.fits([lying(x) for x in drawn], [lying(y) for y in results])
    net, back = Net(), np.argsort(way)
    values = []
    for n, extent in enumerate(case.given):
        x = net.input(f"x{n}", np.array([extent // inner, inner, 5])[list(way)].tolist())
        values.append(net.node("Reshape", net.transpose(x, *back), net.constant(np.array([extent, 5]))))
    for value, extent in zip(case.node(net, values), case.gives, strict=True):
        pieces = net.node("Reshape", value, net.constant(np.array([extent // inner, inner, 5])))
        net.output(net.transpose(pieces, *way))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert (report.cost == 0) == takes
    assert_same_numbers(model, legal)


PACKED = {
    "name": "packed",
    "rule": [{"op": "Conv", "data": "NCHW16c", "kernel": "OIHW16i16o", "pads": True}],
}


@pytest.mark.parametrize("channels", [32, 20])
def test_a_normalization_between_packed_convolutions_is_a_product_and_a_sum_in_their_blocks(channels: int) -> None:
    """Of 20 channels the last block is filled up with zeros, and stays so."""
    net = Net()
    first = net.node("Conv", net.input("x", (1, 16, 9, 9)), net.weight(channels, 16, 1, 1))
    vectors = [net.constant(np.linspace(low, 2, channels, dtype=np.float32)) for low in (-1, -2, -3, 1)]
    shifted = net.node("BatchNormalization", first, *vectors)
    net.output(net.node("Conv", shifted, net.weight(16, channels, 1, 1)))
    model = net.model()
    legal, report = checked(model, PACKED)
    assert_same_numbers(model, legal)
    assert report.after.transposes == 2
    assert [(each.layout, each.kind) for each in report.charges] == [("NCHWc[tile:16]", "decomposition")]


def test_a_global_pool_of_packed_data_is_a_reduction_of_its_blocks() -> None:
    net = Net()
    data = net.node("Conv", net.input("x", (1, 16, 9, 9)), net.weight(32, 16, 1, 1))
    net.output(net.node("Conv", net.node("GlobalAveragePool", data), net.weight(32, 32, 1, 1)))
    model = net.model()
    legal, report = checked(model, PACKED)
    assert_same_numbers(model, legal)
    assert (report.after.transposes, report.account.operators.cost) == (1, 0)
    assert "GlobalAveragePool" not in operators(legal)


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_global_pool_takes_the_positions_of_an_image_as_its_windows_lie(operator: str) -> None:
    """A second run finds no transpose to remove that the first one left."""
    net = Net(18)
    windows = net.node("Softmax", net.input("x", (4, 16, 24)), axis=-1)
    split = net.transpose(net.node("Reshape", windows, net.constant([2, 2, 4, 4, 24])), 4, 0, 2, 1, 3)
    net.output(net.node(operator, net.node("Reshape", split, net.constant([1, 24, 8, 8]))))
    legal, report = checked(net.model(), "onnx")
    assert report.after.transposes == 0
    again, second = legalize(legal, "onnx")
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


BLOCKED = ["NHWC16c", "HWNC16c", "NHWC8c", "NHCW16c", "NCHW16c", "NCHW16c4h", "NH4hWC", "NCHW8c5h7w"]


@pytest.mark.parametrize("data", BLOCKED)
def test_every_blocked_layout_that_is_padded_is_written_at_its_price(data: str) -> None:
    """Zeros are added where the fewest bytes are moved, so that a second run finds no cheaper place."""
    net = Net()
    net.output(net.node("Conv", net.input("x", (1, 20, 9, 9)), net.weight(12, 20, 1, 1)))
    rule = {"op": "Conv", "data": data, "kernel": "OHWI16i" if "c" in data else "OHWI", "pads": True}
    model, table = net.model(), {"name": "blocked", "rule": [rule]}
    legal, report = checked(model, table)
    assert_same_numbers(model, legal)
    again, second = checked(legal, table)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


@pytest.mark.parametrize("window", [{}, {"start": 1}, {"start": 1, "end": 3}])
def test_the_shape_of_a_padded_tensor_is_that_without_its_padding(window: dict[str, int]) -> None:
    """Of the two extents that are filled up, one is in the source's place."""
    net = Net(19)
    data = net.node("Relu", net.node("Conv", net.input("x", ("N", 3, 9, 9)), net.weight(3, 3, 1, 1)))
    net.output(net.node("Shape", data, **window), TensorProto.INT64)
    net.output(net.node("Conv", data, net.weight(3, 3, 1, 1)))
    model = net.model()
    table = {"name": "aligned", "rule": [{"op": "Conv", "data": "N[a=32]HWC", "kernel": "OIHW"}]}
    for rules in (table, {**table, "rule": [{"op": "Conv", "data": "NHW[a=64]C", "kernel": "OIHW"}]}):
        legal, _ = checked(model, rules)
        assert_same_numbers(model, legal)
