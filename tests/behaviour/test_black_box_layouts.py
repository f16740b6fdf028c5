"""Black boxes, which only the backend interprets, come from a node, from the caller or from a conversion."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators
from random_graphs import Rejected
from random_patterns import draw_graph

from relayout import Backend, Implementation, InfeasibleError, RelayoutError, legalize
from relayout.backend import Reordering, TensorType, rank_of
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, order_of
from relayout.model.io import read_model
from relayout.verification.verifier import verify

BOXED = "NC[acme:x]HW"
SWIZZLED = {"inputs": [BOXED, "OIHW", "*"], "results": [BOXED]}


def table(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"name": "acme", "rule": list(rules)}


def chain(*, turned: bool = False) -> onnx.ModelProto:
    """Conv, Relu and MaxPool; the Relu reads what it reads turned there and back."""
    net = Net()
    value = net.conv(net.input("x", (1, 8, 6, 5)), 8, 8)
    if turned:
        value = net.transpose(net.transpose(value, 0, 2, 3, 1), 0, 3, 1, 2)
    net.output(net.node("MaxPool", net.node("Relu", value), kernel_shape=[2, 2]))
    return net.model()


GIVES = {"op": "Conv", "inputs": ["NCHW", "OIHW", "*"], "results": [BOXED]}
TAKES = {"op": "Relu", "inputs": [BOXED], "results": ["NCHW"]}
ALL = ({"op": "Conv", **SWIZZLED}, {"op": "Relu", "inputs": [BOXED], "results": [BOXED]},
       {"op": "MaxPool", "inputs": [BOXED], "results": [BOXED]})  # fmt: skip


def test_an_order_with_black_boxes_differs_from_the_plain_order() -> None:
    plain = order_of((0, 1, 2))
    boxed = BlackBoxFormat(plain, [(1, 1, "acme", "x")])
    assert plain != boxed
    assert boxed != plain
    assert boxed == BlackBoxFormat(plain, [(1, 1, "acme", "x")])
    assert boxed != BlackBoxFormat(plain, [(1, 1, "acme", "y")])
    assert len({plain, boxed, BlackBoxFormat(plain, [(1, 1, "acme", "x")])}) == 2
    assert [*boxed] == [*plain]


@pytest.mark.parametrize("turned", [False, True])
def test_a_black_box_that_one_node_produces_another_consumes(turned: bool) -> None:
    model, backend = chain(turned=turned), table(GIVES, TAKES)
    legal, report = checked(model, backend)
    assert operators(legal) == ["Conv", "Relu", "MaxPool"]
    assert report.cost == 0
    notes = {v.name: {p.key: p.value for p in v.metadata_props} for v in legal.graph.value_info}
    assert notes["conv_0"] == {"relayout.layout": BOXED}
    assert_same_numbers(model, legal)
    again, _ = checked(legal, backend)
    assert again == legal


def test_a_black_box_on_a_transposed_tensor_is_on_the_axis_at_that_dimension() -> None:
    model = chain()
    rules = (
        {"op": "Conv", "inputs": ["NHWC", "OIHW", "*"], "results": ["NH[acme:x]WC"]},
        {"op": "Relu", "inputs": ["NH[acme:x]WC"], "results": ["NHWC"]},
    )
    legal, report = checked(model, table(*rules))
    assert report.after.transposes == 2
    assert_same_numbers(model, legal)


def test_a_black_box_on_an_unnamed_dimension_may_be_on_any_axis() -> None:
    net = Net()
    value = net.node("Tanh", net.transpose(net.input("x", (2, 3, 4)), 2, 0, 1))
    net.output(net.node("Neg", net.node("Sin", value)))
    boxed = {"inputs": ["***"], "results": ["**[acme:x]*"]}
    plain = {"inputs": ["***"], "results": ["***"], "cost": 1}
    takes = {"op": "Sin", "inputs": ["**[acme:x]*"], "results": ["***"]}
    legal, report = checked(net.model(), table({"op": "Tanh", "implementation": [boxed, plain]}, takes))
    assert report.after.transposes == 1
    assert report.cost == report.after.bytes
    assert_same_numbers(net.model(), legal)


def test_a_black_box_without_a_producer_is_an_error_that_names_the_node() -> None:
    with pytest.raises(InfeasibleError) as caught:
        legalize(chain(), table(TAKES))
    assert caught.value.conflict == (f"Relu 'n1' input 0 requires {BOXED}",)
    assert caught.value.relaxation == ("Relu 'n1' took input 0 in NCHW",)


@pytest.mark.parametrize("shape", [[1, 8, 30], [8, 6, 5], [1, 8, 1, 6, 5]])
def test_a_reshape_produces_no_black_box(shape: list[int]) -> None:
    """Also where the axis that has the box stays whole: nobody knows what a Reshape of what is in it gives."""
    net = Net()
    value = net.conv(net.input("x", (1, 8, 6, 5)), 8, 8)
    net.output(net.node("Relu", net.node("Reshape", value, net.constant(shape))))
    channels = shape.index(8)
    asked = "".join("*[acme:x]" if axis == channels else "*" for axis in range(len(shape)))
    with pytest.raises(InfeasibleError) as caught:
        legalize(net.model(), table(GIVES, {**TAKES, "inputs": [asked], "results": ["*" * len(shape)]}))
    assert caught.value.conflict == (f"Relu 'n2' input 0 requires {asked}",)


def test_black_boxes_with_other_data_do_not_match() -> None:
    with pytest.raises(InfeasibleError) as caught:
        legalize(chain(), table(GIVES, {**TAKES, "inputs": ["NC[acme:y]HW"]}))
    assert caught.value.conflict == ("Relu 'n1' input 0 requires NC[acme:y]HW",)


def test_a_producer_and_a_consumer_with_different_black_boxes_conflict() -> None:
    with pytest.raises(InfeasibleError) as caught:
        legalize(chain(), table(GIVES))
    assert caught.value.conflict == (
        f"Conv 'n0' result 0 requires {BOXED}",
        "Relu 'n1' input 0 requires NCHW",
    )


@pytest.mark.parametrize(("cost", "is_boxed"), [(100, True), (0, False)])
def test_an_implementation_with_black_boxes_competes_by_cost(cost: int, is_boxed: bool) -> None:
    plain = {"inputs": ["NCHW"], "results": ["NCHW"]}
    ways = [{**plain, "cost": cost}, {**plain, "results": [BOXED], "cost": 50}]
    reader = [plain, {**plain, "inputs": [BOXED]}]
    backend = table({"op": "Conv", "implementation": ways}, {"op": "Relu", "implementation": reader})
    legal, report = checked(chain(), backend)
    assert report.cost == min(cost, 50)
    notes = {v.name: {p.key: p.value for p in v.metadata_props} for v in legal.graph.value_info}
    assert notes["conv_0"] == ({"relayout.layout": BOXED} if is_boxed else {})


def test_the_verifier_finds_a_missing_black_box_annotation() -> None:
    ways = [{"inputs": ["NCHW"], "results": ["NCHW"], "cost": 100}, {"inputs": ["NCHW"], "results": [BOXED]}]
    rules = {"op": "Conv", "implementation": ways}, TAKES
    legal, _ = checked(chain(), table(*rules))
    spoilt = read_model(legal)
    for node in spoilt.graph:
        node.outputs[0].metadata_props.pop("relayout.layout", None)
    findings = verify(spoilt, table(*rules)).findings
    assert [(f.node, f.expected) for f in findings] == [("n1", BOXED)]


# The caller's own boxes


def test_inputs_and_outputs_may_have_black_boxes() -> None:
    model = chain()
    backend = table(*ALL)
    out = model.graph.output[0].name
    ends = {"input_layouts": {"x": BOXED}, "output_layouts": {out: BOXED}}
    legal, report = checked(model, backend, **ends)
    assert [value.layout for value in report.boundary] == [BOXED, BOXED]
    assert operators(legal) == ["Conv", "Relu", "MaxPool"]
    again, _ = checked(legal, backend)
    assert again == legal


def test_an_output_without_a_declared_black_box_has_none() -> None:
    model = chain()
    backend = table(*ALL)
    out = model.graph.output[0].name
    with pytest.raises(InfeasibleError) as caught:
        legalize(model, backend, input_layouts={"x": BOXED})
    assert caught.value.relaxation == (f"output {out} were {BOXED}",)
    legal, _ = legalize(model, backend, input_layouts={"x": BOXED}, output_layouts={out: BOXED})
    del legal.graph.output[0].metadata_props[:]
    assert [finding.node for finding in verify(legal, backend).findings] == [out]


# Conversions


class Swizzling(Backend):
    """Has an operator that brings channels into the box, and none that takes them out."""

    name = "swizzling"
    writes = True

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return BOXED if node.op_type == "Relu" else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type == "Relu":
            return "NCHW"
        return BOXED if node.op_type == "Identity" else super().nth_result_layout_requirements(node, n)

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        if str(target) != BOXED or str(source) != "NCHW":
            return None
        return Reordering(7, self._write if self.writes else None)

    def _write(self, writing: Any) -> None:
        writing.set_result(0, writing.emit("Identity", [writing.read(0)], shape=writing.shape_of(0, is_result=True)))


def test_the_backends_own_conversion_produces_a_black_box() -> None:
    legal, report = checked(chain(), Swizzling())
    assert operators(legal) == ["Conv", "Identity", "Relu", "MaxPool"]
    (conversion,) = report.conversions
    assert (conversion.from_, conversion.to, report.cost) == ("NCHW", BOXED, 7)
    assert_same_numbers(chain(), legal)


def test_a_conversion_with_a_price_but_no_rewrite_produces_no_black_box() -> None:
    class Priced(Swizzling):
        writes = False

    with pytest.raises(InfeasibleError) as caught:
        legalize(chain(), Priced())
    assert caught.value.conflict == (f"Relu 'n1' input 0 requires {BOXED}",)


def test_a_constant_is_in_no_black_box() -> None:
    class Kernels(Backend):
        name = "kernels"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
            is_kernel = node.op_type == "Conv" and n == 1
            return "OIHW[acme:x]" if is_kernel else super().nth_input_layout_requirements(node, n)

        def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
            raise AssertionError("a constant is relaid, and not converted")

    with pytest.raises(InfeasibleError) as caught:
        legalize(chain(), Kernels())
    assert "is a constant, which is in no black box; a `rewrite` can write its data" in caught.value.hint


# Random graphs


class Drawn(Backend):
    """Some operators, drawn by name, also run on tensors with a box on the last dimension, or give such, or take them
    out of it, at costs of their own."""

    name = "drawn"

    def __init__(self, seed: int = 0, *, boxes: bool = True) -> None:
        super().__init__()
        self.seed, self.boxes = seed, boxes

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        plain = super().implementations(node)
        draw = random.Random(crc32(f"{self.seed} {node.op_type}".encode()))
        has_body = any(attribute.type.name.startswith("GRAPH") for attribute in node.attributes.values())
        if node.domain or has_body or draw.random() < 0.3:
            return plain
        ways = [replace(way, cost=way.cost + draw.choice([0, 500])) for way in plain]
        for takes, gives in ((True, True), (False, True), (True, False)):
            inputs = tuple(_last(value, takes and value is not None and not _stored(value)) for value in node.inputs)
            results = tuple(_last(value, gives) for value in node.outputs)
            cost = draw.choice([0, 10])
            ways += [Implementation(inputs, results, cost=cost)] if self.boxes and draw.random() < 0.7 else []
        return ways


def _last(value: ir.Value | None, in_box: bool) -> Layout:
    rank = rank_of(value)
    return Layout.parse("*" * rank + "[acme:x]") if in_box and rank > 1 else Layout.any(rank)


def _stored(value: ir.Value) -> bool:
    maker = value.producer()
    return value.is_initializer() or (maker is not None and not maker.inputs)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_implementations_with_black_boxes_never_raise_the_cost(first: int) -> None:
    """Random graphs: what the solver makes of them is sound, says what it costs, and costs no more than without."""
    saved = 0
    for seed in range(first, first + 10):
        try:
            model = draw_graph(seed).model
            without = legalize(model, Drawn(seed, boxes=False))[1].cost
        except (Rejected, RelayoutError):
            continue
        legal, report = legalize(model, Drawn(seed))
        assert report.status == "optimal"
        assert report.cost <= without
        rules = {finding.rule for finding in verify(legal, Drawn(seed)).findings}
        assert rules.isdisjoint({"layout-requirement", "layout-annotation"}), seed
        saved += report.cost < without
    assert saved > 0
