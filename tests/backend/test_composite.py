"""Several backends in one graph: the device of each node, the transfers between devices, and the total cost."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import findings_about

from relayout.backend import (
    Assignment,
    Backend,
    Composite,
    Device,
    Implementation,
    Nodes,
    Reordering,
    TensorType,
    Writing,
    load_backend,
)
from relayout.cli import main
from relayout.errors import BackendError
from relayout.layout.layout import Layout
from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.report.schema import Report
from relayout.verification.verifier import verify

NHWC = Layout.parse("NHWC")
TABLE = """\
name = "board"
host = "cpu"

[[device]]
name = "npu"
backend = "nhwc"
op = ["Conv", "MaxPool", "Relu"]
transfer = 2

[[device]]
name = "cpu"

[[assign]]
op = "Conv"
nodes = "n0"
devices = { npu = 0, cpu = 1000000 }

[[assign]]
op = "Conv"
devices = "npu"
"""


def network() -> onnx.ModelProto:
    """Two convolutions with a Softmax between them, which the accelerator does not have."""
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 4, 8, 8)), 4, 4))
    value = net.node("Softmax", value, axis=1)
    net.output(net.node("Relu", net.conv(value, 4, 4)))
    return net.model()


def devices_of(model: onnx.ModelProto) -> dict[str, str]:
    """Where each node runs, by its name."""
    return {
        node.name: entry.value
        for node in model.graph.node
        for entry in node.metadata_props
        if entry.key == "relayout.device"
    }


def table(**changes: Any) -> dict[str, Any]:
    return {**tomllib.loads(TABLE), **changes}


def test_each_node_runs_on_its_device_in_the_devices_layout() -> None:
    model = network()
    legal, report = legalize(model, table(), check=True)
    assert report.verification is not None
    assert report.verification.passed, report.verification.findings
    convolutions = [node for node in legal.graph.node if node.op_type == "Conv"]
    assert [node.domain for node in convolutions] == ["relayout", "relayout"]
    assert {devices_of(legal)[node.name] for node in convolutions} == {"npu"}
    [softmax] = [node for node in legal.graph.node if node.op_type == "Softmax"]
    assert devices_of(legal)[softmax.name] == "cpu"
    assert [(p.device, p.backend) for p in report.devices] == [("npu", "nhwc"), ("cpu", "onnx")]
    there, back = ("cpu", "npu"), ("npu", "cpu")
    assert [(c.from_, c.to) for c in report.transfers] == [there, back, there, back]
    assert {c.bytes for c in report.transfers} == {1024}
    assert_same_numbers(model, legal)


def test_a_transfer_has_a_price_and_is_not_a_transpose() -> None:
    net = Net()
    net.output(net.node("Softmax", net.node("Relu", net.input("x", (2, 8)))))
    devices = [{"name": "npu", "op": "Relu", "transfer": 1.5, "transfer_fixed": 7}, {"name": "cpu", "transfer": 0}]
    assigned = [{"op": "Relu", "devices": {"npu": 11}}]
    _, report = legalize(net.model(), {"name": "two", "host": "cpu", "device": devices, "assign": assigned})
    assert (report.after.transposes, report.conversions) == (0, ())
    assert [c.cost for c in report.transfers] == [103, 103]
    assert report.cost == report.bound == 11 + 2 * 103
    spec = {"name": "two", "host": "cpu", "device": devices, "assign": assigned}
    _, again = legalize(net.model(), spec, max_transposes=0)
    assert again.cost == report.cost


def test_a_node_allowed_on_two_devices_is_placed_together_with_its_layouts() -> None:
    net = Net()
    value = net.transpose(net.input("x", (1, 64, 64, 3)), 0, 3, 1, 2)
    net.output(net.transpose(net.conv(value, 3, 3), 0, 2, 3, 1))
    # Two transposes here, two transfers there, which cost less or more.
    for transfer, device in ((0.4, "npu"), (2.5, "cpu")):
        npu = {"name": "npu", "backend": "nhwc", "op": "Conv", "transfer": transfer}
        devices = [{"name": "cpu", "transfer": 0}, npu]
        legal, report = legalize(net.model(), {"name": "two", "host": "cpu", "device": devices}, check=True)
        assert report.after.transposes == (0 if device == "npu" else 2)
        [convolution] = [node for node in legal.graph.node if node.op_type == "Conv"]
        assert devices_of(legal)[convolution.name] == device
        assert report.verification is not None
        assert report.verification.passed


def test_an_elided_operator_runs_on_the_device_of_its_data() -> None:
    net = Net()
    blocks = net.node("DepthToSpace", net.node("Relu", net.input("x", (1, 16, 4, 6))), blocksize=2)
    net.output(net.node("Relu", blocks))
    # Two transfers of 1,536 bytes each way, or a Transpose between two Reshapes, which any device runs.
    for transfer, cost in ((0.1, 614), (10, 3072)):
        npu = {"name": "npu", "op": "Relu", "transfer": transfer}
        devices = [npu, {"name": "cpu", "transfer": transfer}]
        assigned = [{"op": "DepthToSpace", "devices": "cpu"}]
        spec = {"name": "two", "host": "npu", "device": devices, "assign": assigned}
        legal, report = legalize(net.model(), spec)
        assert (report.status, report.cost) == ("optimal", cost)
        assert findings_about(verify(legal, spec, report=report, run=False)) == []
        assert_same_numbers(net.model(), legal)


def test_a_transferred_view_has_the_shape_of_the_elided_node() -> None:
    net = Net()
    made = net.node("Relu", net.input("x", (2, 8, 4, 4)))
    net.output(net.node("Sigmoid", made))
    blocks = net.node("SpaceToDepth", made, blocksize=2)
    for operator in ("Tanh", "Neg"):
        net.output(net.node("DepthToSpace", net.node(operator, blocks), blocksize=2))
    moves = ["SpaceToDepth", "DepthToSpace"]
    devices = [{"name": "a", "op": ["Relu", "Tanh", *moves]}, {"name": "b", "op": ["Sigmoid", "Neg", *moves]}]
    for transfer in (1, 0):
        spec = {"name": "two", "device": [{**device, "transfer": transfer} for device in devices]}
        legal, report = legalize(net.model(), spec)
        # Sigmoid and Neg read at b what crosses once; nothing of it comes back.
        assert (report.status, report.cost) == ("optimal", transfer * 2 * 1024)
        assert [node.op_type for node in legal.graph.node] == ["Relu", "Sigmoid", "Tanh", "Neg"]
        assert findings_about(verify(legal, spec, report=report, run=False)) == []
        assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("prices", [(1, 1, 1, 1, 1), (3, 0, 1, 2, 0), (0, 0, 0, 0, 0)])
def test_an_elided_node_is_on_one_device_and_the_transfers_are_those_of_the_model(
    prices: tuple[int, ...],
) -> None:
    net = Net()
    made = net.node("Relu", net.input("x", (2, 8, 4, 4)))
    blocks = net.node("SpaceToDepth", made, blocksize=2)
    operators = ["Tanh", "Neg", "Sigmoid", "Exp"]
    for operator in operators:
        net.output(net.node("DepthToSpace", net.node(operator, blocks), blocksize=2))
    spec = {
        "name": "five",
        "device": [
            {"name": name, "op": [operator, "SpaceToDepth", "DepthToSpace"], "transfer": price}
            for name, operator, price in zip("abcde", ["Relu", *operators], prices, strict=True)
        ],
    }
    legal, report = legalize(net.model(), spec)
    assert findings_about(verify(legal, spec, report=report, run=False)) == []
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("prices", [(3, 0, 0), (0, 0, 0), (3, 1, 1), (0, 0, 3)])
def test_an_elided_result_is_transferred_only_from_its_producers_device(prices: tuple[int, int, int]) -> None:
    net = Net()
    made = net.node("Relu", net.input("x", (2, 8, 4, 4)))
    net.output(net.node("Sigmoid", made))
    blocks = net.node("SpaceToDepth", made, blocksize=2)
    net.output(net.node("DepthToSpace", net.node("Tanh", blocks), blocksize=2))
    operators = [["Relu"], ["Sigmoid", "SpaceToDepth", "DepthToSpace"], ["Tanh"]]
    devices = [
        {"name": name, "op": op, "transfer": price} for name, op, price in zip("abc", operators, prices, strict=True)
    ]
    spec = {"name": "three", "device": devices}
    legal, report = legalize(net.model(), spec)
    assert report.status == "optimal"
    assert findings_about(verify(legal, spec, report=report, run=False)) == []
    assert_same_numbers(net.model(), legal)


def test_a_device_with_limited_ranks_runs_factored_nodes_only_in_those_ranks() -> None:
    net = Net()
    value = net.node("Reshape", net.input("x", (3, 1)), net.constant([1, 1, 3, 1]))
    for axis in (2, 3):
        value = net.node("Concat", value, value, axis=axis)
    blocks = net.node("Reshape", value, net.constant([1, 1, 3, 2, 1, 2]))
    net.output(net.node("Reshape", net.transpose(blocks, 0, 3, 5, 1, 2, 4), net.constant([1, 4, 3, 1])))
    npu = {"name": "npu", "when": {"rank": 4}, "transfer": 0}
    spec = {"name": "two", "host": "cpu", "device": [npu, {"name": "cpu", "transfer": 0}]}
    for assigned, ranks in (({"npu": 0}, {4}), ({"cpu": 0}, {4, 5})):
        told = {**spec, "assign": [{"op": "Concat", "devices": assigned}]}
        legal, report = legalize(net.model(), told)
        assert findings_about(verify(legal, told, report=report, run=False)) == []
        shapes = {value.name: value for value in (*legal.graph.value_info, *legal.graph.output)}
        joined = [node for node in legal.graph.node if node.op_type == "Concat"]
        assert {len(shapes[node.output[0]].type.tensor_type.shape.dim) for node in joined} == ranks
        assert_same_numbers(net.model(), legal)


def test_a_copy_for_two_devices_is_made_once_or_twice_as_the_transfer_costs() -> None:
    net = Net()
    given = net.node("Relu", net.input("x", (1, 4, 8, 8)))
    for kind in ("npu", "gpu"):
        net.output(net.node("Softmax", net.transpose(given, 0, 2, 3, 1), axis=-1))
        net.nodes[-1].name = f"{kind}/rows"
        net.output(net.node("LogSoftmax", given, axis=-1))
        net.nodes[-1].name = f"{kind}/plain"
    model = net.model()
    for transfer, transposes in ((0.1, 1), (3, 2)):
        devices = [{"name": kind, "nodes": f"{kind}/*", "transfer": transfer} for kind in ("npu", "gpu")]
        devices[0]["nodes"] = ["npu/*", "n0"]  # type: ignore[assignment]
        spec = {"name": "two", "device": devices}
        legal, report = legalize(model, spec, check=True)
        verification = verify(legal, spec, report=report, run=False)
        assert report.verification is not None
        assert report.verification.passed, report.verification.findings
        assert verification.passed, verification.findings
        assert report.after.transposes == transposes


class Dear(type(load_backend("nhwc"))):  # type: ignore[misc]
    """Channels last, and no conversion that is worth it."""

    name = "dear"

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int:
        return 10**6


def test_a_tensor_transferred_in_two_formats_is_converted_in_the_order_of_its_readers() -> None:
    net = Net()
    given = net.node("Relu", net.input("x", (1, 3, 4, 6)))
    net.output(net.node("NonZero", given), onnx.TensorProto.INT64)
    net.output(net.node("MaxPool", given, kernel_shape=[2, 2]))
    relu = Device("cpu", takes=Nodes(operators=("Relu",)), transfer=0.1)
    board = Composite([relu, Device("npu", Dear, transfer=0.1)], host="cpu")
    legal, report = legalize(net.model(), board)
    crossed = {c.layout: [each.node for each in c.required_by] for c in report.transfers if c.value == given}
    assert crossed == {"NCHW": ["NonZero 'n1'"], "NHWC": ["MaxPool 'n2'"]}
    assert findings_about(verify(legal, board, report=report, against=net.model())) == []
    assert_same_numbers(net.model(), legal)


def pack(writing: Writing) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Pack", [writing.read(0)], shape=shape, domain="com.acme"))


class Packing(Backend):
    """Pools channels last, and converts to that by an operator of its own."""

    name = "packing"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        is_pool = node.op_type == "MaxPool"
        return [Implementation((NHWC,), (NHWC,))] if is_pool else super().implementations(node)

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(50, pack) if str(target) == "NHWC" else None

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("com.acme", "Pack")})


@pytest.mark.parametrize("pools", [("MaxPool", "AveragePool"), ("AveragePool", "MaxPool")])
def test_each_device_writes_its_own_conversion_to_one_format(pools: tuple[str, str]) -> None:
    net = Net()
    given = net.node("Relu", net.input("x", (1, 3, 4, 6)))
    for pool in pools:
        net.output(net.node(pool, given, kernel_shape=[2, 2]))
    relu = Device("cpu", Dear, takes=Nodes(operators=("Relu",)), transfer=0.1)
    dsp = Device("dsp", Packing, takes=Nodes(operators=("MaxPool",)), transfer=0.1)
    npu = Device("npu", "nhwc", takes=Nodes(operators=("AveragePool",)), transfer=0.1)
    legal, report = legalize(net.model(), Composite([relu, dsp, npu], host="cpu"))
    assert report.verification is not None
    assert report.verification.passed, report.verification.findings
    at = {(node.op_type, devices_of(legal)[node.name]) for node in legal.graph.node if given in node.input}
    assert at == {("Pack", "dsp"), ("Transpose", "npu")}
    assert [each.kind for each in report.conversions if each.value == given].count("reorder") == 1


def test_a_body_runs_on_the_device_of_its_node_or_pays_for_a_transfer() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (bool c, float[2, 8] x) => (float[2, 8] y) {
            [choose] y = If (c) <
                then_branch = a () => (float[2, 8] p) { [inner] p = Exp (x) },
                else_branch = b () => (float[2, 8] q) { [other] q = Neg (x) }
            >
        }""")
    devices = [{"name": "npu", "op": ["If", "Neg"], "transfer": 1}, {"name": "cpu", "op": ["Exp"], "transfer": 1}]
    spec = {"name": "two", "host": "npu", "device": devices}
    legal, report = legalize(model, spec)
    assert [(c.value, c.from_, c.to) for c in report.transfers] == [("x", "npu", "cpu"), ("p", "cpu", "npu")]
    verification = verify(legal, spec, model, report=report)
    assert verification.passed, verification.findings


def test_an_outer_value_read_in_a_body_is_transferred_once() -> None:
    """The If runs where x is, which Exp and Abs read elsewhere: one inside the body, the other outside."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (bool c, float[2, 8] x) => (float[2, 8] y, float[2, 8] z) {
            [choose] y = If (c) <
                then_branch = a () => (float[2, 8] p) { [inner] p = Exp (x) },
                else_branch = b () => (float[2, 8] q) { [other] q = Neg (x) }
            >
            [outer] z = Abs (x)
        }""")
    devices = [{"name": "npu", "op": ["If", "Neg"], "transfer": 1}, {"name": "cpu", "transfer": 1}]
    spec = {"name": "two", "host": "npu", "device": devices}
    legal, report = legalize(model, spec)
    transfers = [(c.value, c.from_, c.to) for c in report.transfers]
    assert sorted(transfers) == [("p", "cpu", "npu"), ("x", "npu", "cpu"), ("z", "cpu", "npu")]
    verification = verify(legal, spec, model, report=report)
    assert verification.passed, verification.findings


def test_a_format_transferred_between_branches_is_made_outside_both() -> None:
    """The turned blocks are made where Relu runs, in one branch, and cross to Neg in the other."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[2, 8, 5, 6] x, bool c) => (y) {
            space = DepthToSpace <blocksize = 2, mode = "CRD"> (x)
            y = If (c) <
                then_branch = a () => (p) { r = Relu (space)  p = Transpose <perm = [0, 3, 1, 2]> (r) },
                else_branch = b () => (q) { n = Neg (space)  q = Transpose <perm = [0, 3, 1, 2]> (n) }
            >
        }""")
    devices = [{"name": "npu", "op": ["If", "Neg"], "transfer": 0}, {"name": "gpu", "transfer": 0}]
    spec = {"name": "two", "host": "npu", "device": devices}
    legal, report = legalize(model, spec)
    assert report.after.transposes == 1
    assert "Transpose" in {node.op_type for node in legal.graph.node}
    verification = verify(legal, spec, model, report=report)
    assert verification.passed, verification.findings


def test_the_verifier_finds_a_node_on_a_device_that_does_not_support_it() -> None:
    legal, report = legalize(network(), table())
    for node in legal.graph.node:
        for entry in node.metadata_props:
            if entry.key == "relayout.device" and node.op_type == "Softmax":
                entry.value = "npu"
    found = verify(legal, table(), report=report).findings
    assert {f.rule for f in found if f.severity == "error"} == {"placement"}
    legal.graph.node[0].metadata_props[0].value = "nowhere"
    assert any("no such device" in f.message for f in verify(legal, table()).findings)


def spoil(change: str, model: onnx.ModelProto) -> None:
    """Put one fault into the devices of a legal model of `network()`, and take away the cost, which may show it too."""
    del model.metadata_props[:]
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    if change == "a node is noted as written for a device that does not take it":
        del softmax.metadata_props[:]
        for key in ("relayout.device", "relayout.written_at"):
            softmax.metadata_props.add(key=key, value="npu")
    elif change == "a node names no device":
        del softmax.metadata_props[:]
    elif change == "an input is not on the host":
        model.graph.input[0].metadata_props[0].value = "npu"
    else:
        del model.graph.output[0].metadata_props[:]


@pytest.mark.parametrize(
    "change",
    [
        "a node is noted as written for a device that does not take it",
        "a node names no device",
        "an input is not on the host",
        "an output names no device",
    ],
)
def test_the_verifier_finds_a_device_that_is_edited(change: str) -> None:
    model = network()
    legal, _ = legalize(model, table())
    assert verify(legal, table(), model).passed
    spoil(change, legal)
    errors = [finding.rule for finding in verify(legal, table(), model).findings if finding.severity == "error"]
    assert errors == ["placement"]


def test_the_verifier_finds_a_vector_of_integers_on_a_device_that_does_not_make_it() -> None:
    net = Net(18)
    value = net.node("Reshape", net.conv(net.input("x", (1, 3, 8, 8)), 3, 4), net.constant([1, -1]))
    net.output(net.node("ArgMax", value, axis=1, keepdims=0), dtype=onnx.TensorProto.INT64)
    model = net.model()
    legal, _ = legalize(model, table())
    assert verify(legal, table(), model).passed
    (node,) = [node for node in legal.graph.node if node.op_type == "ArgMax"]
    node.metadata_props[0].value = "npu"
    assert "placement" in {finding.rule for finding in verify(legal, table(), model).findings}


def test_the_verifier_counts_transfers() -> None:
    legal, report = legalize(network(), table())
    fewer = report.model_copy(update={"transfers": report.transfers[1:]})
    errors = [f for f in verify(legal, table(), report=fewer).findings if f.severity == "error"]
    assert [error.rule for error in errors] == ["cost-accounting", "price"]
    assert "of the account" in errors[0].message
    assert "from cpu to npu" in (errors[1].found or "")


def test_legalizing_a_legal_model_keeps_every_node_on_its_device() -> None:
    legal, report = legalize(network(), table())
    twice, again = legalize(legal, table())
    assert again.cost == report.cost
    nodes = [[(node.op_type, devices_of(each)[node.name]) for node in each.graph.node] for each in (legal, twice)]
    assert nodes[0] == nodes[1]


def test_a_noted_cost_is_that_of_the_device_on_which_the_node_is() -> None:
    """The Concat of tiles costs what is noted on it, on the CPU alone: a second run does not move it to the GPU."""
    net = Net()
    joined = net.node("Concat", *[net.input("x", (2, 3, 4))] * 2, axis=2)
    halves = net.transpose(net.node("Reshape", joined, net.constant([2, 3, 4, 2])), 0, 3, 1, 2)
    net.output(net.node("Tan", net.node("Reshape", halves, net.constant([2, 6, 4]))))
    assigned = [
        {"op": "Concat", "devices": {"cpu": 200, "gpu": 1000}},
        {"op": "Tan", "devices": {"cpu": 200, "gpu": 0}},
    ]
    two = {"name": "two", "device": [{"name": "cpu"}, {"name": "gpu"}], "assign": assigned}
    legal, report = legalize(net.model(), two)
    assert "relayout.node_cost" in [entry.key for node in legal.graph.node for entry in node.metadata_props]
    assert devices_of(legal)["n0"] == "cpu"
    twice, again = legalize(legal, two)
    assert (twice.SerializeToString(), again.cost) == (legal.SerializeToString(), report.cost)


def test_an_operand_with_further_unit_dimensions_has_their_rank() -> None:
    """In the reversed order, the Expand reads its operand with a trailing unit dimension: in rank 5, not 4."""
    net = Net()
    value = str(net.node("Expand", net.input("x", (3, 3, 4, 2)), net.constant([3, 3, 3, 4, 2])))
    net.output(net.transpose(value, 4, 3, 2, 1, 0))
    ranked = {"name": "gpu", "when": {"rank": 4}}
    assigned = [{"op": "Expand", "devices": {"gpu": 0, "cpu": 200}}]
    two = {"name": "two", "device": [ranked, {"name": "cpu"}], "assign": assigned}
    legal, report = legalize(net.model(), two, objective="transposes", check=True)
    assert report.verification is not None
    assert report.verification.passed, report.verification.findings
    (operand,) = [value for value in legal.graph.value_info if value.name == legal.graph.node[-1].input[0]]
    assert len(operand.type.tensor_type.shape.dim) == 5
    assert devices_of(legal)["n0"] == "cpu"


def test_an_operator_that_one_device_has_in_a_layout_is_not_offered_so_to_another() -> None:
    """The CPU leaves a Conv in the layout that it has, and that is ONNX's."""
    net = Net()
    net.output(net.transpose(net.conv(net.transpose(net.input("x", (1, 8, 8, 4)), 0, 3, 1, 2), 4, 4), 0, 2, 3, 1))
    npu = {"name": "npu", "backend": "nhwc", "op": "Conv", "transfer": 0}
    board = {
        "name": "board",
        "host": "npu",
        "device": [npu, {"name": "cpu", "backend": "convert-layout", "transfer": 0}],
        "assign": [{"op": "Conv", "devices": {"npu": 100, "cpu": 0}}],
    }
    legal, report = legalize(net.model(), board)
    assert (report.cost, set(devices_of(legal).values())) == (100, {"npu"})
    again, second = legalize(legal, board)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_an_operator_of_a_layout_moves_to_a_device_that_asks_for_it() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 4, 8, 8)), 4, 4))
    names = ("npu", "dsp")
    devices = [{"name": name, "backend": "nhwc", "transfer": 0} for name in names]

    def board(cheap: str) -> dict[str, Any]:
        costs = {name: 0 if name == cheap else 1000 for name in names}
        return {"name": "board", "device": devices, "assign": [{"op": "Conv", "devices": costs}]}

    legal, _ = legalize(net.model(), board("npu"))
    moved, _ = legalize(legal, board("dsp"))
    assert devices_of(legal)["n0"] == "npu"
    assert devices_of(moved)["n0"] == "dsp"
    assert [node.op_type for node in moved.graph.node] == [node.op_type for node in legal.graph.node]


class Nosy(Backend):
    """Says of its input what the outermost backend says of the input's producer."""

    name = "nosy"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        value = node.inputs[n]
        producer = value.producer() if value is not None else None
        if producer is None:
            return super().nth_input_layout_requirements(node, n)
        return self.context.nth_result_layout_requirements(producer, 0)


def test_a_devices_backend_looks_up_neighbours_through_the_outermost_backend() -> None:
    model = read_model(network())
    convolution, relu = model.graph[0], model.graph[1]
    composite = Composite([Device("npu", "nhwc", Nodes(("Conv",))), Device("cpu", Nosy)])
    assert composite.at("cpu").context is composite
    [only] = composite.implementations(relu)
    assert (str(only.inputs[0]), only.device) == ("NHWC", "cpu")
    assert [way.device for way in composite.implementations(convolution)] == ["npu", "cpu"]


class Picky(Backend):
    """Runs no Softmax."""

    name = "picky"

    def supports(self, node: ir.Node) -> bool:
        return node.op_type != "Softmax"


def test_a_node_that_no_device_supports_is_an_error_that_names_it() -> None:
    with pytest.raises(BackendError, match="no device can run Softmax 'n2'"):
        legalize(network(), Composite([Device("only", Picky)]))
    legal, _ = legalize(network(), Composite([Device("first", Picky), Device("last")], host="first"))
    assert sorted(devices_of(legal).values()) == ["first"] * 4 + ["last"]


def test_the_first_assignment_that_fits_decides() -> None:
    everywhere = Nodes(operators=("Re?u",))
    composite = Composite(
        [Device("a"), Device("b")], [Assignment({"b": 3}, everywhere), Assignment({"a": 0}, everywhere)], name="two"
    )
    relu = ir.from_proto(network()).graph[1]
    assert [(way.device, way.cost) for way in composite.implementations(relu)] == [("b", 3)]


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"host": "gpu"}, "inline backend", "npu or cpu"),
        ({"assign": [{"devices": ["cpu", "dsp"]}]}, "inline backend", "npu or cpu"),
        ({"device": [{"name": "a"}, {"name": "a"}], "assign": [], "host": "a"}, "inline backend", "a name of its own"),
        ({"extends": "nhwc"}, "inline backend", "devices, or a backend"),
        ({"options": {"device": "cpu"}}, "inline backend", "devices, or a backend"),
        ({"device": [{"name": "npu", "options": {"device": 1}}, {"name": "cpu"}]}, "device[0].options", "no options"),
        ({"device": [{"name": "npu", "backend": "none"}, {"name": "cpu"}]}, "device[0].backend", "one of"),
        ({"device": [{"name": "npu", "transfer": -1}, {"name": "cpu"}]}, "device[0].transfer", "greater than or equal"),
        (
            {"device": [{"name": "npu", "ops": "Conv"}, {"name": "cpu"}]},
            "device[0].ops",
            "keys backend, name, nodes, op, options, rule, transfer",
        ),
    ],
)
def test_a_wrong_table_of_devices_is_an_error_with_its_place(
    changes: dict[str, Any], where: str, expected: str
) -> None:
    with pytest.raises(BackendError) as caught:
        load_backend(table(**changes))
    assert where in caught.value.where
    assert expected in caught.value.expected


def test_a_device_passes_options_to_its_backend() -> None:
    def transposes(device: str) -> int:
        npu = {"name": "npu", "backend": "auto-nhwc", "options": {"device": device}}
        return legalize(network(), {"name": "board", "device": [npu]})[1].after.transposes

    assert transposes("cpu") == 0
    assert transposes("cuda") > 0


def test_a_backend_of_a_device_has_no_devices_of_its_own() -> None:
    with pytest.raises(BackendError, match="the backend of a device has several devices itself"):
        Composite([Device("outer", Composite([Device("inner")]))])


def test_the_command_takes_a_table_of_devices(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "model.onnx")
    (tmp_path / "board.toml").write_text(TABLE)
    paths = [str(tmp_path / name) for name in ("model.onnx", "legal.onnx", "report.json", "board.toml")]
    source, legal, report, backend = paths
    assert main(["legalize", source, "-o", legal, "--backend", backend, "--report", report, "--check"]) == 0
    written = Report.model_validate(json.loads(Path(report).read_text()))
    assert len(written.transfers) == 4
    assert main(["verify", legal, "--backend", backend, "--against", source]) == 0


def test_a_device_that_runs_no_node_is_a_warning() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 8, 6, 6)), 8, 8))
    table = {"name": "idle", "host": "cpu", "device": [{"name": "npu", "backend": "nhwc"}, {"name": "cpu"}]}
    _, report = legalize(net.model(), table)
    [idle] = report.warnings
    assert idle.startswith("backend idle, device npu: it runs no node")
    _, report = legalize(net.model(), {**table, "assign": [{"op": "Conv", "devices": {"npu": 0, "cpu": 1 << 40}}]})
    assert report.warnings == ()


def test_an_operator_written_by_a_devices_post_pass_stays_on_that_device() -> None:
    net = Net()
    net.output(net.node("Relu", net.node("MatMul", net.input("x", (5, 1, 2)), net.weight(2, 2))))
    device = {"name": "npu", "backend": "xla-cpu", "op": ["MatMul"]}
    assigned = [{"op": "MatMul", "devices": "npu"}]
    devices = {"name": "board", "host": "cpu", "device": [device, {"name": "cpu"}], "assign": assigned}
    legal, report = legalize(net.model(), devices)
    (product,) = (node for node in legal.graph.node if node.op_type != "Relu")
    assert product.op_type == "Einsum"
    assert devices_of(legal)[product.name] == "npu"
    assert findings_about(verify(legal, devices, report=report, run=False)) == []
    assert_same_numbers(net.model(), legal)
    again, _ = legalize(legal, devices)
    assert again.graph == legal.graph


def test_two_devices_of_one_name_are_an_error() -> None:
    with pytest.raises(BackendError, match="two devices of one name") as caught:
        Composite([Device("npu", "nhwc"), Device("cpu"), Device("npu", "onnx")], name="board")
    assert (caught.value.where, caught.value.found) == ("board", "npu, cpu, npu")


def test_a_node_without_a_name_stays_on_its_device_where_its_result_takes_over_the_name_of_an_output() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[1,8,9,9] x) => (float[1,8,9,9] y) {
            a = Relu (x) b = Sinh (a) t = Transpose <perm = [0, 2, 3, 1]> (b)
            y = Transpose <perm = [0, 3, 1, 2]> (t) }"""
    )
    backend = Composite([Device("dsp", takes=Nodes(names=("b",))), Device("cpu")], host="cpu")
    legal, report = legalize(model, backend)
    assert [(node.op_type, node.name, node.output[0]) for node in legal.graph.node if node.op_type == "Sinh"] == [
        ("Sinh", "b", "y")
    ]
    assert verify(legal, backend, against=model, report=report, run=False).passed
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert again.SerializeToString() == legal.SerializeToString()
