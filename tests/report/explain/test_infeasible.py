"""An infeasible graph is explained by its conflict, in the terms of the graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from graphs import Net

from relayout import InfeasibleError, Report, legalize
from relayout.cli import main

BLOCKED = {"name": "blocked", "rule": [{"op": "Conv", "data": "NCHWc[tile:16]"}]}
"""Nothing makes blocks of an empty tensor: where an extent is 0, a Reshape cannot read the others off it."""


def conv_and_relu(*dims: int | str) -> Net:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", dims), 32, 32)))
    return net


def refused(*arguments: object, **options: object) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        legalize(*arguments, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_conversion_that_cannot_be_written_names_both_its_ends() -> None:
    error = refused(conv_and_relu(0, 32, "H", "W").model(), BLOCKED)
    assert error.problem == "the requirements contradict each other"
    assert error.conflict == ("input x requires NCHW", "Conv 'n0' input 0 requires NCHWc[tile:16]")
    assert error.relaxation == ("Conv 'n0' took input 0 in NCHW", "Conv 'n0' gave result 0 in NCHW")
    assert all(text in error.hint for text in error.relaxation)


def test_the_same_requirement_without_empty_extents_is_met() -> None:
    _, report = legalize(conv_and_relu("N", 32, "H", "W").model(), BLOCKED)
    assert report.status == "optimal"


def test_what_would_do_does() -> None:
    """The one relaxation that is named, followed: the answer is a model."""
    net = Net()
    value = net.conv(net.input("x", (0, 32, "H", "W")), 32, 32)
    net.output(net.node("Relu", net.node("GlobalAveragePool", value)))
    backend = {**BLOCKED, "rule": [*BLOCKED["rule"], {"op": "GlobalAveragePool", "data": "NCHW"}]}  # type: ignore[misc]
    error = refused(net.model(), backend)
    assert "Conv 'n0'" in " ".join(error.relaxation)
    _, report = legalize(net.model(), {**backend, "rule": backend["rule"][1:]})
    assert report.status == "optimal"


def test_operators_between_conflicting_requirements_are_named_with_their_coupled_axes() -> None:
    error = refused(conv_and_relu(1, 32, 8, 8).model(), "nhwc", max_transposes=1)
    assert "Relu 'n1' input 0 requires NCHW or NHWC, chosen together with result 0" in error.conflict
    assert "Relu 'n1' result 0 requires NCHW or NHWC, chosen together with input 0" in error.conflict


@pytest.mark.parametrize(("most", "limit", "ends"), [(0, "0 transposes", 2), (1, "1 transpose", 6)])
def test_a_budget_is_a_requirement_and_the_least_possible_is_reported(most: int, limit: str, ends: int) -> None:
    net = conv_and_relu(1, 32, 8, 8)
    error = refused(net.model(), "nhwc", max_transposes=most)
    assert error.problem == f"no legal model has at most {limit}"
    assert error.conflict[:2] == (f"options.max_transposes={most}", "input x requires NCHW")
    assert len(error.conflict) == 1 + ends
    assert error.relaxation == ("options.max_transposes=2",)
    assert "options.max_transposes=2" in error.hint
    _, report = legalize(net.model(), "nhwc", max_transposes=2)
    assert report.after.transposes == 2


def test_a_budget_counts_the_inlined_model() -> None:
    body = Net(seed=1, prefix="inner_")
    outer = Net()
    image, flag = outer.input("x", (1, 32, 8, 8)), outer.input("flag", (), onnx.TensorProto.BOOL)
    value = body.conv(image, 32, 32)
    results = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, 32, 8, 8)) for n in (value, "other")]
    then = onnx.helper.make_graph(body.nodes, "then", [], results[:1], body.constants)
    plain = onnx.helper.make_node("Identity", [image], ["other"])
    otherwise = onnx.helper.make_graph([plain], "else", [], results[1:])
    outer.output(outer.node("Relu", outer.node("If", flag, then_branch=then, else_branch=otherwise)))
    error = refused(outer.model(), "nhwc", max_transposes=1)
    assert "options.max_transposes=1" in error.conflict
    assert error.relaxation == ("options.max_transposes=2",)
    assert legalize(outer.model(), "nhwc", max_transposes=2)[1].after.transposes == 2


def test_the_command_prints_the_whole_conflict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "legal.onnx"
    onnx.save(conv_and_relu(1, 32, 8, 8).model(), source)
    status = main(["legalize", str(source), "-o", str(target), "--backend", "nhwc", "--max-transposes", "0"])
    assert status == 3
    said = capsys.readouterr().err
    for text in ("input x requires NCHW", "Conv 'n0' input 0 requires NHWC", "--max-transposes 2"):
        assert text in said
    assert not target.exists()


def test_the_report_has_the_conflict_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(conv_and_relu(1, 32, 8, 8).model(), source)
    arguments = ["legalize", str(source), "-o", str(tmp_path / "o.onnx"), "--backend", "nhwc", "--report", "-"]
    assert main([*arguments, "--max-transposes", "1"]) == 3
    report = Report.model_validate_json(capsys.readouterr().out)
    assert "--max-transposes 2" in " ".join(report.warnings)
