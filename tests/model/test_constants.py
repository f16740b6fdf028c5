"""Solver, report and backend agree on the constants of a model."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import relayout
from relayout.model import constants
from relayout.model.constants import constant_values, hangs_on_constants, remembering_constants
from relayout.model.io import read_model

GRAPH = """<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
    g (float[1,4,5,6] x, float[8,4,3,3] k) => (float[1,3,4,8] y) <float[1,8,3,4] stored = {DATA}, bool c = {1},
        float[1,8,3,4] w> {
        w = MADE
        conv = Conv (x, k)
        left = Transpose <perm = [0,2,3,1]> (conv)
        right = Transpose <perm = [0,2,3,1]> (w)
        y = Add (left, right) }""".replace("DATA", ", ".join(["1"] * 96))
BRANCH = "(float[1,8,3,4] {0}) {{ {0} = Neg (stored) }}"
MADE = {
    "Neg (stored)": True,
    "mine.Custom (stored)": False,
    "RandomNormalLike (stored)": False,
    f"If (c) <then_branch = a () => {BRANCH.format('p')}, else_branch = b () => {BRANCH.format('q')}>": False,
}


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "nchw", "canonical", "xla-cpu"])
@pytest.mark.parametrize(("made", "is_constant"), MADE.items())
def test_a_report_adds_up_whatever_produces_an_operand(made: str, is_constant: bool, backend: str) -> None:
    source = onnx.parser.parse_model(GRAPH.replace("MADE", made))
    constants = {value.name for value in constant_values(read_model(source).graph)}
    assert ("w" in constants, "right" in constants, "left" in constants) == (is_constant, is_constant, False)
    legal, report = relayout.legalize(source, backend)
    assert report.before.transposes == (1 if is_constant else 2)
    findings = relayout.verify(legal, backend, against=source, report=report).findings
    assert [finding for finding in findings if finding.rule == "cost-accounting"] == []


def test_the_result_of_a_region_op_is_no_constant_though_its_number_is_known() -> None:
    source = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (bool c, float[1] x) => (float[1] y) <float[1] stored = {{1}}> {{
        w = If (c) <then_branch = a () => {BRANCH.format("p")}, else_branch = b () => {BRANCH.format("q")}>
        y = Add (x, w) }}""".replace("1,8,3,4", "1")
    model = read_model(onnx.parser.parse_model(source))
    branched, added = model.graph
    for node in (branched, added):
        node.outputs[0].const_value = ir.tensor([-1.0])
    assert constant_values(model.graph) & {branched.outputs[0], added.outputs[0]} == {added.outputs[0]}


def chain_of(length: int) -> list[ir.Value]:
    """The results of so many sums, each of the one before and a constant."""
    value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    weight = ir.Value(name="w", const_value=ir.tensor([1.0, 2.0]))
    nodes: list[ir.Node] = []
    for _ in range(length):
        nodes.append(ir.node("Add", [weight, nodes[-1].outputs[0] if nodes else value]))
    ir.Graph([value], [nodes[-1].outputs[0]], nodes=nodes, initializers=[weight])
    return [node.outputs[0] for node in nodes]


def test_a_deep_graph_takes_a_step_for_each_remembered_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    values, steps = chain_of(500), 0
    plain = constants._is_evaluable

    def counted(node: ir.Node) -> bool:
        nonlocal steps
        steps += 1
        return plain(node)

    monkeypatch.setattr(constants, "_is_evaluable", counted)
    with remembering_constants():
        assert not any(hangs_on_constants(value) for value in values)
    assert steps <= 2 * len(values)


def test_an_answer_is_forgotten_after_the_stage_and_depends_on_the_operators_left_out() -> None:
    values = chain_of(3)
    source = values[0].producer()
    assert source is not None
    with remembering_constants():
        assert not hangs_on_constants(values[2])
        source.replace_input_with(1, source.inputs[0])
        assert not hangs_on_constants(values[2])  # no graph may change here
    assert hangs_on_constants(values[2])
    with remembering_constants():
        assert hangs_on_constants(values[2])
        assert not hangs_on_constants(values[2], never=frozenset({"Add"}))
