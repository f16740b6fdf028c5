"""Decompositions that cost more than conversions around the node are left out, and the optimum stays the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout import Backend, Implementation, Layout
from relayout.backend import TensorType
from relayout.backend.members import prices_by_traffic
from relayout.candidates import propagation, requirements
from relayout.candidates.free_node import FreeNode

TABLE = {"name": "table", "extends": "nhwc", "rule": [{"op": "Relu", "inputs": ["NWHC"], "results": ["NWHC"]}]}


class DearConversions(Backend):
    """Conversions cost ten times their traffic."""

    name = "dear"

    def __init__(self, context: Backend | None = None) -> None:
        super().__init__(context)
        self.extended = Backend()  # a name of its own, which says nothing of its prices

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        return 20 * (tensor.nbytes or 0)


def normalised(seed: int) -> onnx.ModelProto:
    """LayerNormalizations among Transposes, convolutions, products and sums."""
    rng, net = random.Random(seed), Net(18)
    shapes: dict[str, tuple[int, ...]] = {net.input("x", (2, 4, 6, 8)): (2, 4, 6, 8)}
    makers: dict[str, Callable[[str, tuple[int, ...]], str]] = {
        "norm": lambda value, shape: net.node("LayerNormalization", value, net.weight(shape[-1]), axis=-1),
        "biased": lambda value, shape: net.node("LayerNormalization", value, *[net.weight(shape[-1])] * 2, axis=-1),
        "sum": lambda value, shape: net.node("Add", value, rng.choice([v for v in shapes if shapes[v] == shape])),
        "conv": lambda value, shape: net.node("Conv", value, net.weight(shape[1], shape[1], 1, 1)),
        "product": lambda value, shape: net.node("MatMul", value, net.weight(shape[-1], shape[-1])),
    }
    for _ in range(rng.randint(4, 9)):
        value = rng.choice([*shapes])
        shape = shapes[value]
        order = rng.sample(range(4), 4)
        if rng.random() < 0.3:
            shapes[net.transpose(value, *order)] = tuple(shape[axis] for axis in order)
        else:
            shapes[makers[rng.choice([*makers])](value, shape)] = shape
    read = {name for node in net.nodes for name in node.input}
    for value in [*shapes][1:]:
        if value not in read:
            net.output(value)
    return net.model()


def kept_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeNode, "_is_dear", lambda *_: False)


@pytest.mark.parametrize("backend", ["nhwc", "auto-nhwc", TABLE], ids=str)
def test_the_optimum_is_that_of_all_decompositions(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    models = [normalised(seed) for seed in range(25)]
    found = [relayout.legalize(model, backend)[1].cost for model in models]
    kept_all(monkeypatch)
    assert found == [relayout.legalize(model, backend)[1].cost for model in models]
    assert any(found)


def between(order: tuple[int, ...]) -> onnx.ModelProto:
    """A LayerNormalization between two Transposes, which cancel where it is decomposed."""
    net = Net(18)
    value = net.transpose(net.node("Relu", net.input("x", (2, 8, 6, 4))), *order)
    value = net.node("LayerNormalization", value, net.weight(8), net.weight(8), axis=-1)
    net.output(net.node("Relu", net.transpose(value, *[order.index(axis) for axis in range(4)])))
    return net.model()


@pytest.mark.parametrize("options", [{}, {"objective": "transposes"}, {"max_conversions": 0}], ids=str)
def test_an_objective_or_a_limit_may_still_choose_a_decomposition(options: dict[str, Any]) -> None:
    _, report = relayout.legalize(between((0, 2, 3, 1)), "onnx", **options)
    assert (report.status, report.after.transposes) == ("optimal", 0 if options else 2)


def test_so_may_a_backend_with_dear_conversions() -> None:
    assert not prices_by_traffic(DearConversions())
    _, report = relayout.legalize(between((0, 2, 3, 1)), DearConversions)
    assert (report.status, report.after.transposes) == ("optimal", 0)


class OwnPrices(Backend):
    """Prices of its own, which are those of the traffic."""

    name = "own"

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        return 2 * (tensor.nbytes or 0)


class DearByName(Backend):
    """Conversions between layouts with names cost ten times their traffic."""

    name = "dear-by-name"

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        return None if source.is_numbered else 20 * (tensor.nbytes or 0)


def between_convolutions() -> onnx.ModelProto:
    net = Net(18)
    value = net.node("Conv", net.input("x", (2, 8, 6, 4)), net.weight(8, 8, 1, 1))
    value = net.node("LayerNormalization", net.transpose(value, 0, 2, 3, 1), net.weight(8), axis=-1)
    net.output(net.node("Conv", net.transpose(value, 0, 3, 1, 2), net.weight(8, 8, 1, 1)))
    return net.model()


def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of formats counts as many."""
    monkeypatch.setattr(propagation, "FEW_FORMATS", 0)
    monkeypatch.setattr(propagation, "FEW_PER_TENSOR", 0)


def decomposed(monkeypatch: pytest.MonkeyPatch, model: onnx.ModelProto, backend: Any) -> tuple[int, int | None]:
    """The number of orders in which a node is decomposed, and the cost of the legal model."""
    found: list[propagation.Candidates] = []
    plain = propagation.propagate

    def kept(*args: Any, **options: Any) -> propagation.Candidates:
        found.append(plain(*args, **options))
        return found[-1]

    monkeypatch.setattr(requirements, "propagate", kept)
    _, report = relayout.legalize(model, backend)
    answers = [answer for orders in found[-1].orders.values() for given, _ in orders.values() for answer in given]
    return sum(getattr(lowering, "rewritten", None) is not None for _, lowering, _ in answers), report.cost


def test_with_many_formats_dear_decompositions_are_left_out_by_a_backend_s_own_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = between((0, 2, 3, 1))
    few = decomposed(monkeypatch, model, OwnPrices)
    many(monkeypatch)
    assert few[0] > 0
    assert decomposed(monkeypatch, model, OwnPrices) == (0, few[1])


@pytest.mark.parametrize("backend", [DearConversions, DearByName])
def test_they_stay_where_the_conversions_cost_more(monkeypatch: pytest.MonkeyPatch, backend: type[Backend]) -> None:
    many(monkeypatch)
    _, report = relayout.legalize(between_convolutions(), backend)
    assert (report.status, report.after.transposes) == ("optimal", 0)


class Unreachable(OwnPrices):
    """A cheap LayerNormalization in a layout that ONNX's operator does not support, and a dear one in any."""

    name = "unreachable"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        (plain,) = super().implementations(node)
        if node.op_type != "LayerNormalization":
            return (plain,)
        reverse = Layout.parse("{0,1,2,3}")
        first = Implementation((reverse, *plain.inputs[1:]), (reverse, *plain.results[1:]))
        return first, Implementation(plain.inputs, plain.results, 100_000)


def test_a_decomposition_that_a_requirement_forces_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [normalised(seed) for seed in range(8)]
    few = [relayout.legalize(model, Unreachable)[1].cost for model in models]
    many(monkeypatch)
    assert [relayout.legalize(model, Unreachable)[1].cost for model in models] == few
