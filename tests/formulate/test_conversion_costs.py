"""A conversion costs the bytes read and written, padding included, unless the backend states a cost."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers

from relayout.backend import Backend, Reordering, TensorType
from relayout.backend.interface import rank_of
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom
from relayout.legalization import legalize
from relayout.model.tensor_sizes import padded_elements


def image() -> onnx.ModelProto:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 6, 8, 8)), kernel_shape=(1, 1)))
    return net.model()


class ChannelsLast(Backend):
    """MaxPool runs on NHWC data."""

    name = "channels-last"

    def nth_input_layout_requirements(self, node: object, n: int) -> str:
        return "NHWC"

    nth_result_layout_requirements = nth_input_layout_requirements


class WithAnOperator(ChannelsLast):
    """Has an operator that turns data to channels last for little."""

    name = "with-an-operator"

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[TensorType, str, str]] = set()

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        self.asked.add((tensor, str(source), str(target)))
        return Reordering(cost=100) if str(target) == "NHWC" else None


class WithAPrice(ChannelsLast):
    """Turning data costs a little less there."""

    name = "with-a-price"

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        return 1000 if str(source) == "NCHW" else 2000


class CountsTransposes(Backend):
    """Prices Transposes by their perms."""

    name = "counts-transposes"

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[tuple[int | str | None, ...], str, str]] = set()

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
        return "NHWC" if node.op_type == "MaxPool" else "*" * rank_of(node.inputs[n])

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        self.asked.add((tensor.shape, source.names, target.names))
        return 77 if source.is_numbered else None


def test_a_transpose_between_formats_without_names_is_asked_for_by_its_perm() -> None:
    net = Net()
    x = net.node("Relu", net.input("x", (1, 6, 8, 8)))
    pieces = net.node("Reshape", x, net.constant([1, 2, 3, 8, 8]))
    shuffled = net.node("Reshape", net.transpose(pieces, 0, 2, 1, 3, 4), net.constant([1, 6, 8, 8]))
    net.output(net.node("MaxPool", shuffled, kernel_shape=[2, 2]))
    backend = CountsTransposes()
    legalize(net.model(), backend)
    assert ((2, 3, 64), "012", "210") in backend.asked


def test_a_transpose_is_asked_for_by_its_perm_where_its_format_has_too_many_dimensions_for_a_layout() -> None:
    net = Net()
    x = net.node("Relu", net.input("x", (4, 2, 2, 2, 2, 2, 2, 2)))
    net.output(net.transpose(net.node("Reshape", x, net.constant([2, 2, 128])), 1, 0, 2))
    backend = CountsTransposes()
    legal, report = legalize(net.model(), backend)
    assert ((2, 2, 128), "012", "102") in backend.asked
    assert report.cost == 77
    assert legalize(legal, backend)[1].cost == 77


def test_a_conversion_costs_the_same_once_its_axes_have_lost_their_names() -> None:
    """The Transpose of the legal model works on tiles without names: it costs as much as a conversion between names."""
    net = Net(opset=11)
    joined = net.node("Relu", net.input("x", (6, 12, 1, 6)))
    deep = net.node("DepthToSpace", joined, blocksize=2)
    net.output(net.node("ReduceMax", deep, axes=[1], keepdims=0))
    model = net.model()
    legal, first = legalize(model, "x86-nchwc", output_layouts={model.graph.output[0].name: "WHN"})
    again, second = legalize(legal, "x86-nchwc")
    assert first.cost == second.cost > 0
    assert len(again.graph.node) == len(legal.graph.node)


def test_a_backend_prices_the_sizes_that_are_assumed_for_open_extents() -> None:
    class Prices(CountsTransposes):
        def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
            self.asked.add((tensor.shape, source.names, target.names))
            return None

    net = Net()
    net.output(net.node("MaxPool", net.input("x", ("batch", 3, "rows", "columns")), kernel_shape=[2, 2]))
    backend = Prices()
    _, report = legalize(net.model(), backend, dims={"rows": 7})
    assert ((1, 3, 7, 64), "NCHW", "NHWC") in backend.asked
    assert ((1, 3, 7, 64), "0123", "0231") in backend.asked
    assert report.cost == report.after.bytes


def test_a_conversion_reads_and_writes_the_tensor() -> None:
    _, report = legalize(image(), ChannelsLast)
    assert (report.cost, report.bound) == (2 * 3072, 2 * 3072)


def test_a_conversion_by_the_backends_own_operator_has_its_stated_cost() -> None:
    backend = WithAnOperator()
    _, report = legalize(image(), backend)
    assert (report.cost, report.bound) == (100 + 3072, 100 + 3072)
    lies = TensorType(4, (1, 6, 8, 8))
    assert (lies, "NCHW", "NHWC") in backend.asked


def test_a_conversion_priced_by_the_backend_has_that_price() -> None:
    _, report = legalize(image(), WithAPrice)
    assert (report.cost, report.bound) == (3000, 3000)


@pytest.mark.parametrize(
    ("format_", "elements"),
    [
        ((Atom(0), Atom(1)), 48),
        ((Atom(1), Atom(0)), 48),
        ((Atom(0), Atom(1, 1, 32)), 64),
        ((Atom(0), Atom(1, 16, 32), Atom(1, 1, 16)), 64),
        ((Atom(0, 1, 3), Atom(1, 1, 32)), 96),
    ],
)
def test_the_padding_of_a_format_is_priced(format_: tuple[Atom, ...], elements: int) -> None:
    assert padded_elements(2 * 24, format_, (2, 24)) == elements
    assert padded_elements(0, format_, (0, 24)) == 0


def test_no_tiles_are_proposed_for_an_axis_whose_extent_only_a_view_knows() -> None:
    net = Net()
    image = net.node("Reshape", net.node("Softplus", net.input("x", ("rows", 3, 3))), net.constant([1, 5, 3, 3]))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    net.output(net.node("Resize", image, "", scales, mode="nearest"))
    model = net.model()
    legal, report = legalize(model, "x86-nchwc", output_layouts={model.graph.output[0].name: "any"})
    assert report.cost == 0
    assert_same_numbers(model, legal, {"x": np.random.default_rng(0).standard_normal((5, 3, 3), np.float32)})
