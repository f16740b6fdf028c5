"""The comparison in pieces: each value of a model too large to run is compared, and a fault is found where it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from outside_models import CUSTOM, model_of

import relayout
from relayout.model.io import read_model
from relayout.report.schema import Numeric, Verification
from relayout.verification import verify
from relayout.verification.numeric.in_pieces import compare_in_pieces
from relayout.verification.numeric.symbolic_sizes import Sampling

TURNED = """net (float[2,4,5,5] x, float[4,4,3,3] w, float[2,5] s) => (float[2,4,5,5] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Transpose <perm = [0,2,3,1]> (a)
    c = Softmax <axis = -1> (b)
    d = Transpose <perm = [0,3,1,2]> (c)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (d, w) }"""


@pytest.fixture(autouse=True)
def _no_model_runs_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.verification.numeric.compare.largest_model", lambda: -1)


def _numeric(verification: Verification) -> Numeric:
    assert verification.numeric is not None
    return verification.numeric


def _errors_in_pieces(model: onnx.ModelProto, original: onnx.ModelProto) -> list[tuple[str, str | None]]:
    """The errors of the pieces alone: other checks find some of these faults first."""
    read = read_model(model), read_model(original)
    found, _ = compare_in_pieces(*read, frozenset(), Sampling(2, 0, None), "", lambda node, opset: None)
    return [(each.rule, each.node) for each in found if each.severity == "error"]


def _rewired(model: onnx.ModelProto, operator: str, made: list[onnx.NodeProto], by: str) -> onnx.ModelProto:
    """The model where the first such operator reads the result `by` of nodes that are made for it."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    place = next(n for n, node in enumerate(changed.graph.node) if node.op_type == operator)
    changed.graph.node[place].input[0] = by
    nodes = [*changed.graph.node[:place], *made, *changed.graph.node[place:]]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del changed.graph.node[:]
    changed.graph.node.extend(copies)
    return changed


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "x86-nchwc"])
def test_a_legal_model_is_compared_in_pieces(backend: str) -> None:
    original = model_of(TURNED)
    legal, _ = relayout.legalize(original, backend)
    verification = verify(legal, backend, against=original)
    assert verification.passed
    numeric = _numeric(verification)
    assert (numeric.status, [each.name for each in numeric.outputs]) == ("compared", ["y"])
    assert numeric.pieces
    assert numeric.outputs[0].sensitivity > 0.01
    assert numeric.untried[0].startswith("to run the models as a whole: ")


def test_a_fault_is_found_in_the_piece_that_has_it() -> None:
    original = model_of(TURNED)
    legal, _ = relayout.legalize(original, "nhwc")
    softmax = next(node for node in legal.graph.node if node.op_type == "Softmax")
    shape = numpy_helper.from_array(np.array([2, 5, 5, 4]), "shape")
    made = [
        onnx.helper.make_node("Transpose", [softmax.input[0]], ["exchanged"], perm=[0, 2, 1, 3]),
        onnx.helper.make_node("Reshape", ["exchanged", "shape"], ["odd"]),
    ]
    wrong = _rewired(legal, "Softmax", made, "odd")
    wrong.graph.initializer.append(shape)
    assert _errors_in_pieces(wrong, original) == [("numeric", softmax.output[0])]


def test_results_that_no_piece_is_given_are_computed_with_the_others_of_their_node() -> None:
    original = model_of(
        """net (float[1,4,8,8] x) => (float[1,4,4,4] y, int64[1,4,4,4] i) {
            a = Relu (x)
            m, i = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a)
            n = Cast <to = 1> (i)
            s = Mul (m, n)
            y = Sigmoid (s) }"""
    )
    legal, _ = relayout.legalize(original, "nhwc")
    numeric = _numeric(verify(legal, "nhwc", against=original))
    assert (numeric.status, {each.name for each in numeric.outputs}) == ("compared", {"y", "i"})


def test_the_operands_of_an_operator_that_no_runtime_has_are_compared() -> None:
    original = model_of(CUSTOM)
    legal, _ = relayout.legalize(original, "nhwc")
    assert _numeric(verify(legal, "nhwc", against=original)).status == "compared"
    [operator] = (node for node in legal.graph.node if node.domain == "acme")
    made = [onnx.helper.make_node("Neg", [operator.input[0]], ["odd"])]
    wrong = _rewired(legal, operator.op_type, made, "odd")
    assert _errors_in_pieces(wrong, original) == [("numeric", "odd")]


def test_an_output_behind_a_piece_that_does_not_run_is_named() -> None:
    original = model_of(
        """net (float[2,3] x) => (float[2,3] y, float[2,3] z) {
            r = RandomNormalLike (x)
            s = Add (r, x)
            y = Relu (s)
            z = Exp (x) }"""
    )
    numeric = _numeric(verify(original, "onnx", against=original))
    assert [each.name for each in numeric.outputs] == ["z"]
    assert [each.name for each in numeric.not_compared] == ["y"]


def test_the_sizes_are_those_at_which_all_pieces_of_the_original_run() -> None:
    """Only where h is 1, the Squeeze runs."""
    original = model_of(
        """net (float[n,h,3] x) => (float[n,k] y) {
            a = Constant <value = int64[1] {1}> ()
            b = Exp (x)
            y = Squeeze (b, a) }"""
    )
    verification = verify(original, "onnx", against=original)
    assert (verification.passed, _numeric(verification).pieces) == (True, 2)


def test_a_value_that_claims_to_be_another_is_compared_as_both() -> None:
    """The output says that it stands for `a`, and is the original's output all the same."""
    original = model_of("net (float[2,3] x) => (float[2,3] y) { a = Exp (x)  b = Neg (a)  y = Relu (b) }")
    wrong = onnx.ModelProto()
    wrong.CopyFrom(original)
    wrong.graph.output[0].metadata_props.add(key="relayout.source", value="a")
    assert _errors_in_pieces(original, original) == []
    assert ("numeric", "y") in _errors_in_pieces(wrong, original)


def test_operators_are_told_apart_where_a_part_alone_is_compared() -> None:
    """Behind the operator that no runtime has, no piece shows that another one computes."""
    text = """net (float[2,3] x, float[n] i) => (float[2,3] y, float[2,4,6,6] z) {{
        y = Exp (x)
        o = acme.Odd (i)
        z = {} (o) }}"""
    original, wrong = (model_of(text.format(operator)) for operator in ("Relu", "Sigmoid"))
    verification = verify(wrong, "onnx", against=original, static=True)
    assert [each.name for each in _numeric(verification).not_compared] == ["z"]
    assert [(each.rule, each.found) for each in verification.findings if each.severity == "error"] == [
        ("operator", "::Sigmoid")
    ]


def test_operators_that_no_runtime_has_are_named() -> None:
    original = model_of(CUSTOM)
    legal, _ = relayout.legalize(original, "nhwc")
    found = verify(legal, "nhwc", against=original).findings
    assert [each.found for each in found if each.rule == "cut"] == ["acme::Odd"]


def test_the_one_size_of_an_open_dim_is_told() -> None:
    original = model_of("net (float[n,3] x) => (float[n,3] y) { y = Exp (x) }")
    numeric = _numeric(verify(original, "onnx", against=original))
    assert numeric.untried[1:] == ("other sizes than n = 2",)
