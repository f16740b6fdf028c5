"""The branches of an If and the body of a Loop, which the inputs that are drawn may never run."""

from __future__ import annotations

import onnx
import pytest

from relayout import verify
from relayout.model.io import read_model
from relayout.report.schema import Verification
from relayout.verification.numeric.branches import forcings

pytest.importorskip("onnxruntime")

RIGHT, WRONG = "0,1,2,3", "0,1,3,2"

LOOP = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float large = {1000.0}, int64 most = {MOST}> {
    peak = ReduceMax <keepdims = 0> (x)
    goes = Greater (peak, large)
    computed = Cast <to = 7> (goes)
    y = Loop (COUNT, CONDITION, x) <body = body (int64 i, bool before, float[1,4,8,8] state) =>
        (bool after, float[1,4,8,8] next) {
        after = Identity (before)
        turned = Transpose <perm = [PERM]> (state)
        next = Relu (turned)
    }>
}"""

NESTED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[4,8,8] x, bool a, bool b, bool c) => (float[4,8,8] y) {
    y = If (a) <
        then_branch = one () => (float[4,8,8] y1) {
            y1 = If (b) <
                then_branch = two () => (float[4,8,8] y2) {
                    y2 = If (c) <
                        then_branch = three () => (float[4,8,8] y3) { y3 = Relu (x) },
                        else_branch = four () => (float[4,8,8] y4) { y4 = Transpose <perm = [PERM]> (x) }
                    >
                },
                else_branch = five () => (float[4,8,8] y5) { y5 = Sigmoid (x) }
            >
        },
        else_branch = six () => (float[4,8,8] y6) { y6 = Tanh (x) }
    >
}"""


def verified(right: str, wrong: str) -> Verification:
    original, model = map(onnx.parser.parse_model, (right, wrong))
    assert verify(original, "onnx", against=original).passed
    return verify(model, "onnx", against=original)


@pytest.mark.parametrize(
    ("count", "condition", "most"),
    [("most", "goes", 3), ("", "goes", 3), ("most", "goes", 9223372036854775807), ("computed", "", 3)],
    ids=["a condition", "no count", "any number of rounds", "a computed count"],
)
def test_the_body_of_a_loop_is_compared_though_no_drawn_input_runs_it(count: str, condition: str, most: int) -> None:
    text = LOOP.replace("COUNT", count).replace("CONDITION", condition).replace("MOST", str(most))
    verification = verified(text.replace("PERM", RIGHT), text.replace("PERM", WRONG))
    assert not verification.passed
    assert [finding.node for finding in verification.findings if finding.rule == "numeric"] == ["y"]


def test_a_loop_that_does_not_run_when_it_is_forced_to_is_named() -> None:
    text = LOOP.replace("COUNT", "most").replace("CONDITION", "goes").replace("MOST", "3").replace("PERM", RIGHT)
    beyond = """five = Constant <value = int64[1] {5}> ()
        picked = Gather <axis = 1> (turned, five)
        next = Add (picked, turned)"""
    model = onnx.parser.parse_model(text.replace("next = Relu (turned)", beyond))
    numeric = verify(model, "onnx", against=model).numeric
    assert numeric is not None
    fault = "the Loops whose rounds depend on the inputs do not run with their conditions forced"
    assert [each.partition(":")[0] for each in numeric.untried] == [fault]


def test_each_branch_of_ifs_in_ifs_is_compared() -> None:
    verification = verified(NESTED.replace("PERM", "0,1,2"), NESTED.replace("PERM", "0,2,1"))
    assert not verification.passed


def test_branches_are_forced_by_the_paths_that_lead_to_them() -> None:
    model = read_model(onnx.parser.parse_model(NESTED.replace("PERM", "0,1,2")))
    assert sorted(each.branches for each in forcings(model)) == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]
    assert not any(each.rounds for each in forcings(model))
