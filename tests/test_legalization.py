"""`finish` returns the model that was verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import CHANNELS_LAST
from graphs import Net

from relayout import UsageError, explain, legalize, verify
from relayout.backend import load_backend
from relayout.legalization import Outcome, finish, legalize_model
from relayout.model.io import read_model, write_model
from relayout.options import Options
from relayout.report.schema import Verification
from relayout.report.totals import totals

OPTIONS = Options(check=True, inline=True)
TVM = {"desired_layouts": {"Conv": ["NHWC", "HWIO"]}, "skip": ["conv2"]}


def source() -> onnx.ModelProto:
    return onnx.parser.parse_model(CHANNELS_LAST)


def legalized() -> Outcome:
    """One convolution reads NHWC, as an operator of relayout; the other NCHW, as in the source."""
    return legalize_model(read_model(source()), load_backend("convert-layout", options=TVM), Options())


def verification(outcome: Outcome, backend: str) -> Verification:
    found = finish(outcome, load_backend(backend), OPTIONS, source()).report.verification
    assert found is not None
    return found


def test_the_report_counts_the_model_without_functions() -> None:
    outcome = legalized()
    before = outcome.report.after
    assert outcome.model.functions
    done = finish(outcome, load_backend("onnx"), Options(inline=True), source())
    assert not done.model.functions
    assert done.changed
    assert done.report.after == totals(done.model, {}) != before
    assert done.report.verification is not None
    assert done.report.verification.numeric is None


def test_layout_requirements_are_checked_where_the_operators_state_layouts() -> None:
    found = verification(legalized(), "nhwc")
    assert {(finding.rule, finding.node) for finding in found.findings if finding.severity == "error"} >= {
        ("layout-requirement", "conv2")
    }
    assert "conv1" not in {finding.node for finding in found.findings}
    assert not found.passed
    assert found.numeric is not None
    assert found.numeric.status == "compared"


def test_an_inlined_wrong_model_does_not_pass_either() -> None:
    outcome = legalized()
    [relu] = [node for node in outcome.model.graph if node.op_type == "Relu"]
    relu.op_type = "Neg"
    found = verification(outcome, "onnx")
    assert not found.passed
    assert "numeric" in {finding.rule for finding in found.findings}


def test_transposes_at_the_ends_of_inlined_bodies_cancel_and_the_model_is_legal_for_onnx() -> None:
    net = Net()
    value = net.input("x", (1, 8, 6, 6))
    for _ in range(3):
        value = net.node("Relu", net.conv(value, 8, 8))
    net.output(value)
    legal, report = legalize(net.model(), "nhwc", inline=True, check=True)
    assert report.ok
    assert report.account is not None
    assert report.account.transposes.count == 2
    assert report.after.transposes == 0, "they belong to the bodies' Transposes"
    assert {node.domain for node in legal.graph.node} == {""}
    assert verify(legal, "onnx", against=net.model(), samples=1).passed
    assert "layout-requirement" in {finding.rule for finding in verify(legal, "nhwc").findings}


def test_an_inlined_operator_has_its_name_of_the_source_not_that_of_the_body() -> None:
    """Nodes of the source may have the names of those in bodies, and were compared with others then."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[1,4,8,8] x, float[4,4,1,1] v, float[4,4,1,1] w) => (y)
    {
        [a] s = Conv (x, v)
        [node_Conv_0] t = Sigmoid (s)
        [node_Conv_0_2] y = Conv (t, w) }"""
    model = onnx.parser.parse_model(text)
    legal, report = legalize(model, "nhwc", inline=True, check=True)
    assert report.ok
    assert {"a", "node_Conv_0_2"} == {node.name for node in legal.graph.node if node.op_type == "Conv"}


def with_a_large_constant_in_a_branch() -> onnx.ModelProto:
    """Its branch has 4 KiB of constants, as an initializer or as an attribute of a Constant."""
    net = Net()
    x = net.transpose(net.transpose(net.input("x", (1, 8, 16, 8)), 0, 3, 1, 2), 0, 2, 3, 1)
    large = onnx.numpy_helper.from_array(np.arange(1024, dtype=np.float32).reshape(8, 16, 8), "large")
    held = onnx.helper.make_node("Constant", [], ["held"], value=large)
    then = onnx.helper.make_node("Add", [x, "large"], ["then"])
    other = onnx.helper.make_node("Mul", [x, "held"], ["other"])
    results = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("then", "other")]
    branches = [
        onnx.helper.make_graph([then], "then", [], results[:1], [large]),
        onnx.helper.make_graph([held, other], "other", [], results[1:]),
    ]
    chosen = net.input("chosen", (), onnx.TensorProto.BOOL)
    net.output(net.node("If", chosen, then_branch=branches[0], else_branch=branches[1]))
    return net.model()


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
@pytest.mark.parametrize("source", [source, with_a_large_constant_in_a_branch])
def test_the_verification_leaves_the_written_file_as_it_is(
    source: Callable[[], onnx.ModelProto], backend: str, tmp_path: Path
) -> None:
    chosen, files = load_backend(backend), []
    for options in (Options(verify=True), Options(verify=False)):
        outcome = finish(legalize_model(read_model(source()), chosen, options), chosen, options, source())
        files.append(tmp_path / f"{len(files)}.onnx")
        write_model(outcome.model, files[-1], outcome.written)
    assert files[0].read_bytes() == files[1].read_bytes()
    onnx.checker.check_model(onnx.load(files[0]), full_check=True)


def open_model(dim: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[{dim},3,8,8] x) => (float[{dim},8,8,3] y) {{
            a = Transpose <perm = [0, 2, 3, 1]> (x)
            y = Relu (a)
        }}"""
    )


CALLS: dict[str, Callable[[Mapping[str, int]], object]] = {
    "legalize": lambda dims: legalize(open_model("batch"), dims=dims),
    "explain": lambda dims: explain(open_model("batch"), dims=dims),
    "verify": lambda dims: verify(open_model("batch"), "onnx", dims=dims),
    "verify against an original": lambda dims: verify(open_model("1"), "onnx", open_model("batch"), dims=dims),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_size_is_for_a_dim_that_a_model_has(call: Callable[[Mapping[str, int]], object]) -> None:
    call({"batch": 2})
    with pytest.raises(UsageError, match=r"options\.dims\[bach\]: the model has no symbolic dim .*\n.*batch") as caught:
        call({"batch": 2, "bach": 2})
    assert "did you mean batch?" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
def test_a_size_for_the_verifier_is_a_positive_number(size: Any) -> None:
    with pytest.raises(UsageError, match=r"options\.dims\[batch\]: not a size"):
        verify(open_model("batch"), "onnx", dims={"batch": size})


def test_a_certificate_that_cannot_be_written_is_an_error_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.*: the file cannot be written"):
        legalize(open_model("batch"), certificate=tmp_path / "nowhere" / "proof.json")


@pytest.mark.parametrize(
    ("call", "name", "given"),
    [
        *[(call, "progress", 3) for call in (legalize, explain)],
        *[(call, "certificate", given) for call in (legalize, verify) for given in (3, b"file")],
        *[(verify, name, 3) for name in ("dims", "backend_options")],
        *[(verify, name, given) for name in ("seed", "max_transposes", "max_bytes") for given in ("3", 2.5, True)],
    ],
)
def test_an_argument_of_another_type_is_an_error_with_its_name(
    call: Callable[..., object], name: str, given: Any
) -> None:
    source = onnx.parser.parse_model(CHANNELS_LAST)
    with pytest.raises(UsageError, match="a value of another type") as caught:
        call(source, "onnx", **{name: given})
    assert (caught.value.where, caught.value.found) == (name, repr(given))


def test_a_size_may_be_for_a_dim_that_an_inlined_model_lacks() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[N,8,H,6] x, float[8,8,3,3] w, bool[K] rows) => (y) <float[N,8,some,6] b> {
            t = Transpose <perm = [0, 2, 3, 1]> (x)
            a = Compress <axis = 1> (t, rows)
            b = Transpose <perm = [0, 3, 1, 2]> (a)
            c = Conv (b, w)
            y = Relu (c)
        }"""
    )
    legal, report = legalize(model, "nhwc", dims={"some": 5}, inline=True)
    assert report.sizes["some"] == 5
    with pytest.raises(UsageError, match="some"):
        verify(legal, "onnx", dims={"some": 5})
