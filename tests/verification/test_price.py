"""The price of the answer, computed again from the legal model: what a wrong account leaves out is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout.backend import Backend, Implementation, Reordering, TensorType, load_backend
from relayout.formulate.objective import OBJECTIVES
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import COST_KEY, OBJECTIVE_KEY
from relayout.report.schema import Account, Entry, Finding, Price, Report

Case = tuple[onnx.ModelProto, Any, dict[str, Any]]


class Expensive(Backend):
    """Convolutions on NHWC data; a Transpose costs three times its bytes, and a Relu costs 5 bytes on NHWC data."""

    name = "expensive"
    answers_by_type = True

    def implementations(self, node: ir.Node) -> list[Implementation]:
        if node.op_type not in ("MaxPool", "Relu"):
            return [*super().implementations(node)]
        layout = Layout.parse("NHWC")
        return [Implementation((layout,), (layout,), cost=5 * (node.op_type == "Relu"))]

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int:
        size = tensor.element_size
        for extent in tensor.shape:
            size *= extent if isinstance(extent, int) else 1
        return 6 * size


class Packing(Expensive):
    """The same with an operator of its own that makes NHWC data for 100 bytes."""

    name = "packing"

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(100, pack) if str(target) == "NHWC" else None

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("com.acme", "Pack")})


def pack(writing: Any) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Pack", [writing.read(0)], shape=shape, domain="com.acme"))


def pooled() -> onnx.ModelProto:
    net = Net()
    net.output(net.node("Relu", net.node("MaxPool", net.input("x", (1, 4, 8, 8)), kernel_shape=[2, 2])))
    return net.model()


def filled_up() -> onnx.ModelProto:
    """Channels that are padded to blocks."""
    net = Net()
    net.output(net.node("Softmax", net.conv(net.input("x", (1, 6, 9, 9)), 6, 20), axis=1))
    return net.model()


BOARD = {
    "name": "board",
    "host": "cpu",
    "device": [{"name": "npu", "backend": "nhwc", "op": ["MaxPool"], "transfer": 2}, {"name": "cpu"}],
    "assign": [{"op": "MaxPool", "devices": {"npu": 7}}],
}
CASES: dict[str, Callable[[], Case]] = {
    "transposes": lambda: (pooled(), "nhwc", {"input_layouts": {"x": "NCHW"}, "output_layouts": {"relu_1": "NCHW"}}),
    "own prices": lambda: (pooled(), Expensive(), {}),
    "own operators": lambda: (pooled(), Packing(), {}),
    "devices": lambda: (pooled(), BOARD, {}),
    "blocks": lambda: (filled_up(), "x86-nchwc", {"backend_options": {"block": 16}}),
    "count": lambda: (pooled(), "nhwc", {"objective": "transposes"}),
}


def legal(name: str) -> tuple[onnx.ModelProto, Report, Any, dict[str, Any]]:
    model, backend, options = CASES[name]()
    made, report = relayout.legalize(model, backend, **options)
    assert report.verification is not None
    assert [each for each in report.verification.findings if each.severity == "error"] == []
    return made, report, backend, {"backend_options": options.get("backend_options")}


def errors(made: onnx.ModelProto, backend: Any, options: dict[str, Any], report: Report | None) -> list[Finding]:
    found = relayout.verify(made, backend, report=report, run=False, **options).findings
    return [each for each in found if each.rule == "price" and each.severity == "error"]


def charging(report: Report, account: Account, **fields: Any) -> Report:
    """The report with another account, which adds up."""
    return report.model_copy(update={"account": account, "cost": account.cost, "bound": account.cost, **fields})


@pytest.mark.parametrize("name", CASES)
def test_each_part_of_the_account_is_computed_again(name: str) -> None:
    made, report, backend, options = legal(name)
    assert errors(made, backend, options, report) == []
    assert report.account is not None
    charged = [part for part in Account.__struct_fields__ if getattr(report.account, part).cost]
    assert charged, "the case has a cost"
    for part in charged:
        entry = getattr(report.account, part)
        changes: list[dict[str, int]] = [{"cost": entry.cost + 1}, {"cost": entry.cost - 1}, {"cost": 0}]
        changes += [{"count": 0, "bytes": 0, "cost": 0}]
        for change in changes:
            wrong = charging(report, report.account.model_copy(update={part: entry.model_copy(update=change)}))
            verification = relayout.verify(made, backend, report=wrong, run=False, **options)
            found = [each for each in verification.findings if each.rule == "price"]
            # A table may charge by the names of nodes, and x86-nchwc charges for orders: there the verifier says so.
            if part != "operators" or name not in ("devices", "blocks"):
                assert found, (part, change)
                assert found[0].severity == "error"
            assert found or (verification.price is not None and verification.price.not_computed), (part, change)


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("own operators", "reorders", "the report does not list"),
        ("transposes", "transposes", "the report does not list"),
        ("devices", "transfers", "one is of"),
    ],
)
def test_what_is_left_out_of_the_report_altogether_is_named(name: str, part: str, message: str) -> None:
    made, report, backend, options = legal(name)
    assert report.account is not None
    account = report.account.model_copy(update={part: Entry()})
    first, *_ = errors(made, backend, options, charging(report, account, conversions=(), transfers=()))
    assert message in first.message
    assert first.found == "0 with 0 bytes at a cost of 0"


def test_a_model_that_records_another_cost_is_found_without_a_report() -> None:
    made, report, backend, options = legal("transposes")
    assert errors(made, backend, options, None) == []
    (entry,) = [each for each in made.metadata_props if each.key == COST_KEY]
    entry.value = str(int(entry.value) - 1)
    (finding,) = errors(made, backend, options, None)
    assert (finding.expected, finding.found) == (str(report.cost), entry.value)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_model_that_records_an_unknown_objective_is_found(objective: str) -> None:
    made, report = relayout.legalize(pooled(), "nhwc", objective=objective)
    assert errors(made, "nhwc", {}, None) == errors(made, "nhwc", {}, report) == []
    (entry,) = [each for each in made.metadata_props if each.key == OBJECTIVE_KEY]
    entry.value = "conversions"
    (finding,) = errors(made, "nhwc", {}, None)
    assert (finding.expected, finding.found) == ("bytes or transposes", "conversions")


def test_a_pad_beside_a_transpose_may_be_a_part_of_it_where_no_report_says() -> None:
    packed = {"name": "packed", "rule": [{"op": "Conv", "pads": True, "data": "NCHW16c"}]}
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 8)), 3, 5))
    made, report = relayout.legalize(net.model(), packed, objective="transposes")
    assert report.cost == 2
    assert errors(made, packed, {}, report) == errors(made, packed, {}, None) == []
    price = relayout.verify(made, packed, run=False).price
    assert price is not None
    assert "a pad may be a part" in price.not_computed[0]
    (entry,) = [each for each in made.metadata_props if each.key == COST_KEY]
    entry.value = "1"
    (finding,) = errors(made, packed, {}, None)
    assert finding.found == "1"


def product_of_the_transposes(rows: int) -> onnx.ModelProto:
    """A product with a matrix, cheaper with its operands transposed: a broadcast matrix is read once for each row."""
    net = Net()
    value = net.transpose(net.node("Relu", net.input("x", (rows, 8, 6, 6))), 0, 2, 3, 1)
    product = net.node("MatMul", value, net.constant(np.ones((8, 4), np.float32)))
    net.output(net.node("Relu", net.transpose(product, 0, 3, 1, 2)))
    return net.model()


def test_the_cost_of_a_decomposed_operator_is_that_of_its_note() -> None:
    made, report = relayout.legalize(product_of_the_transposes(2))
    assert report.account is not None
    cost = report.account.operators.cost
    assert report.cost == cost > 0
    for stated in (report, None):
        price = relayout.verify(made, report=stated, run=False).price
        assert price == Price(claimed=cost, computed=cost, noted=cost)
    for other in (cost + 4, 0):
        operators = report.account.operators.model_copy(update={"bytes": other, "cost": other})
        wrong = charging(report, report.account.model_copy(update={"operators": operators}))
        found = relayout.verify(made, report=wrong, run=False)
        assert found.price is not None
        assert found.price.noted == cost
        # A note may be lost where a rewrite has become views alone; what is noted costs no less.
        assert len(errors(made, None, {}, wrong)) == (other < cost)
        assert ["may cost more than" in text for text in found.price.not_computed] == [True] * (other > cost)


def test_a_decomposed_operator_without_a_cost_is_noted_at_zero() -> None:
    _, report = relayout.legalize(product_of_the_transposes(1))
    assert report.verification is not None
    assert report.verification.price == Price(claimed=0, computed=0, noted=0)


def test_what_cannot_be_computed_again_is_said() -> None:
    model, backend, options = CASES["transposes"]()
    inlined, report = relayout.legalize(model, backend, inline=True, **options)
    assert report.verification is not None
    assert (report.verification.findings, report.verification.price) == ((), Price(claimed=3616, computed=3616))
    price = relayout.verify(inlined, backend, report=report, run=False).price
    assert price is not None
    (reason,) = price.not_computed
    assert "inlined" in reason


@pytest.mark.parametrize("name", ["transposes", "own operators", "devices"])
def test_each_conversion_is_the_nodes_that_the_report_names(name: str) -> None:
    made, report, backend, options = legal(name)
    moving = [each for each in report.conversions if each.bytes]
    named = [result for each in moving for result in each.nodes or ()]
    assert len(named) == len({*named}) >= len(moving) > 0
    first, *others = report.conversions
    assert first.nodes
    wrong = {
        "has no node": (first.model_copy(update={"nodes": ("nothing",)}), *others),
        "is no node": (first.model_copy(update={"nodes": ()}), *others),
        "bytes) is": (first.model_copy(update={"bytes": first.bytes + 4}), *others),
        "does not list": tuple(others),
    }
    if others:
        wrong["is no node "] = (first, others[0].model_copy(update={"nodes": first.nodes}), *others[1:])
    for message, conversions in wrong.items():
        (finding,) = errors(made, backend, options, report.model_copy(update={"conversions": conversions}))
        assert message in (finding.found or ""), (finding, message)
    # A report of an earlier version names none: then the sums are compared.
    earlier = [each.model_copy(update={"nodes": None}) for each in report.conversions]
    assert errors(made, backend, options, report.model_copy(update={"conversions": earlier})) == []


def test_a_model_that_is_legal_already_has_the_nodes_of_its_conversions() -> None:
    made, report, backend, _ = legal("transposes")
    again, second = relayout.legalize(made, backend, **CASES["transposes"]()[2])
    assert again.SerializeToString() == made.SerializeToString()
    names = [{name for each in one.conversions for name in each.nodes or ()} for one in (report, second)]
    assert names[0] == names[1] == {node.output[0] for node in made.graph.node if node.op_type == "Transpose"}


def test_conversions_of_a_tensor_without_elements_are_counted_and_compared() -> None:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (0, 4, 8, 8)), kernel_shape=[2, 2]))
    _, report = relayout.legalize(net.model(), "nhwc", check=True)
    assert report.account is not None
    assert report.account.transposes == Entry(count=2, bytes=0, cost=0)
    assert report.verification is not None
    assert report.verification.passed


class Tiled(Expensive):
    """Pools on channels in tiles, of four and then of six. A Transpose of padded data costs a little more."""

    name = "tiled"

    def implementations(self, node: ir.Node) -> list[Implementation]:
        tiles = {"MaxPool": "NCHWc[tile:4]", "AveragePool": "NCHWc[tile:6]"}
        if node.op_type not in tiles:
            return [*Backend.implementations(self, node)]
        layout = Layout.parse(tiles[node.op_type])
        return [Implementation((layout,), (layout,), pads=True)]

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int:
        return super().conversion_cost(tensor, source, target) + ("pad" in str(target)) + 2 * ("pad" in str(source))


@pytest.mark.parametrize("channels", [12, 6, 7])
def test_the_steps_of_a_conversion_are_priced(channels: int) -> None:
    net = Net()
    pooled = net.node("MaxPool", net.input("x", (1, channels, 9, 9)), kernel_shape=[2, 2])
    net.output(pooled if channels == 6 else net.node("AveragePool", pooled, kernel_shape=[2, 2]))
    made, report = relayout.legalize(net.model(), Tiled())
    account, verification = report.account, report.verification
    assert account is not None
    assert verification is not None
    assert verification.price is not None
    assert verification.findings == ()
    assert account.transposes.count == (2 if channels == 6 else 4)
    assert bool(account.pads.bytes) == (channels != 12)
    # The layouts between two Transposes have no names in the report: both sides are asked about them by numbers.
    assert (verification.price.computed, verification.price.not_computed) == (report.cost, ())
    entry = account.transposes.model_copy(update={"cost": account.transposes.cost // 2})
    wrong = charging(report, account.model_copy(update={"transposes": entry}))
    found = relayout.verify(made, Tiled(), report=wrong, run=False)
    assert found.price is not None
    assert (found.passed, found.price.not_computed) == (False, ())


@pytest.mark.parametrize(
    ("key", "text", "rule", "severity"),
    [
        ("relayout.cost", "nonsense", "price", "error"),
        ("relayout.cost", "-1", "price", "error"),
        ("relayout.bound", "99999999", "price", "error"),
        ("relayout.bound", "", "price", "error"),
        ("relayout.source_sha256", "0" * 64, "source", "warning"),
    ],
)
def test_recorded_facts_that_contradict_each_other_are_found(key: str, text: str, rule: str, severity: str) -> None:
    data = pooled().SerializeToString()
    made, _ = relayout.legalize(data, "nhwc")
    made.metadata_props[key] = text
    found = relayout.verify(made, "nhwc", against=data, run=False).findings
    assert (rule, severity) in {(finding.rule, finding.severity) for finding in found}


def table(operator: str, **rule: Any) -> Backend:
    return load_backend({"name": "own", "extends": "nchw", "rule": [{"op": operator, **rule}]})


COSTLY = {"implementation": [{"inputs": ["*"], "results": ["*"], "cost": 100}]}


@pytest.mark.parametrize("operator", ["Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose"])
def test_a_view_op_that_remains_costs_nothing(operator: str) -> None:
    net = Net()
    value = net.input("x", (1, 4, 5, 6))
    operands = {"Reshape": [net.constant([4, 30])]}.get(operator, [])
    net.output(net.node(operator, value, *operands))
    made, report = relayout.legalize(net.model(), table(operator, **COSTLY))
    assert [node.op_type for node in made.graph.node] == [operator]
    assert report.account is not None
    assert report.account.operators.cost == 0
    found = relayout.verify(made, table(operator, **COSTLY), against=net.model(), report=report, run=False).findings
    assert not [each for each in found if each.rule == "price"]


def flattened() -> onnx.ModelProto:
    """A Flatten behind Transposes, which becomes a Reshape to a computed shape."""
    net = Net()
    value = net.conv(net.input("x", ("n", 2, 2, "w")), 2, 2)
    value = net.transpose(net.transpose(value, 0, 2, 1, 3), 0, 2, 1, 3)
    flat = net.node("Flatten", value, axis=-1)
    net.output(net.node("ScatterND", flat, net.constant([[1]]), net.input("u", (1, "w"))))
    return net.model()


def test_the_computation_of_the_shape_of_an_added_reshape_costs_nothing() -> None:
    made, report = relayout.legalize(flattened(), table("Shape", **COSTLY))
    assert "Shape" in {node.op_type for node in made.graph.node}
    found = relayout.verify(made, table("Shape", **COSTLY), against=flattened(), report=report, static=True)
    assert found.passed
    assert relayout.legalize(made, table("Shape", **COSTLY))[1].cost == report.cost


def test_a_shape_that_another_operator_reads_costs_what_the_backend_states() -> None:
    made, report = relayout.legalize(flattened(), table("Shape", **COSTLY))
    shape = next(node.output[0] for node in made.graph.node if node.op_type == "Shape")
    made.graph.output.append(onnx.helper.make_tensor_value_info(shape, onnx.TensorProto.INT64, [4]))
    found = relayout.verify(made, table("Shape", **COSTLY), report=report, run=False).findings
    assert "price" in {each.rule for each in found}


def test_a_recorded_cost_that_is_not_computed_in_whole_is_a_note() -> None:
    """The backend charges for the order in which the Softmax runs, which the model does not show."""
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        net (float[N,4,H,W] x) => (float[N,4,H,W] y) {
            a = Transpose <perm = [0,2,3,1]> (x)
            b = Softmax <axis = 3> (a)
            y = Transpose <perm = [0,3,1,2]> (b) }""")
    legal, report = relayout.legalize(made, "x86-nchwc")
    assert report.cost
    [note] = relayout.verify(legal, "x86-nchwc").findings
    assert (note.rule, note.severity) == ("price", "note")
    assert note.message == "the cost that the model records is not confirmed in whole"
